"""seamalloc: a GPU memory allocator for PyTorch that stitches physical memory into contiguous addresses.

    import seamalloc
    seamalloc.enable(memory_limit="80GiB")    # before anything uses CUDA
    ...
    print(seamalloc.report())

or, with nothing changed in the program, `SEAMALLOC_CONF=... python -m seamalloc run train.py`.

`device` is the number of a CUDA device. Without it, functions take PyTorch's current device, or device 0. "pinned"
means the page-locked memory of PyTorch, after `enable(pinned=True)`. Sizes are in bytes.
"""

from __future__ import annotations

import operator
from ctypes import byref, c_uint64
from typing import Any

from ._devices import Device, Stream, current_device, stream_on
from ._end import device_report
from ._everywhere import enable_all
from ._growing import Growing, GrowingTensor, growing_tensor, reserve
from ._host_pool import HostBlock, HostPool
from ._library import (
    PINNED,
    Error,
    FileName,
    HostMemory,
    MissingFileError,
    OptionError,
    OutOfMemory,
    check,
    folder_of,
    library,
    path_of,
    plugged,
    plugged_devices,
    read_json,
    version,
)
from ._live import dump_flight, metrics, serve, stop_serving
from ._options import join
from ._pinned import empty_pinned, pin_memory, pinned
from ._record import Recording, record
from ._spill import advise, unspill
from ._switch import enable, enabled
from ._tags import on_sleep, release_backups, sleep, tag, tags, wake
from ._unavailable import LibraryError, UnavailableError
from .guard import check_guards, explain, findings

__all__ = [
    "Error",
    "Growing",
    "GrowingTensor",
    "HostBlock",
    "HostMemory",
    "HostPool",
    "LibraryError",
    "MissingFileError",
    "OptionError",
    "OutOfMemory",
    "Recording",
    "UnavailableError",
    "advise",
    "check_guards",
    "dump_flight",
    "empty_pinned",
    "enable",
    "enable_all",
    "enabled",
    "explain",
    "findings",
    "forget_stream",
    "fragmentation",
    "growing_tensor",
    "keep_headroom",
    "metrics",
    "on_sleep",
    "pin_memory",
    "pinned",
    "record",
    "release_backups",
    "report",
    "reserve",
    "serve",
    "sleep",
    "snapshot",
    "stats",
    "stop_serving",
    "tag",
    "tags",
    "trim",
    "unspill",
    "wake",
    "whatif",
]
# The strategies that are compared if the caller names none. The option `strategy` also takes the classic allocators and
# Paddle's.
STRATEGIES = ("caching", "expandable", "gmlake", "stitch")
__version__ = version()


def stats(device: Device = None) -> dict[str, Any]:
    """Returns the statistics of the device's allocator as a dict. Keys of `torch.cuda.memory_stats` are nested dicts
    here; the other keys are those of `seam_stats`."""
    found: dict[str, Any] = read_json(library.seam_stats_json, plugged(current_device(device)))
    return found


def fragmentation(device: Device = None) -> dict[str, Any]:
    """Returns which memory is free for which streams and pools, and how much of it one request could get."""
    found: dict[str, Any] = read_json(library.seam_fragmentation_json, plugged(current_device(device)))
    return found


def report(device: Device = None) -> str:
    """Returns the main figures of the device's allocator as text."""
    return device_report(current_device(device))


def snapshot(path: FileName, device: Device = None) -> None:
    """Writes the blocks of the allocator and its recorded events to a pickle that PyTorch's viewer opens
    (pytorch.org/memory_viz). Raises `FileNotFoundError` if the folder does not exist."""
    check(library.seam_snapshot(plugged(current_device(device)), path_of(path)), folder_of(path))


def trim(size: int | None = None, device: Device = None) -> int:
    """Gives `size` bytes of free memory back to the device; all free memory if `size` is None. Returns the bytes given
    back."""
    if size is not None and (isinstance(size, bool) or not 0 <= operator.index(size) < 1 << 64):
        raise ValueError(f"size is {size!r}; expected a number of bytes, or None for all that is free")
    given = c_uint64()
    number = current_device(device)
    if number not in plugged_devices():
        return 0
    handle = plugged(number)
    if size is None:
        check(library.seam_empty_cache(handle, byref(given)))
    else:
        check(library.seam_trim(handle, operator.index(size), byref(given)))
    return given.value


def keep_headroom(device: Device = None) -> int:
    """Gives free memory back to the device until the bytes of the option `headroom` (1 GiB by default) are free on the
    device. Returns the bytes given back. Requests that find no free block check the headroom from time to time. A
    program that makes no requests calls this function before other programs need memory."""
    given = c_uint64()
    number = current_device(device)
    if number in plugged_devices():
        check(library.seam_keep_headroom(plugged(number), byref(given)))
    return given.value


def forget_stream(stream: Stream, device: Device = None) -> None:
    """Announces that the program will destroy a stream that it made without PyTorch: a `torch.cuda.ExternalStream` or
    its handle. The allocator waits for the stream, and does not pass its handle to the driver again. Other streams can
    then use the stream's free memory."""
    handle, number = stream_on(stream, device)
    # A device without an allocator knows no streams. The allocator of page-locked memory knows the streams of all
    # devices.
    for known in (number, PINNED):
        if known in plugged_devices():
            check(library.seam_forget_stream(plugged(known), handle))


def whatif(path: FileName, device: str | None = None, **options: object) -> list[dict[str, Any]]:
    """Replays a job under each strategy. The file is a trace, or a snapshot that `torch.cuda.memory._dump_snapshot`
    wrote with its history. Returns a list of dicts, one for each job of the file and each strategy, or only for
    `strategy=...`. `peak_reserved` is the reserved memory of the replay, `recorded_reserved` the reserved memory of
    PyTorch when the job was recorded, and `persistent` the bytes of weights and optimizer state that live across steps.
    `largest_step` is how many times as large the rest of a step could be, 8 at most. `largest_step` is None if the job
    frees nothing (`grows` is False) or if the device is unknown (`sought` is False). `native_step`, `native_reserved`,
    `expandable_step` and `expandable_reserved` are the figures of PyTorch's own allocators on the same device. A
    snapshot without a history shows memory at one moment. For such a snapshot the list has a dict for each device with
    memory: `layout` is True, and `verdict`, `largest_request`, `pools` and sizes describe the memory held and the
    requests that it could serve.

    `device` is a simulated device, such as `sim:h200,capacity=80GiB`. Without `device`, the replay takes a
    device with as much memory as the recorded device. `device_from` says how this size is known: "noted", "refusal", or
    "unknown", for which the replay takes the size of an H200. The function uses no GPU. The replay takes seconds; for a
    long job a minute. Raises `FileNotFoundError` if the file does not exist."""
    if device is not None and not isinstance(device, str):
        raise TypeError(f'device is {device!r}; expected a simulated one, such as "sim:h200"')
    text = join("", options)
    found: list[dict[str, Any]] = read_json(
        library.seam_whatif_json, path_of(path), (device or "").encode(), text.encode(), needs=path
    )
    return found

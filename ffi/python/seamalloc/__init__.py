"""seamalloc: a GPU memory allocator for PyTorch that stitches physical memory into contiguous addresses.

    import seamalloc
    seamalloc.enable(memory_limit="80GiB")    # before anything uses CUDA
    ...
    print(seamalloc.report())

or, with nothing changed in the program, `SEAMALLOC_CONF=... python -m seamalloc run train.py`.

Sizes are bytes. `device` is a CUDA device's number; without it, that of PyTorch's current device, or 0. "pinned" is the
page-locked memory behind PyTorch, after `enable(pinned=True)`.
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
# The strategies that are compared if none is named. The option `strategy` also takes the classic allocators and
# Paddle's.
STRATEGIES = ("caching", "expandable", "gmlake", "stitch")
__version__ = version()


def stats(device: Device = None) -> dict[str, Any]:
    """Returns the statistics of the device's allocator: a dict, with the names of `torch.cuda.memory_stats` nested, and
    those of `seam_stats`."""
    found: dict[str, Any] = read_json(library.seam_stats_json, plugged(current_device(device)))
    return found


def fragmentation(device: Device = None) -> dict[str, Any]:
    """Returns how the memory is divided up now: what is free for whom, and how much of it one request could have."""
    found: dict[str, Any] = read_json(library.seam_fragmentation_json, plugged(current_device(device)))
    return found


def report(device: Device = None) -> str:
    """The figures that matter, as text."""
    return device_report(current_device(device))


def snapshot(path: FileName, device: Device = None) -> None:
    """Writes what the allocator holds, and what was recorded, as a pickle that PyTorch's viewer opens
    (pytorch.org/memory_viz). Raises `FileNotFoundError` where there is no such folder."""
    check(library.seam_snapshot(plugged(current_device(device)), path_of(path)), folder_of(path))


def trim(size: int | None = None, device: Device = None) -> int:
    """Gives `size` bytes of free memory back to the device, or all that can be. Returns the bytes given back."""
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
    """Gives free memory back to the device until the bytes of the option `headroom` are free again. Returns the bytes given back.
    Requests that find no free block look now and then; a program that makes none calls this before others need memory."""
    given = c_uint64()
    number = current_device(device)
    if number in plugged_devices():
        check(library.seam_keep_headroom(plugged(number), byref(given)))
    return given.value


def forget_stream(stream: Stream, device: Device = None) -> None:
    """Says that the program is about to destroy a stream that it made without PyTorch, a `torch.cuda.ExternalStream` or
    its handle: the allocator waits for it, and never names it to the device again. Its free memory serves others."""
    handle, number = stream_on(stream, device)
    # A device without an allocator knows no streams. Page-locked memory knows those of all devices.
    for known in (number, PINNED):
        if known in plugged_devices():
            check(library.seam_forget_stream(plugged(known), handle))


def whatif(path: FileName, device: str | None = None, **options: object) -> list[dict[str, Any]]:
    """Replays a job under each strategy: a snapshot that `torch.cuda.memory._dump_snapshot` wrote with its history,
    or a trace. Returns a list of dicts, one for each job of the file and each strategy, or for the one of
    `strategy=...`: `peak_reserved` is what it would have held, `recorded_reserved` what PyTorch held, `persistent` the
    bytes of weights and optimizer state that stay from step to step, `largest_step` how many times as large all else could
    be, 8 at most, None where it frees nothing (`grows` False) or the device is unknown (`sought` False);
    `native_step`, `native_reserved`, `expandable_step`, `expandable_reserved` are what PyTorch's own allocators reach on
    the same device. Of a snapshot without a history, of memory at one moment, there is a dict for each device with memory:
    `layout` is True, and `verdict`, `largest_request`, `pools` and sizes say what is held and what could be served.

    `device` is a simulated one, such as `sim:h200,capacity=80GiB`; without it, one with the memory of the device that was
    recorded (`device_from` says how that is known: noted, refusal, or unknown, which takes an H200's). Touches no GPU;
    takes seconds, of a long job a minute. Raises `FileNotFoundError` where there is no such file."""
    if device is not None and not isinstance(device, str):
        raise TypeError(f'device is {device!r}; expected a simulated one, such as "sim:h200"')
    text = join("", options)
    found: list[dict[str, Any]] = read_json(
        library.seam_whatif_json, path_of(path), (device or "").encode(), text.encode(), needs=path
    )
    return found

"""Memory for libraries other than PyTorch. The libraries share one allocator for each device, with PyTorch too.

Sizes are in bytes. Addresses and stream handles are numbers. The module of each library (cupy, numba, ...) passes the
device and the stream of each request, and the stream of each free.
"""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import byref, c_int, c_uint64, c_void_p
from typing import Any

from . import _end, _switch
from ._library import (
    OUT_OF_MEMORY,
    PINNED,
    SIMULATED,
    Error,
    OutOfMemory,
    check,
    library,
    plugged,
    plugged_devices,
    read_json,
    read_options,
)
from ._options import join
from ._unavailable import LibraryError

# CUDA's default stream of the thread. Each thread has its own stream under this handle, and memory is kept in the order
# of one stream.
PER_THREAD = 2
# The handle `CU_STREAM_LEGACY`, a second handle of the default stream.
LEGACY = 1
# `CU_STREAM_NON_BLOCKING`.
NON_BLOCKING = 1
# Numbers of `seam_status`.
REQUEST_TOO_LARGE, DRIVER, FORKED = 4, 13, 16
# The `CUresult`s which mean that CUDA or the device's context has ended.
ENDED = (4, 201, 709)

# The allocators that gave out memory in this process. A forked child has copies of its parent's pointers, but no
# memory.
_handles: dict[int, int] = {}
os.register_at_fork(after_in_child=_handles.clear)


class DeviceMemoryError(OutOfMemory, MemoryError):
    """Too little memory, as a MemoryError. The text reports which memory is free for which streams and pools, and what
    would help."""


def begin(name: str, options: dict[str, object]) -> None:
    """Prepares for requests of the library `name`, with `options` for allocators that do not exist yet. Uses no device.
    Raises `OptionError`; raises `LibraryError` if the options come too late or the driver is missing."""
    before = os.environ.get(_switch.VARIABLE, "")
    text = join(before, options)
    if read_options(text) != read_options(before):
        if [device for device in plugged_devices() if device != PINNED]:
            raise LibraryError(
                "too-late",
                name,
                f"its options ({join('', options)}) come too late: the device's allocator is in use, with others",
                "Give them to what is enabled first, or set SEAMALLOC_CONF before the program starts",
            )
        if _switch.enabled() is not None:
            raise LibraryError(
                "too-late",
                name,
                f"PyTorch has the allocator already, and not with these options ({join('', options)})",
                "Give them to seamalloc.enable()",
            )
    if not is_simulated():
        _driver(name)
    _end.check_destination()
    # The library reads the variable at the first use of a device. Child processes read the variable too.
    os.environ[_switch.VARIABLE] = text
    _end.prepare()


def is_simulated() -> bool:
    """Returns whether every device is simulated."""
    return bool(os.environ.get(SIMULATED))


_libcuda: Any = None


def _driver(name: str) -> Any:
    global _libcuda
    try:
        _libcuda = _libcuda or ctypes.CDLL("libcuda.so.1")
        return _libcuda
    except OSError as error:
        raise LibraryError(
            "no-cuda",
            name,
            f"NVIDIA's driver cannot be loaded ({error})",
            f"Install it, or try without a GPU: {SIMULATED}=sim:h200 hands out addresses that nothing is behind",
        ) from error


def missing(name: str, error: ImportError, package: str) -> LibraryError:
    """Returns the error for a library that cannot be imported."""
    return LibraryError("missing", name, f"{name} cannot be imported ({error})", f"Install it: pip install {package}")


def stream_of(handle: int) -> int:
    """Returns the stream in whose order memory for this handle is kept."""
    return 0 if handle in (LEGACY, PER_THREAD) else handle


def keep(device: int, handle: int) -> None:
    """Notes an allocator that gave out memory."""
    _handles[device] = handle


def allocate(device: int, size: int, stream: int = 0) -> int:
    """Returns the address of memory for work on a stream; 0 for a size of 0. Raises `DeviceMemoryError` if there is too
    little memory."""
    handle = _handles.get(device)
    if handle is None:
        handle = _handles[device] = plugged(device)
    stream = stream_of(stream)
    if stream != 0:
        # The stream's owner may destroy it without notice.
        check(library.seam_set_borrowed(handle, stream))
    address = c_void_p()
    status = library.seam_malloc(handle, size, stream, byref(address))
    if status in (OUT_OF_MEMORY, REQUEST_TOO_LARGE):
        text = library.seam_last_error_text().decode(errors="replace")
        raise DeviceMemoryError(status, library.seam_status_name(status).decode(), text)
    check(status)
    return address.value or 0


def free(device: int, address: int, current: int) -> None:
    """Frees memory while `current` is the current stream. Work on `current` may use the memory, besides the stream of
    the allocation. If `current` is being captured, it has no work on the memory yet, and the memory is ordered by its
    own stream alone. Does nothing after CUDA has ended, or in a forked child."""
    handle = _handles.get(device)
    if address == 0 or handle is None:
        return
    if _is_captured(current):
        _finish(library.seam_free(handle, address))
        return
    if current == PER_THREAD:
        # A request of another thread may get the memory before this thread's stream has finished with it.
        synchronize(device)
    _finish(library.seam_free_under(handle, address, stream_of(current)))


def free_on(device: int, address: int, own: int, last: int) -> None:
    """Frees memory of the stream `own` after both `own` and `last` have passed their work. No request gets the memory
    before."""
    if last not in (own, PER_THREAD) and device in _handles and not _is_captured(last):
        # `free` would give the memory to its own stream at once. `seam_free_on` holds it until the GPU has passed this
        # point of `last`.
        _finish(library.seam_free_on(_handles[device], address, stream_of(last)))
    else:
        free(device, address, last)


def _is_captured(stream: int) -> bool:
    """Returns whether the driver says that the stream is being captured. The allocator may not know of the capture. An
    event could be recorded only after the capture ends. By then the owner may have destroyed the stream."""
    if stream in (0, LEGACY) or is_simulated():
        return False
    answer = c_int()
    status = _driver("CUDA").cuStreamIsCapturing(c_void_p(stream), byref(answer))
    return status == 0 and answer.value != 0


def _finish(status: int) -> None:
    has_ended = status == DRIVER and library.seam_last_driver_status() in ENDED
    if status != FORKED and not has_ended:
        check(status)


class Streams:
    """The stream of each live address, for libraries that name only the stream of the free."""

    def __init__(self, device: int) -> None:
        self.device = device
        self._of: dict[int, int] = {}

    def allocate(self, size: int, stream: int) -> int:
        address = allocate(self.device, size, stream)
        if address != 0:
            self._of[address] = stream
        return address

    def __contains__(self, address: int) -> bool:
        return address in self._of

    def discard(self, address: int) -> None:
        """Frees memory that no work has used, unless it is free already."""
        if address in self._of:
            self.free(address, None)

    def free(self, address: int, stream: int | None) -> None:
        if address != 0:
            own = self._of.pop(address, 0)
            if stream is not None:
                free_on(self.device, address, own, stream)
            elif self.device in _handles:
                # The allocation's own stream is not passed to the driver, since the stream may be destroyed.
                _finish(library.seam_free(_handles[self.device], address))


class _Primary:
    """A context that makes the device's primary context the current one for the calls inside."""

    def __init__(self, device: int) -> None:
        self._driver = _driver("CUDA")
        self._device = c_int()
        self._call("cuDeviceGet", byref(self._device), device)

    def _call(self, name: str, *arguments: Any) -> None:
        found = getattr(self._driver, name)(*arguments)
        if found not in (0, *ENDED):
            raise Error(DRIVER, "SEAM_STATUS_DRIVER", f"{name} failed with CUresult {found}")

    def __enter__(self) -> Any:
        context = c_void_p()
        self._call("cuDevicePrimaryCtxRetain", byref(context), self._device)
        self._call("cuCtxPushCurrent_v2", context)
        return self._call

    def __exit__(self, *_: object) -> None:
        self._call("cuCtxPopCurrent_v2", byref(c_void_p()))
        self._call("cuDevicePrimaryCtxRelease_v2", self._device)


def synchronize(device: int) -> None:
    """Waits for all work of a device."""
    if device in _handles and not is_simulated():
        with _Primary(device) as call:
            call("cuCtxSynchronize")


class Idle:
    """A stream of the device that never gets work. After a wait for the stream, memory allocated for it has no pending
    use on any stream. Libraries that do not name the stream of an allocation need such memory."""

    def __init__(self, device: int) -> None:
        self.device = device
        self._handle: int | None = None
        self._lock = threading.Lock()

    def allocate(self, size: int) -> int:
        with self._lock:
            if self._handle is None:
                self._handle = self._make()
        address = allocate(self.device, size, self._handle)
        if not is_simulated():
            with _Primary(self.device) as call:
                # The memory may come from other streams, for which this stream waits on the GPU.
                call("cuStreamSynchronize", c_void_p(self._handle))
        return address

    def free(self, address: int) -> None:
        """Frees memory that no work uses any more."""
        if self.device in _handles:
            _finish(library.seam_free(_handles[self.device], address))

    def forget(self) -> None:
        """Forgets the stream, because its device is about to be reset."""
        with self._lock:
            if self._handle is not None:
                _finish(library.seam_forget_stream(plugged(self.device), self._handle))
                self._handle = None

    def _make(self) -> int:
        made = c_void_p(id(self))
        if not is_simulated():
            with _Primary(self.device) as call:
                call("cuStreamCreate", byref(made), NON_BLOCKING)
        return made.value or 0


def memory_info(device: int) -> tuple[int, int]:
    """Returns the largest size that one request can get within the limit, and the total memory of the device, in
    bytes."""
    free_bytes, total = c_uint64(), c_uint64()
    handle = plugged(device)
    check(library.seam_memory_info(handle, None, byref(total)))
    check(library.seam_largest_request(handle, byref(free_bytes)))
    return free_bytes.value, total.value


def in_use(device: int) -> int:
    """Returns the bytes that all libraries together have allocated."""
    return int(read_json(library.seam_stats_json, plugged(device))["allocated_bytes"]["all"]["current"])

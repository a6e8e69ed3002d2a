"""The memory that other libraries than PyTorch get: of the very allocators that PyTorch has, one for each device.

Sizes are bytes; addresses and the handles of streams are numbers. The module of each library (cupy, numba, ...) says which
device and which stream a request is for, and under which stream it is freed.
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

# CUDA's default stream of the thread. Memory is in the order of one stream, and each thread has another one.
PER_THREAD = 2
# The default stream, by its second name.
LEGACY = 1
# `CU_STREAM_NON_BLOCKING`.
NON_BLOCKING = 1
# Numbers of `seam_status`.
REQUEST_TOO_LARGE, DRIVER, FORKED = 4, 13, 16
# The `CUresult`s that mean that CUDA, or the device's context, has ended.
ENDED = (4, 201, 709)

# The allocators that allocated memory in this process. A forked child has copies of its parent's pointers, but no
# memory.
_handles: dict[int, int] = {}
os.register_at_fork(after_in_child=_handles.clear)


class DeviceMemoryError(OutOfMemory, MemoryError):
    """Too little memory, as a MemoryError; the text is a report of what is free where, and what would help."""


def begin(name: str, options: dict[str, object]) -> None:
    """Prepares for requests of the library `name`, with `options` for allocators that are not made yet. Uses no device.
    Raises `OptionError`, and `LibraryError` where the options come too late or there is no driver."""
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
    # The library reads the variable when a device is first used, and so do child processes.
    os.environ[_switch.VARIABLE] = text
    _end.prepare()


def is_simulated() -> bool:
    """Returns whether every device is a simulated one."""
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
    """The library cannot be imported."""
    return LibraryError("missing", name, f"{name} cannot be imported ({error})", f"Install it: pip install {package}")


def stream_of(handle: int) -> int:
    """The stream in whose order memory is."""
    return 0 if handle in (LEGACY, PER_THREAD) else handle


def keep(device: int, handle: int) -> None:
    """Notes an allocator that gave out memory."""
    _handles[device] = handle


def allocate(device: int, size: int, stream: int = 0) -> int:
    """Memory for work on a stream; 0 for no bytes. Raises `DeviceMemoryError` where there is too little."""
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
    """Frees under a current stream: work on it may use the memory, besides the stream that it was allocated for. Where a
    graph is being captured on it, it has no work yet, and the memory is only in the order of its own. Does nothing where CUDA
    has ended, and in a forked child."""
    handle = _handles.get(device)
    if address == 0 or handle is None:
        return
    if _is_captured(current):
        _finish(library.seam_free(handle, address))
        return
    if current == PER_THREAD:
        # Another thread's requests may get the memory before this thread's stream is done with it.
        synchronize(device)
    _finish(library.seam_free_under(handle, address, stream_of(current)))


def free_on(device: int, address: int, own: int, last: int) -> None:
    """Frees what was allocated for the stream `own` once `last` too has passed what it was given: the memory serves nobody
    before."""
    if last not in (own, PER_THREAD) and device in _handles and not _is_captured(last):
        # The memory is held until the GPU has passed this point, while `free` would give it to its own stream at once.
        _finish(library.seam_free_on(_handles[device], address, stream_of(last)))
    else:
        free(device, address, last)


def _is_captured(stream: int) -> bool:
    """Returns whether a stream is being captured, of which nobody told the allocator. An event to wait for could be
    recorded at the capture's end only, and whose stream it is may have destroyed it by then."""
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
    """The stream that each live address was allocated for, for libraries that name only that of the free."""

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
        """Frees what nothing has used, unless it is free already."""
        if address in self._of:
            self.free(address, None)

    def free(self, address: int, stream: int | None) -> None:
        if address != 0:
            own = self._of.pop(address, 0)
            if stream is not None:
                free_on(self.device, address, own, stream)
            elif self.device in _handles:
                # Its own stream is not passed to the driver, since it may be destroyed.
                _finish(library.seam_free(_handles[self.device], address))


class _Primary:
    """The device's primary context, while a call needs it to be the current one."""

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
    """A stream of the device that never gets work. What is allocated for it, once it was waited for, has no pending use on
    any stream: for libraries that do not say which streams will use it."""

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
                # Memory comes from other streams behind waits of this stream.
                call("cuStreamSynchronize", c_void_p(self._handle))
        return address

    def free(self, address: int) -> None:
        """Frees what no work uses any more."""
        if self.device in _handles:
            _finish(library.seam_free(_handles[self.device], address))

    def forget(self) -> None:
        """Forgets the stream, since its device is about to be reset."""
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
    """Returns the bytes that one request may still get, within the limit, and those of the device."""
    free_bytes, total = c_uint64(), c_uint64()
    handle = plugged(device)
    check(library.seam_memory_info(handle, None, byref(total)))
    check(library.seam_largest_request(handle, byref(free_bytes)))
    return free_bytes.value, total.value


def in_use(device: int) -> int:
    """Bytes of what all libraries have allocated."""
    return int(read_json(library.seam_stats_json, plugged(device))["allocated_bytes"]["all"]["current"])

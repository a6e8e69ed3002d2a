"""The C library through ctypes. Results become Python values, and errors become exceptions.

docs/c-api.md and seamalloc.h document the functions.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Callable, Union

PATH = Path(__file__).resolve().parent / "libseamalloc.so"

# `SEAM_ABI_VERSION` of the header that these declarations match.
ABI_VERSION = 1

# `OUT_OF_MEMORY` of `seam_status`.
OUT_OF_MEMORY = 3
HOST_MEMORY = 24
OPTIONS = 10
FILE = 14
BUFFER_TOO_SMALL = 15

# The number that stands for the page-locked memory of PyTorch. No device has this number.
PINNED = 1 << 16
# The variable that simulates a device on a machine without a GPU.
SIMULATED = "SEAMALLOC_DEVICE"

# The type of a file's name.
FileName = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


class Pool(ctypes.Structure):
    """The struct `seam_pool`."""

    _fields_ = [("first", c_uint64), ("second", c_uint64)]


class Error(RuntimeError):
    """An error of a call of the library. `status` is its number in `seam_status`, `name` its name there."""

    def __init__(self, status: int, name: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.name = name
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __reduce__(self) -> tuple[type[Error], tuple[int, str, str]]:
        return type(self), (self.status, self.name, self._text)


class OutOfMemory(Error):
    """Too little memory. The text reports which memory is free for which streams and pools, and what would help."""


class HostMemory(Error, MemoryError):
    """The host, not the device, has too little memory for the tables of the allocator."""


class OptionError(Error, ValueError):
    """An option is unknown, or has a value that it cannot take."""


class MissingFileError(Error, FileNotFoundError):
    """A file, or the folder of a new file, does not exist."""

    def __init__(self, status: int, name: str, text: str) -> None:
        super().__init__(status, name, text)
        self.errno = errno.ENOENT


def _load() -> ctypes.CDLL:
    if not PATH.is_file():
        raise ImportError(f"{PATH} is missing: seamalloc was not installed by pip (pip install ./ffi/python)")
    library = ctypes.CDLL(str(PATH))
    library.seam_abi_version.restype = c_uint32
    found = library.seam_abi_version()
    if found != ABI_VERSION:
        raise ImportError(f"{PATH} has binary interface {found}; expected {ABI_VERSION}")
    text = (c_char_p, c_size_t, POINTER(c_size_t))
    signatures: dict[str, tuple[Any, ...]] = {
        "seam_create": (c_char_p, c_char_p, POINTER(c_uint64)),
        "seam_destroy": (c_uint64,),
        "seam_host_malloc": (c_uint64, c_size_t, POINTER(c_void_p)),
        "seam_record_stream": (c_uint64, c_void_p, c_void_p),
        "seam_enable_peer_access": (c_uint64, c_uint32),
        "seam_malloc": (c_uint64, c_size_t, c_void_p, POINTER(c_void_p)),
        "seam_free": (c_uint64, c_void_p),
        "seam_free_on": (c_uint64, c_void_p, c_void_p),
        "seam_free_under": (c_uint64, c_void_p, c_void_p),
        "seam_set_borrowed": (c_uint64, c_void_p),
        "seam_largest_request": (c_uint64, POINTER(c_uint64)),
        "seam_memory_info": (c_uint64, POINTER(c_uint64), POINTER(c_uint64)),
        "seam_on_memory_pressure": (c_uint64, c_void_p, c_void_p, POINTER(c_uint64)),
        "seam_remove_memory_callback": (c_uint64, c_uint64),
        "seam_forget_stream": (c_uint64, c_void_p),
        "seam_read_options": (c_char_p, *text),
        "seam_plugged": (c_int, POINTER(c_uint64)),
        "seam_plugged_defaults": (c_char_p,),
        "seam_plugged_devices": (POINTER(c_uint64),),
        "seam_stats_json": (c_uint64, *text),
        "seam_fragmentation_json": (c_uint64, *text),
        "seam_whatif_json": (c_char_p, c_char_p, c_char_p, *text),
        "seam_explain": (c_uint64, c_void_p, *text),
        "seam_findings_json": (c_uint64, *text),
        "seam_check_guards": (c_uint64, POINTER(c_uint64)),
        "seam_note_uses": (c_uint64, POINTER(c_void_p), c_size_t, c_void_p),
        "seam_note_event": (c_uint64, c_uint64, c_void_p),
        "seam_note_wait": (c_uint64, c_void_p, c_uint64),
        "seam_snapshot": (c_uint64, c_char_p),
        "seam_record_start": (c_uint64, c_size_t),
        "seam_record_new": (c_size_t,),
        "seam_record_stop": (c_uint64,),
        "seam_record_write": (c_uint64, c_char_p),
        "seam_log_summary": (c_uint64,),
        "seam_serve": (c_char_p,),
        "seam_serve_stop": (),
        "seam_metrics": text,
        "seam_flight_write": (c_uint64, c_char_p),
        "seam_trim": (c_uint64, c_uint64, POINTER(c_uint64)),
        "seam_keep_headroom": (c_uint64, POINTER(c_uint64)),
        "seam_empty_cache": (c_uint64, POINTER(c_uint64)),
        "seam_pool_create_tag": (c_uint64, POINTER(Pool)),
        "seam_pool_begin_thread": (c_uint64, Pool, c_uint32),
        "seam_pool_begin_other_threads": (c_uint64, Pool),
        "seam_pool_end": (c_uint64, Pool),
        "seam_pool_open_tag": (c_uint64, Pool),
        "seam_pool_get_stats": (c_uint64, Pool, c_void_p),
        "seam_set_memory_limit": (c_uint64, c_uint64),
        "seam_on_sleep": (c_uint64, c_void_p, c_void_p, POINTER(c_uint64)),
        "seam_remove_sleep_callback": (c_uint64, c_uint64),
        "seam_release_backups": (c_uint64, POINTER(c_uint64)),
        "seam_pool_sleep": (c_uint64, Pool, c_uint32, c_char_p, POINTER(c_uint64)),
        "seam_pool_wake": (c_uint64, Pool, POINTER(c_uint64)),
        "seam_advise": (c_uint64, c_void_p, c_uint32),
        "seam_unspill": (c_uint64, POINTER(c_uint64)),
        "seam_reserve": (c_uint64, c_size_t, c_void_p, POINTER(c_void_p)),
        "seam_pool_reserve": (c_uint64, Pool, c_size_t, c_void_p, POINTER(c_void_p)),
        "seam_grow": (c_uint64, c_void_p, c_size_t),
        "seam_shrink": (c_uint64, c_void_p, c_size_t),
        "seam_extent": (c_uint64, c_void_p, *[POINTER(c_size_t)] * 3),
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = c_int
    library.seam_last_driver_status.restype = c_uint32
    for name in ("seam_version", "seam_last_error_text", "seam_status_name"):
        getattr(library, name).restype = c_char_p
    library.seam_status_name.argtypes = (c_int,)
    return library


library = _load()


def version() -> str:
    """Returns the library's version."""
    return str(library.seam_version().decode())


def check(status: int, needs: FileName | None = None) -> None:
    """Raises the error of a call whose status is not 0. `needs` is the file or folder that the call needs; if it is
    missing, the error names it."""
    if status == 0:
        return
    text = library.seam_last_error_text().decode(errors="replace")
    name = library.seam_status_name(status).decode()
    kinds: dict[int, type[Error]] = {
        OUT_OF_MEMORY: OutOfMemory,
        OPTIONS: OptionError,
        HOST_MEMORY: HostMemory,
    }
    kind = kinds.get(status, Error)
    if status == FILE and needs is not None and not os.path.exists(needs):
        kind = MissingFileError
    raise kind(status, name, text)


# Returns the allocator of PyTorch's page-locked memory, or 0 if it does not exist. Opens the allocator if the argument
# is True. The shim replaces this function.
pinned_handle: Callable[[bool], int] = lambda opens: 0


def plugged(device: int) -> int:
    """Returns the handle of a CUDA device's allocator, or of the allocator of PyTorch's page-locked memory. Creates the
    allocator if it does not exist."""
    if device == PINNED:
        found = pinned_handle(True)
        if found == 0:
            raise RuntimeError("PyTorch's page-locked memory is its own: seamalloc.enable(pinned=True) was not called")
        return found
    handle = c_uint64()
    check(library.seam_plugged(device, byref(handle)))
    return handle.value


def plugged_devices() -> list[int]:
    """Returns the devices that have an allocator, including the page-locked memory of PyTorch. Creates no allocator."""
    bits = c_uint64()
    check(library.seam_plugged_devices(byref(bits)))
    devices = [device for device in range(64) if bits.value >> device & 1]
    return [*devices, PINNED] if pinned_handle(False) else devices


def name_of(device: int) -> str:
    """Returns the name of a device in names of files and in texts."""
    return "pinned" if device == PINNED else str(device)


def read_text(function: Any, *arguments: object, needs: FileName | None = None) -> str:
    """Returns the text that a function writes to a buffer."""
    needed = c_size_t(1 << 14)
    while True:
        buffer = ctypes.create_string_buffer(needed.value + 1)
        status = function(*arguments, buffer, len(buffer), byref(needed))
        # The text may be longer in the next call.
        if status != BUFFER_TOO_SMALL:
            check(status, needs)
            return buffer.value.decode()


def read_json(function: Any, *arguments: object, needs: FileName | None = None) -> Any:
    """Returns the JSON that a function writes to a buffer, as Python values."""
    return json.loads(read_text(function, *arguments, needs=needs))


def read_options(options: str) -> str:
    """Returns options in the library's spelling: each option without its default value, once. Raises `OptionError` if
    the options cannot be read. Creates no allocator, since forked children of a process with an allocator cannot use
    the GPU through it."""
    return read_text(library.seam_read_options, options.encode())


def path_of(path: FileName) -> bytes:
    """Returns a file's name as bytes, as the library takes it."""
    return os.fsencode(path)


def folder_of(path: FileName) -> str:
    """Returns the folder of a file."""
    return os.path.dirname(os.path.abspath(os.fsdecode(path)))

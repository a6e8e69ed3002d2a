"""The C library, through ctypes: what it answers, as Python values and exceptions.

docs/c-api.md and seamalloc.h say what the functions do.
"""

import ctypes
import json
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

PATH = Path(__file__).resolve().parent / "libseamalloc.so"

# `SEAM_ABI_VERSION` of the header that these declarations follow.
ABI_VERSION = 1

# Of `seam_status`.
OUT_OF_MEMORY = 3
OPTIONS = 10
BUFFER_TOO_SMALL = 15


class Error(RuntimeError):
    """What the library refused or could not do. `status` is its number in `seam_status`, `name` its name there."""

    def __init__(self, status, name, text):
        super().__init__(text)
        self.status = status
        self.name = name


class OutOfMemory(Error):
    """Too little memory; the text is a report of what is free where, and what would help."""


class OptionError(Error, ValueError):
    """An option is unknown, or has a value that it cannot take."""


def _load():
    if not PATH.is_file():
        raise ImportError(f"{PATH} is missing: seamalloc was not installed by pip (pip install ./ffi/python)")
    library = ctypes.CDLL(str(PATH))
    library.seam_abi_version.restype = c_uint32
    found = library.seam_abi_version()
    if found != ABI_VERSION:
        raise ImportError(f"{PATH} has binary interface {found}; expected {ABI_VERSION}")
    text = (c_char_p, c_size_t, POINTER(c_size_t))
    signatures = {
        "seam_malloc": (c_uint64, c_size_t, c_void_p, POINTER(c_void_p)),
        "seam_free": (c_uint64, c_void_p),
        "seam_read_options": (c_char_p, *text),
        "seam_plugged": (c_int, POINTER(c_uint64)),
        "seam_plugged_defaults": (c_char_p,),
        "seam_stats_json": (c_uint64, *text),
        "seam_fragmentation_json": (c_uint64, *text),
        "seam_whatif_json": (c_char_p, c_char_p, c_char_p, *text),
        "seam_snapshot": (c_uint64, c_char_p),
        "seam_record_start": (c_uint64, c_size_t),
        "seam_record_stop": (c_uint64,),
        "seam_record_write": (c_uint64, c_char_p),
        "seam_trim": (c_uint64, c_uint64, POINTER(c_uint64)),
        "seam_empty_cache": (c_uint64, POINTER(c_uint64)),
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = c_int
    for name in ("seam_version", "seam_last_error_text", "seam_status_name"):
        getattr(library, name).restype = c_char_p
    library.seam_status_name.argtypes = (c_int,)
    return library


library = _load()


def version():
    """The library's version."""
    return library.seam_version().decode()


def check(status):
    """Raises what a function failed with."""
    if status == 0:
        return
    text = library.seam_last_error_text().decode(errors="replace")
    name = library.seam_status_name(status).decode()
    kind = {OUT_OF_MEMORY: OutOfMemory, OPTIONS: OptionError}.get(status, Error)
    raise kind(status, name, text)


def plugged(device):
    """The handle of a CUDA device's allocator, which is made if it is not there yet."""
    handle = c_uint64()
    check(library.seam_plugged(device, byref(handle)))
    return handle.value


def read_text(function, *arguments):
    """The text that a function writes to a buffer."""
    needed = c_size_t(1 << 14)
    while True:
        buffer = ctypes.create_string_buffer(needed.value + 1)
        status = function(*arguments, buffer, len(buffer), byref(needed))
        # The text may grow from call to call.
        if status != BUFFER_TOO_SMALL:
            check(status)
            return buffer.value.decode()


def read_json(function, *arguments):
    """The JSON that a function writes to a buffer, as Python values."""
    return json.loads(read_text(function, *arguments))


def read_options(options):
    """Options in the library's own words: each that is not the default, once. Raises `OptionError` for those that cannot
    be read. Makes no allocator: of a process that has one, forked children could use none."""
    return read_text(library.seam_read_options, options.encode())


def path_of(path):
    """A file's name as the library takes it."""
    return os.fsencode(path)

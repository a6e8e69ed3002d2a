"""seamalloc as CuPy's allocator. If PyTorch uses seamalloc too, both share the same memory and limit.

    import cupy, seamalloc.cupy
    seamalloc.cupy.enable(memory_limit="20GiB")

Memory is for work on CuPy's current stream, and is freed on the stream that is current at the free. seamalloc does not
touch the memory in CuPy's own pool: call `enable` before arrays are made, or call
`cupy.get_default_memory_pool().free_all_blocks()`. `cupy.cuda.using_allocator(seamalloc.cupy.malloc)` uses seamalloc in
a part of a program.
"""

from __future__ import annotations

import sys
from typing import Any

from . import _memory
from ._unavailable import LibraryError

NAME = "CuPy"


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise _memory.missing(NAME, error, "cupy-cuda13x") from error
    if cupy.cuda.runtime.is_hip:
        raise LibraryError("version", NAME, "this CuPy is built for ROCm", "Install cupy-cuda13x or cupy-cuda12x")
    if int(cupy.__version__.split(".")[0]) < 12:
        raise LibraryError("version", NAME, f"CuPy {cupy.__version__} is too old", "Install CuPy 12 or newer")
    return cupy


def enable(**options: object) -> None:
    """Makes seamalloc CuPy's allocator, in all threads, for later allocations. Takes the options of `seamalloc.enable`.
    Raises `LibraryError`, and `OptionError` for options that cannot be read."""
    cupy = _cupy()
    _memory.begin(NAME, options)
    cupy.cuda.set_allocator(malloc)


def enabled() -> bool:
    """Returns whether seamalloc is CuPy's allocator in this thread."""
    return bool(_cupy().cuda.get_allocator() is malloc)


class _Block:
    """The owner of an array's memory. CuPy's `PythonFunctionAllocator` does not serve here: that class loses its
    function, and with the function the memory, when the garbage collector frees an array in a reference cycle (CuPy
    14.2)."""

    __slots__ = ("address", "device")

    def __init__(self, address: int, device: int) -> None:
        self.address, self.device = address, device

    def __del__(self, is_finalizing: Any = sys.is_finalizing) -> None:
        # At the end of the interpreter, CuPy's modules may be gone, and the process's memory is freed anyway.
        if not is_finalizing():
            _memory.free(self.device, self.address, _current_stream(self.device))


def _current_stream(device: int) -> int:
    import cupy

    return int(cupy.cuda.get_current_stream(device).ptr)


def malloc(size: int) -> Any:
    """Returns memory of the current device for work on the current stream, as a `cupy.cuda.MemoryPointer`."""
    import cupy

    device = cupy.cuda.runtime.getDevice()
    try:
        address = _memory.allocate(device, size, _current_stream(device))
    except _memory.DeviceMemoryError as error:
        refused = cupy.cuda.memory.OutOfMemoryError(size, _memory.in_use(device))
        refused.args = (f"{refused} {error}",)
        raise refused from error
    owner = _Block(address, device) if address else None
    return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(address, size, owner, device), 0)

"""seamalloc as CuPy's allocator: the same memory and limit as PyTorch's, where that has it too.

    import cupy, seamalloc.cupy
    seamalloc.cupy.enable(memory_limit="20GiB")

Memory is for work on CuPy's current stream, and freed under the one that is current then. What CuPy's own pool holds is not
touched: enable before arrays are made, or call `cupy.get_default_memory_pool().free_all_blocks()`.
"""

from __future__ import annotations

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
    if not hasattr(cupy.cuda, "PythonFunctionAllocator"):
        raise LibraryError("version", NAME, f"CuPy {cupy.__version__} is too old", "Install CuPy 12 or newer")
    return cupy


def enable(**options: object) -> None:
    """Makes it CuPy's allocator, in all threads, for what is allocated from now on. Options are those of
    `seamalloc.enable`. Raises `LibraryError`, and `OptionError` for options that cannot be read."""
    cupy = _cupy()
    _memory.begin(NAME, options)
    cupy.cuda.set_allocator(allocator().malloc)


def enabled() -> bool:
    """Whether it is CuPy's allocator, in this thread."""
    current = getattr(_cupy().cuda.get_allocator(), "__self__", None)
    return current is not None and current is _allocator


_allocator: Any = None


def allocator() -> Any:
    """CuPy's object for it: `with cupy.cuda.using_allocator(seamalloc.cupy.allocator().malloc)`."""
    global _allocator
    if _allocator is None:
        _allocator = _cupy().cuda.PythonFunctionAllocator(_malloc, _free)
    return _allocator


def _malloc(size: int, device: int) -> int:
    import cupy

    try:
        return _memory.allocate(device, size, cupy.cuda.get_current_stream(device).ptr)
    except _memory.DeviceMemoryError as error:
        refused = cupy.cuda.memory.OutOfMemoryError(size, _memory.in_use(device))
        refused.args = (f"{refused} {error}",)
        raise refused from error


def _free(address: int, device: int) -> None:
    import cupy

    _memory.free(device, address, cupy.cuda.get_current_stream(device).ptr)

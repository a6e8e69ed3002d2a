"""seamalloc as the allocator of the memory that Triton's kernels need besides their arguments (`triton.set_allocator`):
tensor descriptors made on the device, and scratch memory.

    import triton, seamalloc.triton
    seamalloc.triton.enable()

Triton keeps the allocator in a context variable. Call `enable` in each thread that launches such kernels.
"""

from __future__ import annotations

from typing import Any

from . import _memory
from ._unavailable import LibraryError

NAME = "Triton"
# The alignment of the allocator's addresses, in bytes.
ALIGNMENT = 512


def enable(**options: object) -> None:
    """Makes seamalloc Triton's allocator in this thread. Takes the options of `seamalloc.enable`. Raises
    `LibraryError`, and `OptionError` for options that cannot be read."""
    try:
        import triton
    except ImportError as error:
        raise _memory.missing(NAME, error, "triton") from error
    if not hasattr(triton, "set_allocator"):
        version = getattr(triton, "__version__", "")
        raise LibraryError("version", NAME, f"Triton {version} is too old", "Install Triton 3.2 or newer")
    _memory.begin(NAME, options)
    triton.set_allocator(allocate)


class Buffer:
    """Memory for one launch. After Triton drops the buffer, later work on the launch's stream can use the memory."""

    def __init__(self, device: int, size: int, stream: int) -> None:
        self._device, self._stream = device, stream
        self._address = 0
        self._address = _memory.allocate(device, size, stream)

    def data_ptr(self) -> int:
        """The address of the first byte."""
        return self._address

    def __del__(self) -> None:
        _memory.free(self._device, self._address, self._stream)


def allocate(size: int, alignment: int, stream: int | None) -> Buffer:
    """Returns a buffer. `triton.set_allocator` gets this function."""
    if alignment > ALIGNMENT:
        raise ValueError(f"Triton asks for memory at a multiple of {alignment}; at most {ALIGNMENT} can be had")
    return Buffer(_current_device(), size, stream or 0)


def _current_device() -> int:
    from triton.runtime import driver

    return int(driver.active.get_current_device())

"""Memory that grows in place. All addresses are reserved at once, and physical memory is mapped as the memory grows.

    cache = seamalloc.growing_tensor((1_000_000, 8, 128), torch.bfloat16)
    cache.grow(1000)             # rows; nothing is copied, and cache.tensor.data_ptr() stays
    cache.tensor[-1] = key

`reserve` returns such memory as bytes, without PyTorch.
"""

from __future__ import annotations

import operator
import sys
from ctypes import byref, c_size_t, c_void_p
from typing import Any, Sequence

from . import _memory
from ._devices import Device, current_device
from ._library import check, library, plugged
from ._tags import pool_of


class Growing:
    """Memory of a device that grows and shrinks without changing its address. Sizes are in bytes. The memory is freed
    with its last reference, on PyTorch's current stream if PyTorch is in use."""

    def __init__(self, capacity: int, device: Device = None, *, tag: str | None = None, stream: int | None = None) -> None:
        self._address = 0
        self.device = current_device(device)
        self.stream = _memory.stream_of(_current_stream(self.device) if stream is None else operator.index(stream))
        self._handle = plugged(self.device)
        if self.stream != 0:
            # The stream's owner may destroy it without notice.
            check(library.seam_set_borrowed(self._handle, self.stream))
        address = c_void_p()
        arguments = (_size(capacity), self.stream, byref(address))
        if tag is None:
            check(library.seam_reserve(self._handle, *arguments))
        else:
            check(library.seam_pool_reserve(self._handle, pool_of(tag, self.device), *arguments))
        self._address = address.value or 0
        _memory.keep(self.device, self._handle)

    @property
    def address(self) -> int:
        """The first address, which never changes; 0 after `free`."""
        return self._address

    @property
    def size(self) -> int:
        """The bytes in use: the size that the last `grow` or `shrink` set."""
        return self._extent()[0]

    @property
    def mapped(self) -> int:
        """The bytes with physical memory. Growing up to this size calls no driver."""
        return self._extent()[1]

    @property
    def capacity(self) -> int:
        """The bytes of reserved addresses."""
        return self._extent()[2]

    def _extent(self) -> tuple[int, int, int]:
        size, mapped, capacity = c_size_t(), c_size_t(), c_size_t()
        check(library.seam_extent(self._handle, self._address, byref(size), byref(mapped), byref(capacity)))
        return size.value, mapped.value, capacity.value

    def grow(self, size: int) -> None:
        """Makes at least the first `size` bytes usable, and keeps their contents. Raises `OutOfMemory` and changes
        nothing if there is too little memory."""
        check(library.seam_grow(self._handle, self._address, _size(size)))

    def shrink(self, size: int) -> None:
        """Gives back memory after the first `size` bytes, in whole chunks, once the streams that use the memory have
        passed."""
        check(library.seam_shrink(self._handle, self._address, _size(size)))

    def record_stream(self, stream: Any) -> None:
        """Notes that work on `stream` uses the memory. `stream` is a handle or one of PyTorch's streams. Memory that is
        freed later waits for this stream too."""
        handle = _memory.stream_of(int(getattr(stream, "cuda_stream", stream)))
        check(library.seam_record_stream(self._handle, self._address, handle))

    def free(self) -> None:
        """Frees the memory now. No tensor over the memory may be used any more."""
        address, self._address = self._address, 0
        if address:
            _memory.free(self.device, address, _current_stream(self.device))

    def __del__(self, is_finalizing: Any = sys.is_finalizing) -> None:
        # At the end of the interpreter, modules may be gone, and the process's memory is freed anyway.
        if not is_finalizing() and getattr(self, "_address", 0):
            self.free()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Describes all addresses as bytes. Only addresses with physical memory may be used."""
        return {
            "shape": (self.capacity,),
            "typestr": "|u1",
            "data": (self._address, False),
            "strides": None,
            "version": 3,
            "stream": None,
        }


class GrowingTensor:
    """A tensor of PyTorch whose first dimension grows in place, up to the first dimension of `shape`. The tensor's
    storage covers all reserved addresses. `tensor` is the part with physical memory: a new view after each change,
    always at the same `data_ptr()`."""

    def __init__(
        self, shape: Sequence[int], dtype: Any = None, device: Device = None, *, rows: int = 0, tag: str | None = None
    ) -> None:
        import torch

        self.shape = tuple(operator.index(size) for size in shape)
        if not self.shape or min(self.shape) < 1:
            raise ValueError(f"shape is {tuple(shape)!r}; expected sizes of at least 1, the first of which is the capacity")
        self.dtype = dtype or torch.get_default_dtype()
        row = self.dtype.itemsize
        for size in self.shape[1:]:
            row *= size
        self.row_bytes: int = row
        self.memory = Growing(self.shape[0] * row, device, tag=tag)
        # PyTorch looks up the memory at the address, so some memory must be mapped.
        self.memory.grow(max(rows, 1) * row)
        whole = torch.as_tensor(self.memory, device=torch.device("cuda", self.memory.device))
        self._whole = whole.view(self.dtype).view(self.shape)
        self._rows = operator.index(rows)

    @property
    def tensor(self) -> Any:
        """The rows in use, as a tensor."""
        return self._whole[: self._rows]

    def __len__(self) -> int:
        return self._rows

    def grow(self, rows: int) -> Any:
        """Grows to at least `rows` rows. The values of new rows are undefined. Returns `tensor`. Raises `OutOfMemory`
        and changes nothing if there is too little memory."""
        self.memory.grow(operator.index(rows) * self.row_bytes)
        self._rows = max(self._rows, rows)
        return self.tensor

    def append(self, more: Any) -> Any:
        """Adds rows after the rows in use, by a copy on PyTorch's current stream. The result is that of `torch.cat`.
        Returns `tensor`."""
        before = self._rows
        self.grow(before + len(more))
        self._whole[before : self._rows].copy_(more)
        return self.tensor

    def shrink(self, rows: int) -> Any:
        """Gives back the memory after the first `rows` rows. Tensors that include later rows may not be used any more.
        Returns `tensor`."""
        rows = operator.index(rows)
        # The first chunk stays, so that PyTorch finds memory at the address.
        self.memory.shrink(max(rows, 1) * self.row_bytes)
        self._rows = min(self._rows, rows)
        return self.tensor


def reserve(capacity: int, device: Device = None, *, tag: str | None = None, stream: int | None = None) -> Growing:
    """Reserves addresses for `capacity` bytes, without physical memory; `grow` maps memory. `tag` is the name of a
    `seamalloc.tag`: the memory sleeps and wakes with the tag. `stream` is the handle of the stream that uses the
    memory, PyTorch's current stream by default."""
    return Growing(capacity, device, tag=tag, stream=stream)


def growing_tensor(
    shape: Sequence[int], dtype: Any = None, device: Device = None, *, rows: int = 0, tag: str | None = None
) -> GrowingTensor:
    """Returns a tensor whose first dimension grows in place from `rows` up to `shape[0]`."""
    return GrowingTensor(shape, dtype, device, rows=rows, tag=tag)


def _size(size: int) -> int:
    if isinstance(size, bool) or not 0 <= operator.index(size) < 1 << 63:
        raise ValueError(f"{size!r} is no size; expected a number of bytes")
    return operator.index(size)


def _current_stream(device: int) -> int:
    torch = sys.modules.get("torch")
    if torch is None or _memory.is_simulated() or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.current_stream(device).cuda_stream)

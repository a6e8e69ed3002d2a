"""Memory that the CPU and streams use, such as page-locked memory. A pool of such memory is cached, split, merged and
stitched, and needs no PyTorch."""

from __future__ import annotations

import ctypes
import operator
import os
import weakref
from ctypes import byref, c_uint64, c_void_p
from types import TracebackType
from typing import Any, Callable

from ._devices import Stream, stream_on
from ._library import check, library, read_json
from ._options import join

# The type of a byte for NumPy and similar libraries.
_BYTES = "|u1"


class HostPool:
    """A cache of memory that the CPU and streams use at the same addresses.

        with seamalloc.HostPool("pinned:0", memory_limit="8GiB") as pool:
            block = pool.allocate(100 << 20)
            array = numpy.frombuffer(block.view(), dtype=numpy.float32)
            ...                          # the CPU writes, and a copy is given to a stream
            block.record_stream(stream)  # each stream that uses it
            block.free()                 # or drop the last reference to the block and its views

    `device` is page-locked memory ("pinned:0", "pinned:0,node=1") or, on machines without a GPU, host memory
    ("host:4GiB"). The options are those of the library except `guard`, `spill` and `split:ungated`: with these, the
    device reads or writes contents on streams. Sizes are in bytes. Addresses are multiples of 512.

    Page-locked memory serves copies from and to the GPU that `device` names ("pinned:0": GPU 0). `enable_peer_access`
    adds further GPUs.

    A freed block can be reused after every stream that was named for it has passed the work that it was given before
    the free."""

    def __init__(self, device: str = "pinned:0", **options: object) -> None:
        handle = c_uint64()
        check(library.seam_create(device.encode(), join("", options).encode(), byref(handle)))
        self._handle = handle.value
        # A forked process must not destroy the pool at its end.
        self._end = weakref.finalize(self, _destroy, self._handle, os.getpid())

    def allocate(self, size: int) -> HostBlock:
        """Returns a block of `size` bytes with undefined contents. Raises `OutOfMemory`."""
        return self._allocate(size, HostPool._free)

    def _allocate(self, size: int, release: Callable[[HostPool, int, int], None]) -> HostBlock:
        """Returns a block that `release` frees. `release` is called with the pool, the address and the id of the
        process that owns the block."""
        size = operator.index(size)
        if not 0 < size < 1 << 63:
            raise ValueError(f"size is {size}; expected a number of bytes above 0")
        address = c_void_p()
        check(library.seam_host_malloc(self._handle, size, byref(address)))
        return HostBlock(self, int(address.value or 0), size, release)

    def _free(self, address: int, owner: int) -> None:
        # A forked child has copies of its parent's blocks, and does not own their memory. Blocks of a closed pool, or
        # of a driver that has ended, cannot be freed.
        if os.getpid() == owner:
            library.seam_free(self._handle, address)

    def free(self, block: HostBlock) -> None:
        """Frees the block, as `block.free()` does."""
        block.free()

    def enable_peer_access(self, device: int) -> None:
        """Lets the device with this number use the pool's present and future memory."""
        check(library.seam_enable_peer_access(self._handle, device))

    def stats(self) -> dict[str, Any]:
        """Returns the pool's statistics, with the keys of `seamalloc.stats`."""
        found: dict[str, Any] = read_json(library.seam_stats_json, self._handle)
        return found

    def trim(self, size: int | None = None) -> int:
        """Gives `size` bytes of free memory back to the machine; all free memory if `size` is None. Returns the bytes
        given back."""
        given = c_uint64()
        if size is None:
            check(library.seam_empty_cache(self._handle, byref(given)))
        else:
            check(library.seam_trim(self._handle, operator.index(size), byref(given)))
        return given.value

    def close(self) -> None:
        """Ends the pool, after waiting for the streams that still use its free memory. Live blocks stay valid, and
        their memory is lost until the process ends."""
        if self._end.detach() is not None:
            check(library.seam_destroy(self._handle))

    def __enter__(self) -> HostPool:  # noqa: PYI034 - typing has Self from Python 3.11 on
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class HostBlock:
    """A block of a `HostPool`: `address`, `size`, and views of its bytes. The block is freed by `free()`, or when it
    and its views have no references left. NumPy's `asarray(block)` is a view too."""

    def __init__(self, pool: HostPool, address: int, size: int, release: Callable[[HostPool, int, int], None]) -> None:
        self.pool = pool
        self.address = address
        self.size = size
        # Views keep this object alive. The pool lives at least as long as the object.
        self._bytes: Any = (ctypes.c_ubyte * size).from_address(address)
        self._free = weakref.finalize(self._bytes, release, pool, address, os.getpid())
        self._free.atexit = False

    def view(self) -> memoryview:
        """The block's bytes, for reading and writing. The view keeps the memory alive."""
        self._check()
        return memoryview(self._bytes).cast("B")

    @property
    def __array_interface__(self) -> dict[str, Any]:
        self._check()
        # NumPy keeps the block alive, and with it the memory.
        return {"shape": (self.size,), "typestr": _BYTES, "data": (self.address, False), "version": 3}

    def record_stream(self, stream: Stream) -> None:
        """Notes that work on `stream`, a `torch.cuda.Stream` or a handle, uses the block. After the free, reuse waits
        for this stream too. Each stream must be named before the free."""
        self._check()
        handle, _ = stream_on(stream, 0)
        check(library.seam_record_stream(self.pool._handle, self.address, handle))

    def free(self) -> None:
        """Frees the block now. The CPU must not use its views any more; named streams may still use the memory. A
        second call is an error."""
        self._check()
        self._free.detach()
        check(library.seam_free(self.pool._handle, self.address))

    def _check(self) -> None:
        if not self._free.alive:
            raise ValueError(f"the block at {self.address:#x} was freed")

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        state = "" if self._free.alive else ", freed"
        return f"<HostBlock of {self.size} bytes at {self.address:#x}{state}>"


def _destroy(handle: int, owner: int) -> None:
    if os.getpid() == owner:
        library.seam_destroy(handle)

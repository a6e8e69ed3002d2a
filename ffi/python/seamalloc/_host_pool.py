"""Memory that the CPU and streams use, such as page-locked memory: cached, split, merged and stitched. Without PyTorch."""

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

# The type of bytes for NumPy and similar libraries.
_BYTES = "|u1"


class HostPool:
    """A cache of memory that the CPU and streams use at the same addresses.

        with seamalloc.HostPool("pinned:0", memory_limit="8GiB") as pool:
            block = pool.allocate(100 << 20)
            array = numpy.frombuffer(block.view(), dtype=numpy.float32)
            ...                          # the CPU writes, and a copy is given to a stream
            block.record_stream(stream)  # each stream that uses it
            block.free()                 # or its last reference, and that of its views, goes

    `device` is page-locked memory ("pinned:0", "pinned:0,node=1"), or, on machines without a GPU, host memory
    ("host:4GiB"). Options are the library's, but for `guard`, `spill` and `split:ungated`, which use contents in the
    order of streams. Sizes are bytes; addresses are multiples of 512.

    Page-locked memory is for copies of the device that is named; `enable_peer_access` names others.

    A freed block serves again once every stream that was named for it has passed all that it was given until the free."""

    def __init__(self, device: str = "pinned:0", **options: object) -> None:
        handle = c_uint64()
        check(library.seam_create(device.encode(), join("", options).encode(), byref(handle)))
        self._handle = handle.value
        # A forked process must not destroy the pool at its end.
        self._end = weakref.finalize(self, _destroy, self._handle, os.getpid())

    def allocate(self, size: int) -> HostBlock:
        """`size` bytes, with whatever was there before. Raises `OutOfMemory`."""
        return self._allocate(size, HostPool._free)

    def _allocate(self, size: int, release: Callable[[HostPool, int, int], None]) -> HostBlock:
        """A block that is given back by `release`: called with the pool, the address and the process that it is of."""
        size = operator.index(size)
        if not 0 < size < 1 << 63:
            raise ValueError(f"size is {size}; expected a number of bytes above 0")
        address = c_void_p()
        check(library.seam_host_malloc(self._handle, size, byref(address)))
        return HostBlock(self, int(address.value or 0), size, release)

    def _free(self, address: int, owner: int) -> None:
        # A forked child has copies of its parent's blocks, which are not its memory. Blocks of a pool that was closed,
        # or whose driver has ended, cannot be freed.
        if os.getpid() == owner:
            library.seam_free(self._handle, address)

    def free(self, block: HostBlock) -> None:
        """Frees a block, as `block.free()` does."""
        block.free()

    def enable_peer_access(self, device: int) -> None:
        """Lets the device with this number use the pool's memory too: what it holds, and what it will get."""
        check(library.seam_enable_peer_access(self._handle, device))

    def stats(self) -> dict[str, Any]:
        """Returns the pool's statistics, with the keys of `seamalloc.stats`."""
        found: dict[str, Any] = read_json(library.seam_stats_json, self._handle)
        return found

    def trim(self, size: int | None = None) -> int:
        """Gives `size` bytes of free memory back to the machine, or all that can be. Returns the bytes given back."""
        given = c_uint64()
        if size is None:
            check(library.seam_empty_cache(self._handle, byref(given)))
        else:
            check(library.seam_trim(self._handle, operator.index(size), byref(given)))
        return given.value

    def close(self) -> None:
        """Ends the pool, after a wait for the streams that still use some of what is free. Blocks that were not freed stay
        valid, and their memory is lost until the process ends."""
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
    """Memory of a `HostPool`: `address`, `size`, and views of its bytes. It is freed by `free()`, or when nothing refers to
    it or to one of its views any more. NumPy's `asarray(block)` is a view too."""

    def __init__(self, pool: HostPool, address: int, size: int, release: Callable[[HostPool, int, int], None]) -> None:
        self.pool = pool
        self.address = address
        self.size = size
        # The object that views keep alive. The pool lives at least as long.
        self._bytes: Any = (ctypes.c_ubyte * size).from_address(address)
        self._free = weakref.finalize(self._bytes, release, pool, address, os.getpid())
        self._free.atexit = False

    def view(self) -> memoryview:
        """Returns the block's bytes, to be read and written. The view keeps the memory."""
        self._check()
        return memoryview(self._bytes).cast("B")

    @property
    def __array_interface__(self) -> dict[str, Any]:
        self._check()
        # NumPy keeps the block itself alive, and so the memory.
        return {"shape": (self.size,), "typestr": _BYTES, "data": (self.address, False), "version": 3}

    def record_stream(self, stream: Stream) -> None:
        """Says that work given to `stream`, a `torch.cuda.Stream` or a handle, uses the block: once freed, it waits for
        that stream too. Each stream must be named before the free."""
        self._check()
        handle, _ = stream_on(stream, 0)
        check(library.seam_record_stream(self.pool._handle, self.address, handle))

    def free(self) -> None:
        """Frees the block now. The CPU must not use its views any more; streams that were named may. A second call is an error."""
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

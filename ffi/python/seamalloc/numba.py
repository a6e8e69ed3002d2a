"""seamalloc as Numba's allocator on CUDA (numba-cuda, a plug-in for External Memory Management). If PyTorch uses
seamalloc too, both share the same memory and limit.

    NUMBA_CUDA_MEMORY_MANAGER=seamalloc.numba python program.py

or, before Numba uses CUDA, `seamalloc.numba.enable(memory_limit="20GiB")`.

Numba does not name the streams that use an array. So the memory of a new array has no pending use on any
stream. A freed array is kept until the device has been idle once. The wait for an idle device comes after as many frees
as Numba keeps (`NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT`, 10), or when another request needs the memory.
"""

from __future__ import annotations

import atexit
import ctypes
from typing import Any

from . import _memory
from ._library import check, library, plugged
from ._unavailable import LibraryError

NAME = "Numba"
PRESSURE = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p)


def enable(**options: object) -> None:
    """Makes seamalloc Numba's allocator on CUDA, until the process ends. Takes the options of `seamalloc.enable`.
    Raises `LibraryError`, also if Numba has used CUDA with its own allocator already, and `OptionError` for options
    that cannot be read."""
    driver = _driver()
    chosen = driver._memory_manager
    if chosen is not None and chosen is not _manager_class():
        raise LibraryError(
            "too-late",
            NAME,
            f"Numba has used CUDA already, with {chosen.__name__}",
            "Call seamalloc.numba.enable() before that, or set NUMBA_CUDA_MEMORY_MANAGER=seamalloc.numba",
        )
    _memory.begin(NAME, options)
    driver.set_memory_manager(_manager_class())


def _driver() -> Any:
    try:
        from numba import cuda
        from numba.cuda.cudadrv import driver
    except ImportError as error:
        raise _memory.missing(NAME, error, "numba-cuda[cu13]") from error
    if not hasattr(cuda, "HostOnlyCUDAMemoryManager"):
        raise LibraryError("version", NAME, "this Numba has no External Memory Management", "pip install numba-cuda[cu13]")
    return driver


_class: Any = None


def _manager_class() -> Any:
    global _class
    if _class is None:
        _class = _make(_driver())
    return _class


def _make(driver: Any) -> Any:
    class SeamallocNumbaManager(driver.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
        """Memory of one context of Numba, which is the primary context of its device."""

        interface_version = 1
        _idle: Any = None

        def initialize(self) -> None:
            """Prepares the context. Numba calls the method at every use of the context, and only the first call has an
            effect."""
            if self._idle is not None:
                return
            # A context of another library uses CUDA's own name for its device.
            found = self.context.device
            device = int(getattr(found, "id", found))
            self.deallocations.memory_capacity = _memory.memory_info(device)[1]
            self._freed: list[int] = []
            self._idle = _memory.Idle(device)
            # The function is kept alive, since the library calls it until the interpreter ends.
            self._flush = PRESSURE(lambda pressure, user: self._free_pending())
            number = ctypes.c_uint64()
            check(library.seam_on_memory_pressure(plugged(device), self._flush, None, ctypes.byref(number)))
            atexit.register(library.seam_remove_memory_callback, plugged(device), number.value)

        def memalloc(self, size: int) -> Any:
            self.initialize()
            try:
                address = self._idle.allocate(size)
            except _memory.DeviceMemoryError as error:
                code = driver.binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY
                raise driver.CudaAPIError(code, str(error)) from error
            pending, free = self.deallocations, self._free
            pointer = ctypes.c_void_p(address)
            return driver.MemoryPointer(
                self.context, pointer, size, finalizer=lambda: pending.add_item(free, address, size)
            )

        def _free(self, address: int) -> None:
            """Frees the memory of a dead array. The last array of a batch waits for the device."""
            self._freed.append(address)
            if len(self.deallocations) == 0:
                # Blocks that other threads add from here on are not included.
                batch, self._freed = self._freed, []
                _memory.synchronize(self._idle.device)
                for freed in batch:
                    self._idle.free(freed)

        def _free_pending(self) -> bool:
            had = len(self.deallocations)
            self.deallocations.clear()
            return len(self.deallocations) < had

        def reset(self) -> None:
            """Prepares for a reset of the device (`cuda.close()`), which also frees the memory of all other libraries
            on the device."""
            super().reset()
            if self._idle is not None:
                self._idle.forget()
                check(library.seam_empty_cache(plugged(self._idle.device), None))

        def get_memory_info(self) -> Any:
            self.initialize()
            return driver.MemoryInfo(*_memory.memory_info(self._idle.device))

        def get_ipc_handle(self, memory: Any) -> Any:
            raise LibraryError(
                "ipc",
                NAME,
                "memory that is mapped piece by piece has no handle of cuIpcGetMemHandle",
                "Copy it into a PyTorch tensor, which seamalloc shares between processes, or allocate it without seamalloc.numba",
            )

    return SeamallocNumbaManager


def __getattr__(name: str) -> Any:
    # Numba reads this attribute. Importing this module needs no Numba.
    if name == "_numba_memory_manager":
        _memory.begin(NAME, {})
        return _manager_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

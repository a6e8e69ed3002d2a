"""seamalloc as Numba's allocator on CUDA (numba-cuda, a plug-in for External Memory Management): the same memory and limit as
PyTorch's, where that has it too.

    NUMBA_CUDA_MEMORY_MANAGER=seamalloc.numba python program.py

or, before Numba uses CUDA, `seamalloc.numba.enable(memory_limit="20GiB")`.

Numba does not say which stream will use an array, nor which has used it. So a new array has no pending use on any stream, and
a freed one is kept until the device is idle once: after as many as Numba keeps before it frees any (`NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT`,
10), or when another request needs them.
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
    """Makes seamalloc Numba's allocator on CUDA, until the process ends. Options are those of `seamalloc.enable`. Raises
    `LibraryError`, once Numba has used CUDA with its own too, and `OptionError` for options that cannot be read."""
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
        """Memory of one context of Numba's, which is the primary one of its device."""

        interface_version = 1
        _idle: Any = None

        def initialize(self) -> None:
            """Prepares the memory at the first use of the context."""
            if self._idle is not None:
                return
            # A context of other libraries has CUDA's own name for its device.
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
            """Numba ends the life of an array. The last of those that it ends at once waits for the device."""
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
            """Numba is about to reset the device (`cuda.close()`), and with it what all libraries hold there."""
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
    # Numba reads this attribute; importing this module needs no Numba.
    if name == "_numba_memory_manager":
        _memory.begin(NAME, {})
        return _manager_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Stand-ins for CuPy, Numba, RMM, cuda.core and Triton: what seamalloc's modules look at and what calls them, so that they are
tested where the libraries, or a GPU, are missing."""

from pathlib import Path

# Arrays are MemoryPointers; `current` is the current stream.
CUPY = """
import os, types
__version__ = os.environ.get("STAND_IN_VERSION", "14.2.0")
current = types.SimpleNamespace(ptr=0)

class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id):
        self.ptr, self.size, self._owner, self.device_id = ptr, size, owner, device_id

class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset

class OutOfMemoryError(MemoryError):
    def __init__(self, size, total):
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes).")

_allocator = None
def set_allocator(allocator):
    global _allocator
    _allocator = allocator

cuda = types.SimpleNamespace(
    UnownedMemory=UnownedMemory, MemoryPointer=MemoryPointer,
    memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    runtime=types.SimpleNamespace(is_hip="STAND_IN_HIP" in os.environ, getDevice=lambda: 0),
    get_current_stream=lambda device: current,
    set_allocator=set_allocator, get_allocator=lambda: _allocator,
)
def empty(size):
    return _allocator(size)
"""

RMM = """
import os, types
__version__ = os.environ.get("STAND_IN_VERSION", "26.10.0")

class CallbackMemoryResource:
    def __init__(self, allocate, deallocate):
        self.allocate, self.deallocate = allocate, deallocate

class Stream:
    def __init__(self, handle):
        self.handle = handle
    def __cuda_stream__(self):
        return (0, self.handle)

_resources = {}
mr = types.SimpleNamespace(
    set_per_device_resource=_resources.__setitem__, get_per_device_resource=_resources.get,
    **({} if "STAND_IN_OLD" in os.environ else {"CallbackMemoryResource": CallbackMemoryResource}),
)
"""

CUDA_CORE = """
import os
__version__ = os.environ.get("STAND_IN_VERSION", "1.2.0")

class MemoryResource:
    pass

class Stream:
    def __init__(self, handle, is_building=False):
        self.handle, self.is_building = handle, is_building
    def __cuda_stream__(self):
        return (0, self.handle)

class Buffer:
    @classmethod
    def from_handle(cls, ptr, size, mr=None, **more):
        if "BUFFER_FAILS" in os.environ:
            raise RuntimeError("no buffer")
        if more and "STAND_IN_OLD" in os.environ:
            raise TypeError("from_handle() got an unexpected keyword argument")
        found = cls()
        found.handle, found.size, found._mr, found._stream = ptr, size, mr, more.get("stream")
        return found
    def close(self, stream=None):
        self._mr.deallocate(self.handle, self.size, stream=stream or self._stream)

if "STAND_IN_TOO_OLD" not in os.environ:
    class Device:
        _resources = {}
        def __init__(self, device=0):
            self.device = device
        def _set(self, resource):
            self._resources[self.device] = resource
        memory_resource = property(lambda self: self._resources.get(self.device), _set)
        def allocate(self, size, stream):
            return self.memory_resource.allocate(size, stream=stream)
"""

TRITON = """
import os, types
__version__ = os.environ.get("STAND_IN_VERSION", "3.6.0")
allocator = None
if "STAND_IN_OLD" not in os.environ:
    def set_allocator(function):
        global allocator
        allocator = function
"""
TRITON_RUNTIME = """
import types
driver = types.SimpleNamespace(active=types.SimpleNamespace(get_current_device=lambda: 0))
"""

# Numba's own counts, with its default of ten frees that are kept.
NUMBA_CUDA = "from .cudadrv.driver import HostOnlyCUDAMemoryManager\n"
NUMBA_DRIVER = """
import collections, types, weakref
_memory_manager = None
def set_memory_manager(manager):
    global _memory_manager
    _memory_manager = manager

class CudaAPIError(Exception):
    pass

MemoryInfo = collections.namedtuple("MemoryInfo", "free total")
binding = types.SimpleNamespace(CUresult=types.SimpleNamespace(CUDA_ERROR_OUT_OF_MEMORY=2))

class Pending:
    def __init__(self):
        self.items, self.memory_capacity, self.is_deferred = [], 0, False
    def __len__(self):
        return len(self.items)
    def add_item(self, free, handle, size=0):
        self.items.append((free, handle, size))
        if len(self.items) > 10 or sum(item[2] for item in self.items) > 0.2 * self.memory_capacity:
            self.clear()
    def clear(self):
        while self.items and not self.is_deferred:
            free, handle, _ = self.items.pop(0)
            free(handle)

class HostOnlyCUDAMemoryManager:
    def __init__(self, context):
        self.context, self.deallocations = context, Pending()
    def reset(self):
        self.deallocations.clear()

class MemoryPointer:
    def __init__(self, context, pointer, size, finalizer):
        self.device_pointer, self.size = pointer, size
        self.value = pointer.value
        weakref.finalize(self, finalizer)

class CUdevice:
    # What CUDA calls a device, where others made the context.
    def __int__(self):
        return 0

def manager(device=types.SimpleNamespace(id=0)):
    return _memory_manager(types.SimpleNamespace(device=device))
"""

FILES = {
    "cupy": {"cupy/__init__.py": CUPY},
    "rmm": {"rmm/__init__.py": RMM, "rmm/_cuda/__init__.py": "", "rmm/_cuda/gpu.py": "getDeviceCount = lambda: 2\n"},
    "cuda_core": {"cuda/core/__init__.py": CUDA_CORE},
    "triton": {"triton/__init__.py": TRITON, "triton/runtime.py": TRITON_RUNTIME},
    "numba": {
        "numba/__init__.py": "",
        "numba/cuda/__init__.py": NUMBA_CUDA,
        "numba/cuda/cudadrv/__init__.py": "",
        "numba/cuda/cudadrv/driver.py": NUMBA_DRIVER,
    },
}


def make(folder, *names):
    """Writes stand-ins to a folder that is to be at the head of Python's path."""
    for name in names:
        for path, text in FILES[name].items():
            file = Path(folder) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

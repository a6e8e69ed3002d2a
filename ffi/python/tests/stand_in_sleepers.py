"""Stand-ins for vLLM's sleep-mode backends and for PyTorch's graphs, written to a folder.

vLLM's contract is that of `vllm.device_allocator.sleep_mode_backend` in November 2026: the base class, the factory, and the worker's
use of both.
"""

from pathlib import Path

BACKENDS = '''
import importlib
from abc import ABC, abstractmethod

class SleepModeBackend(ABC):
    def __init__(self):
        self._state = "RUNNING"
    @abstractmethod
    def suspend(self, level=1): ...
    @abstractmethod
    def resume(self, tags=None): ...
    def state(self):
        return self._state
    def discard(self, tags):
        raise RuntimeError("no selective discard")
    @classmethod
    def is_supported(cls): return True
    @classmethod
    def preserves_communicators(cls): return False
    @classmethod
    def preserves_compiled_artifacts(cls): return False
    @classmethod
    def preserves_graphs_with_communicators(cls): return False
    @classmethod
    def supports_durable_storage(cls): return False

class SleepModeBackendFactory:
    _registry = {}
    @classmethod
    def register_backend(cls, name, module_path, class_name):
        if name in cls._registry:
            raise ValueError(f"Sleep-mode backend '{name}' is already registered.")
        cls._registry[name] = lambda: getattr(importlib.import_module(module_path), class_name)
    @classmethod
    def create_backend(cls, model_config):
        backend = cls._registry[model_config.sleep_mode_backend]()
        if not backend.is_supported():
            raise ValueError("not supported on this platform")
        return backend()
'''

CUMEM = '''
class CuMemAllocator:
    instance = None
    @staticmethod
    def get_instance():
        if CuMemAllocator.instance is None:
            CuMemAllocator.instance = CuMemAllocator()
        return CuMemAllocator.instance
'''

ALLOCATORS = '''
def get_mem_allocator_instance():
    from vllm.device_allocator.cumem import CuMemAllocator
    return CuMemAllocator.get_instance()
'''

# What a worker does with them, in its own order.
WORKER = '''
import types
from vllm.device_allocator import get_mem_allocator_instance
from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

class Worker:
    def __init__(self, backend):
        self.model_config = types.SimpleNamespace(sleep_mode_backend=backend)
        self._backend = None
    def backend(self):
        if self._backend is None:
            self._backend = SleepModeBackendFactory.create_backend(self.model_config)
        return self._backend
    def pool(self, tag):
        allocator = get_mem_allocator_instance()
        if tag == "weights":
            assert allocator.get_current_usage() == 0
        return allocator.use_memory_pool(tag=tag)
    def sleep(self, level=1):
        self.backend().suspend(level)
    def wake_up(self, tags=None):
        self.backend().resume(tags)
'''

TORCH = '''
import types
version = types.SimpleNamespace(cuda="13.0")
__version__ = "0.1"
class Graphs:
    """`torch.cuda.graph`: allocates from its pool while it lasts."""
    def __init__(self, graph, pool=None, stream=None, capture_error_mode="global"):
        self.pool = pool
    def __enter__(self):
        import seamalloc._library as l
        self.of = l.Pool(*self.pool)
        l.check(l.library.seam_pool_begin_thread(l.plugged(0), self.of, 0))
    def __exit__(self, *error):
        import seamalloc._library as l
        l.check(l.library.seam_pool_end(l.plugged(0), self.of))
cuda = types.SimpleNamespace(
    is_initialized=lambda: False, current_device=lambda: 0, graph_pool_handle=lambda: (17, 0), graph=Graphs,
)
'''

FILES = {
    "vllm": {
        "vllm/__init__.py": "__version__ = '0.30.0'\n",
        "vllm/device_allocator/__init__.py": ALLOCATORS,
        "vllm/device_allocator/cumem.py": CUMEM,
        "vllm/device_allocator/sleep_mode_backend.py": BACKENDS,
        "vllm/worker.py": WORKER,
    },
    "old-vllm": {"vllm/__init__.py": "__version__ = '0.9.1'\n", "vllm/device_allocator/__init__.py": ""},
    "torch": {"torch/__init__.py": TORCH},
}


def make(folder, *names):
    """Writes stand-ins to a folder that is to be at the head of Python's path."""
    for name in names:
        for path, text in FILES[name].items():
            file = Path(folder) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

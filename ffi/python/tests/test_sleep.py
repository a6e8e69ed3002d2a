"""Tags in threads, their callbacks, and the interfaces of vLLM and torch_memory_saver, on the simulated device."""

import tempfile
import unittest
from pathlib import Path

import stand_in_sleepers
from processes import path_with, run_code

import seamalloc

MODULES = ("vllm", "memory_saver", "_sleepers")
HEAD = """
import ctypes, os, sys, threading, seamalloc
from seamalloc import _library, _switch
from seamalloc._library import check, library, plugged
MIB = 1 << 20
def get(size):
    address = ctypes.c_void_p()
    check(library.seam_malloc(plugged(0), size, None, ctypes.byref(address)))
    return address
def held():
    return seamalloc.stats()["reserved_bytes"]["all"]["current"]
def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")
def enable():
    # As if PyTorch had it.
    _switch._enabled, _switch._is_current = "full", lambda: True
"""


class Stand(unittest.TestCase):
    def run_here(self, code, *names, **environment):
        with tempfile.TemporaryDirectory() as folder:
            stand_in_sleepers.make(folder, *names)
            return run_code(HEAD + code, PYTHONPATH=path_with(folder), **environment)


class Tags(Stand):
    def test_threads_share_a_tag_and_one_covers_all_that_have_none(self):
        self.run_here("""
def elsewhere(work):
    thread = threading.Thread(target=work); thread.start(); thread.join()
def of(name):
    return seamalloc.tags()[name]["allocated_bytes"]
def in_cache():
    with seamalloc.tag("cache"):
        get(2 * MIB)
with seamalloc.tag("training", all_threads=True):
    get(4 * MIB)
    elsewhere(lambda: get(8 * MIB))        # a backward pass
    elsewhere(in_cache)
    with seamalloc.tag("training"):
        get(4 * MIB)
    with seamalloc.tag("cache"):
        get(2 * MIB)
elsewhere(lambda: get(16 * MIB))
assert (of("training"), of("cache")) == (16 * MIB, 4 * MIB), seamalloc.tags()
assert seamalloc.sleep("training", pinned=True) == 16 * MIB and held() == 20 * MIB
stats = seamalloc.stats()["sleep"]
assert stats == {"sleeps": 1, "wakes": 0, "asleep_bytes": 16 * MIB, "page_locked_bytes": 16 * MIB}, stats
assert seamalloc.tags()["training"]["asleep_bytes"] == 16 * MIB
assert seamalloc.wake("training") == 16 * MIB
assert seamalloc.release_backups() == 16 * MIB
refused(ValueError, lambda: seamalloc.sleep("training", pinned=True, discard=True))
""")

    def test_callbacks_are_told_and_may_refuse(self):
        out = self.run_here("""
with seamalloc.tag("weights"):
    get(4 * MIB)
told = []
end = seamalloc.on_sleep(lambda *of: told.append(of))
seamalloc.sleep("weights"), seamalloc.wake("weights")
assert told == [(stage, "weights", 4 * MIB) for stage in ("before_sleep", "asleep", "before_wake", "awake")], told
def fails(stage, name, size):
    raise RuntimeError("NCCL does not let go")
stop = seamalloc.on_sleep(fails)
sys.stderr = sys.stdout
error = refused(seamalloc.Error, lambda: seamalloc.sleep("weights"))
assert error.name == "SEAM_STATUS_NOT_SLEEPABLE" and "on_sleep" in str(error), error
assert told[-2:] == [("before_sleep", "weights", 4 * MIB), ("awake", "weights", 4 * MIB)]
stop(), end(), end()
assert seamalloc.sleep("weights") == 4 * MIB and len(told) == 6
""")
        self.assertIn("NCCL does not let go", out)


class Modules(Stand):
    def test_are_thin_and_need_no_library(self):
        for module in MODULES:
            lines = (Path(seamalloc.__file__).parent / f"{module}.py").read_text(encoding="utf-8").splitlines()
            self.assertLess(len(lines), 150, module)
        names = ", ".join(f"seamalloc.{module}" for module in MODULES)
        run_code(f"import sys, {names}; assert not {{'vllm', 'torch', 'torch_memory_saver'}} & set(sys.modules)")


class VLLM(Stand):
    def test_what_is_missing_or_too_old_says_so(self):
        missing = """
import importlib.abc
class Nowhere(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] == "vllm":
            raise ImportError("it is not here")
sys.meta_path.insert(0, Nowhere())
import seamalloc.vllm
error = refused(seamalloc.LibraryError, seamalloc.vllm.register)
assert error.cause == "missing" and "pip install vllm" in str(error), error
refused(AttributeError, lambda: seamalloc.vllm.nothing)
"""
        self.run_here(missing)
        old = """
import seamalloc.vllm
error = refused(seamalloc.LibraryError, seamalloc.vllm.register)
assert error.cause == "version" and "(0.9.1)" in str(error), error
import warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    seamalloc.vllm.plugin()
assert "0.9.1" in str(seen[0].message)
"""
        self.run_here(old, "old-vllm")

    def test_without_the_allocator_it_is_not_supported(self):
        self.run_here(
            """
import seamalloc.vllm
from vllm.worker import Worker
seamalloc.vllm.plugin(), seamalloc.vllm.register()
refused(ValueError, Worker("seamalloc").backend)
from vllm.device_allocator.cumem import CuMemAllocator
assert CuMemAllocator.instance is None
""",
            "vllm",
        )

    def test_a_worker_sleeps_and_wakes(self):
        self.run_here(
            """
import seamalloc.vllm
from vllm.worker import Worker
from vllm.device_allocator.sleep_mode_backend import SleepModeBackend
enable()
seamalloc.vllm.plugin(), seamalloc.vllm.register()
worker = Worker("seamalloc")
with worker.pool("weights"):
    weights = get(10 * MIB)
with worker.pool("kv_cache"):
    cache = get(6 * MIB)
other = get(2 * MIB)
backend = worker.backend()
assert isinstance(backend, SleepModeBackend) and type(backend).__name__ == "SeamallocBackend"
assert backend.preserves_communicators() and backend.preserves_nccl() and not backend.supports_durable_storage()
assert backend.state() == "RUNNING"
stages = []
end = seamalloc.on_sleep(lambda stage, name, size: stages.append((stage, name)))
worker.sleep(1)
assert backend.state() == "SUSPENDED" and held() == 2 * MIB
assert seamalloc.stats()["sleep"]["page_locked_bytes"] == 10 * MIB, "the cache is not kept"
assert stages[:2] == [("before_sleep", "vllm/weights"), ("asleep", "vllm/weights")], stages
worker.wake_up(["weights"])
assert held() == 12 * MIB and backend.state() == "RUNNING"
worker.wake_up()
assert held() == 18 * MIB
backend.discard(("kv_cache",))
assert held() == 12 * MIB and backend.state() == "SUSPENDED"
worker.wake_up(["kv_cache"])
worker.sleep(2)
assert held() == 2 * MIB and seamalloc.vllm.allocator.get_current_usage() == 16 * MIB
worker.wake_up(None)
# One refuses: what fell asleep before it is awake again.
end()
def not_the_cache(stage, name, size):
    assert stage != "before_sleep" or name != "vllm/kv_cache"
end = seamalloc.on_sleep(not_the_cache)
sys.stderr = open(os.devnull, "w")
refused(seamalloc.Error, lambda: worker.sleep(1))
assert held() == 18 * MIB and backend.state() == "RUNNING"
""",
            "vllm",
        )


class MemorySaver(Stand):
    def test_it_is_installed_in_the_place_of_the_real_one(self):
        self.run_here("""
import seamalloc.memory_saver as saver
error = refused(seamalloc.LibraryError, saver.install)
assert error.cause == "too-late" and "seamalloc.enable()" in str(error), error
enable()
import types
sys.modules["torch_memory_saver"] = types.ModuleType("torch_memory_saver")
error = refused(seamalloc.LibraryError, saver.install)
assert "the real one" in str(error), error
del sys.modules["torch_memory_saver"]
saver.install(), saver.install()
from torch_memory_saver import configure_subprocess, torch_memory_saver
with configure_subprocess():
    pass
assert torch_memory_saver.enabled
refused(NotImplementedError, lambda: torch_memory_saver.memory_margin_bytes)
refused(NotImplementedError, lambda: torch_memory_saver.get_cpu_backup(None))
torch_memory_saver.memory_margin_bytes = 1 << 30
assert "memory_limit:" in seamalloc.stats()["options"], seamalloc.stats()["options"]
""")

    def test_regions_pause_and_resume(self):
        self.run_here("""
from seamalloc.memory_saver import torch_memory_saver as saver
with saver.region(tag="weights", enable_cpu_backup=True):
    get(10 * MIB)
    with saver.disable():
        get(2 * MIB)
    get(4 * MIB)
with saver.region("cache"):
    get(6 * MIB)
    with saver.region("weights"):
        get(1 * MIB + 1)
assert held() == 10 * MIB + 2 * MIB + 4 * MIB + 6 * MIB + 2 * MIB, held()
saver.pause("nobody"), saver.resume("nobody")
saver.pause("cache")
assert held() == 18 * MIB
saver.pause("weights")
assert held() == 2 * MIB and seamalloc.stats()["sleep"]["page_locked_bytes"] == 14 * MIB
saver.resume("weights")
assert held() == 18 * MIB
saver.resume()
assert held() == 24 * MIB
saver.pause()
assert held() == 2 * MIB
saver.resume()
refused(RuntimeError, lambda: saver.disable().__enter__())
""")

    def test_the_memory_of_a_graph_pauses_too(self):
        self.run_here(
            """
from seamalloc.memory_saver import torch_memory_saver as saver
for _ in range(2):
    with saver.cuda_graph("graph", tag="graphs"):
        get(4 * MIB)
assert held() == 8 * MIB
saver.pause("graphs")
assert held() == 0
saver.resume("graphs")
assert held() == 8 * MIB
""",
            "torch",
        )


if __name__ == "__main__":
    unittest.main()

"""seamalloc as the allocator of CuPy, Numba, RMM, cuda.core and Triton: with stand-ins for them, on the simulated device."""

import importlib
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import stand_in
import stand_in_libraries
from processes import path_with, run, run_code

import seamalloc

MODULES = ("cupy", "numba", "rmm", "cuda_core", "triton")
HEAD = """
import gc, importlib.util, os, sys, seamalloc
from seamalloc import _memory
MIB = 1 << 20
def live():
    return seamalloc.stats()["allocated_bytes"]["all"]["current"]
def waiting():
    return seamalloc.stats()["active_bytes"]["all"]["current"] - live()
def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")
"""


class Stand(unittest.TestCase):
    names = MODULES

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        stand_in_libraries.make(self.folder, *self.names)

    def run_here(self, code, **environment):
        return run_code(HEAD + code, PYTHONPATH=path_with(self.folder), **environment)


class Modules(unittest.TestCase):
    def test_are_thin(self):
        for module in MODULES:
            lines = (Path(seamalloc.__file__).parent / f"{module}.py").read_text(encoding="utf-8").splitlines()
            self.assertLess(len(lines), 150, module)

    def test_can_be_imported_without_their_libraries(self):
        names = ", ".join(f"seamalloc.{module}" for module in MODULES)
        libraries = ("cupy", "numba", "rmm", "cuda.core", "triton", "torch")
        run_code(f"import sys, {names}; assert not set({libraries}) & set(sys.modules), sys.modules.keys()")


class Refusals(Stand):
    """A request that cannot be met is an error with its cause and a remedy."""

    names = ()

    def refusal(self, module, conf="", **environment):
        code = f"import seamalloc.{module} as m; error = refused(seamalloc.LibraryError, m.enable); print(error.cause); print(error)"
        cause, text = self.run_here(code, conf=conf, **environment).split("\n", 1)
        return cause, text

    def test_a_library_that_is_missing(self):
        # Whatever is installed here.
        for name in ("cupy", "numba", "rmm", "cuda", "triton"):
            (self.folder / f"{name}.py").write_text("raise ImportError('it is not here')\n")
        packages = {
            "cupy": "cupy-cuda13x",
            "numba": "numba-cuda[cu13]",
            "rmm": "rmm-cu13",
            "cuda_core": "cuda-core",
            "triton": "triton",
        }
        for module, package in packages.items():
            cause, text = self.refusal(module)
            self.assertEqual(cause, "missing", text)
            for part in ("it is not here", "cannot be imported", f"pip install {package}"):
                self.assertIn(part, text)

    def test_one_that_is_too_old(self):
        stand_in_libraries.make(self.folder, *MODULES)
        for module, environment, remedy in (
            ("cupy", {"STAND_IN_VERSION": "11.6.0"}, "CuPy 12 or newer"),
            ("cupy", {"STAND_IN_HIP": "1"}, "cupy-cuda13x or cupy-cuda12x"),
            ("rmm", {"STAND_IN_OLD": "1"}, "RMM 22.10 or newer"),
            ("cuda_core", {"STAND_IN_TOO_OLD": "1", "STAND_IN_VERSION": "0.3.2"}, "cuda-core 0.5 or newer"),
            ("triton", {"STAND_IN_OLD": "1", "STAND_IN_VERSION": "3.1.0"}, "Triton 3.2 or newer"),
        ):
            cause, text = self.refusal(module, **environment)
            self.assertEqual(cause, "version", text)
            self.assertIn(remedy, text)

    def test_no_driver(self):
        stand_in_libraries.make(self.folder, *MODULES)
        without = "import ctypes; ctypes.CDLL = lambda *of: (_ for _ in ()).throw(OSError('no libcuda.so.1'))\n"
        for module in MODULES:
            code = (
                f"{without}import seamalloc.{module} as m\n"
                "error = refused(seamalloc.LibraryError, m.enable); assert error.cause == 'no-cuda', error; print(error)"
            )
            text = self.run_here(code, device="")
            self.assertIn("NVIDIA's driver cannot be loaded (no libcuda.so.1)", text)
            self.assertIn("SEAMALLOC_DEVICE=sim:h200", text)

    def test_options_that_cannot_be_read_or_come_too_late(self):
        stand_in_libraries.make(self.folder, *MODULES)
        for module in MODULES:
            self.run_here(f"""
import seamalloc.{module} as m
error = refused(seamalloc.OptionError, lambda: m.enable(memory_limt="1GiB"))
assert "did you mean `memory_limit`?" in str(error), error
# Nothing was enabled by that.
assert not os.environ["SEAMALLOC_CONF"], os.environ["SEAMALLOC_CONF"]
m.enable(memory_limit="1GiB")
_memory.allocate(0, MIB)
m.enable()
m.enable(memory_limit="1024MiB")
error = refused(seamalloc.LibraryError, lambda: m.enable(memory_limit="2GiB"))
assert error.cause == "too-late" and "memory_limit:2GiB" in str(error) and "SEAMALLOC_CONF" in str(error), error
assert "memory_limit:1GiB" in seamalloc.stats()["options"]
""")

    def test_an_error_can_be_sent_to_another_process(self):
        error = seamalloc.LibraryError("missing", "CuPy", "it is missing", "Install it")
        same = pickle.loads(pickle.dumps(error))
        self.assertEqual((same.cause, same.library, str(same)), ("missing", "CuPy", str(error)))
        self.assertIsInstance(error, RuntimeError)
        self.assertIn("it is missing. Install it", str(error))


class CuPy(Stand):
    names = ("cupy",)

    def test_memory_is_of_the_current_stream(self):
        self.run_here("""
import cupy, seamalloc.cupy
assert not seamalloc.cupy.enabled()
seamalloc.cupy.enable(memory_limit="1GiB")
assert seamalloc.cupy.enabled()
array = cupy.empty(4 * MIB)
first = array.ptr
assert first % 512 == 0 and live() == 4 * MIB and array.mem.size == 4 * MIB
del array
assert live() == 0
cupy.current.ptr = 0x700
assert cupy.empty(0).ptr == 0
array = cupy.empty(600 * MIB)
# Freed under another stream: its own has it at once, others once that has passed, too.
cupy.current.ptr = 0x800
del array
assert live() == 0
error = refused(cupy.cuda.memory.OutOfMemoryError, lambda: cupy.empty(2048 * MIB))
assert "allocating 2,147,483,648 bytes (allocated so far: 0 bytes)" in str(error) and "2.00 GiB" in str(error), error
assert isinstance(error, MemoryError)
""")

    def test_an_array_in_a_cycle_is_freed(self):
        # In both orders, since the collector takes the older one first.
        self.run_here("""
import cupy, seamalloc.cupy
seamalloc.cupy.enable()
class Holder: pass
array = cupy.empty(MIB); holder = Holder(); holder.itself, holder.array = holder, array
del array, holder
holder = Holder(); holder.itself = holder; holder.array = cupy.empty(MIB)
del holder
assert live() == 2 * MIB
gc.collect()
assert live() == 0
kept = cupy.empty(MIB)   # as the interpreter ends
""")

    def test_another_thread_has_it_too_and_a_fork_frees_nothing(self):
        self.run_here("""
import cupy, seamalloc.cupy, threading
seamalloc.cupy.enable()
arrays = []
thread = threading.Thread(target=lambda: arrays.append(cupy.empty(MIB))); thread.start(); thread.join()
child = os.fork()
if child == 0:
    arrays.clear()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert live() == MIB
""")


class RMM(Stand):
    names = ("rmm",)

    def test_streams_are_those_of_requests_and_frees(self):
        self.run_here("""
import rmm, seamalloc.rmm
seamalloc.rmm.enable(memory_limit="1GiB")
assert seamalloc.rmm.enabled() and not seamalloc.rmm.enabled(1)
resource = rmm.mr.get_per_device_resource(0)
assert resource is seamalloc.rmm.resource(0)
first, second = rmm.Stream(0x700), rmm.Stream(0x800)
address = resource.allocate(4 * MIB, first)
resource.deallocate(address, 4 * MIB, first)
assert (live(), waiting()) == (0, 0)
assert resource.allocate(4 * MIB, first) == address
resource.deallocate(address, 4 * MIB, second)
assert (live(), waiting()) == (0, 4 * MIB), (live(), waiting())
# The default stream by each of its names. 2 is the thread's, which memory cannot be in the order of.
for handle in (0, 1, 2):
    stream = rmm.Stream(handle)
    resource.deallocate(resource.allocate(MIB, stream), MIB, stream)
assert live() == 0 and resource.allocate(0, first) == 0
resource.deallocate(0, 0, first)
error = refused(MemoryError, lambda: resource.allocate(2048 * MIB, first))
assert "2.00 GiB" in str(error) and isinstance(error, seamalloc.OutOfMemory)
""")

    def test_every_device_has_it(self):
        self.run_here("""
import rmm, seamalloc.rmm
_memory.is_simulated = lambda: False
_memory._driver = lambda name: None
seamalloc.rmm.enable(device=1)
assert not seamalloc.rmm.enabled(0) and seamalloc.rmm.enabled(1)
seamalloc.rmm.enable()
assert seamalloc.rmm.enabled(0) and seamalloc.rmm.enabled(1)
assert seamalloc.rmm.resource(0) is not seamalloc.rmm.resource(1)
""")


class CudaCore(Stand):
    names = ("cuda_core",)
    CODE = """
from cuda import core
import seamalloc.cuda_core
resource = seamalloc.cuda_core.enable(memory_limit="1GiB")
device, stream, other = core.Device(0), core.Stream(0x700), core.Stream(0x800)
assert device.memory_resource is resource is seamalloc.cuda_core.resource(0)
assert isinstance(resource, core.MemoryResource) and resource.device_id == 0
assert (resource.is_device_accessible, resource.is_host_accessible, resource.is_managed) == (True, False, False)
"""

    def test_buffers_are_freed_on_the_stream_that_is_named(self):
        for environment in ({}, {"STAND_IN_OLD": "1"}):
            self.run_here(
                self.CODE
                + """
buffer = device.allocate(4 * MIB, stream=stream)
assert buffer.size == 4 * MIB and live() == 4 * MIB
buffer.close()
assert (live(), waiting()) == (0, 0)
buffer = device.allocate(4 * MIB, stream=stream)
buffer.close(other)
assert (live(), waiting()) == (0, 4 * MIB)
error = refused(MemoryError, lambda: device.allocate(2048 * MIB, stream=stream))
assert "2.00 GiB" in str(error)
""",
                **environment,
            )

    def test_what_fails_leaves_nothing_allocated(self):
        self.run_here(
            self.CODE + "refused(RuntimeError, lambda: device.allocate(MIB, stream=stream)); assert live() == 0",
            BUFFER_FAILS="1",
        )
        self.run_here(
            self.CODE
            + "error = refused(ValueError, lambda: device.allocate(MIB, stream=core.Stream(1, is_building=True)))\n"
            + "assert 'GraphMemoryResource' in str(error) and seamalloc._library.plugged_devices() == [], error"
        )


class Triton(Stand):
    names = ("triton",)

    def test_a_launch_gets_a_buffer(self):
        self.run_here("""
import triton, seamalloc.triton
seamalloc.triton.enable()
buffer = triton.allocator(MIB, 128, 0x700)
assert buffer.data_ptr() % 512 == 0 and live() == MIB
del buffer
assert live() == 0
assert triton.allocator(MIB, 128, None).data_ptr() != 0
error = refused(ValueError, lambda: triton.allocator(MIB, 1024, 0))
assert "multiple of 1024" in str(error)
refused(MemoryError, lambda: triton.allocator(1 << 40, 128, 0))
assert live() == 0
""")


class RealTriton(unittest.TestCase):
    def test_takes_it(self):
        done = run("-c", "import triton; print(triton.__version__)")
        if done.returncode != 0:
            self.skipTest("Triton is not installed")
        code = "import seamalloc.triton as t; t.enable(); from triton.runtime import _allocation as a; print(a._allocator.get())"
        done = run("-c", code)
        self.assertIn("function allocate", done.stdout, done.stderr)


class Numba(Stand):
    names = ("numba",)
    CODE = """
from numba.cuda.cudadrv import driver
import seamalloc.numba
seamalloc.numba.enable(memory_limit="1GiB")
manager = driver.manager()
manager.initialize(); manager.initialize()
"""

    def test_frees_wait_together_and_memory_pressure_ends_that(self):
        self.run_here(
            self.CODE
            + """
arrays = [manager.memalloc(100 * MIB) for _ in range(8)]
assert live() == 800 * MIB and manager.get_memory_info()[1] > 0
assert all(array.value % 512 == 0 for array in arrays)
error = refused(driver.CudaAPIError, lambda: manager.memalloc(300 * MIB))
assert error.args[0] == 2 and "300.00 MiB" in error.args[1], error
del arrays; gc.collect()
assert len(manager.deallocations) == 8 and live() == 800 * MIB
# Another library's request.
address = _memory.allocate(0, 1000 * MIB)
assert len(manager.deallocations) == 0 and live() == 1000 * MIB
_memory.free(0, address, 0)
arrays = [manager.memalloc(MIB) for _ in range(11)]
del arrays
assert len(manager.deallocations) == 0 and live() == 0
manager.deallocations.is_deferred = True
array = manager.memalloc(1000 * MIB)
del array
refused(driver.CudaAPIError, lambda: manager.memalloc(1000 * MIB))
""",
        )

    def test_a_reset_gives_memory_back_and_it_goes_on(self):
        self.run_here(
            self.CODE
            + """
array = manager.memalloc(MIB)
error = refused(seamalloc.LibraryError, lambda: manager.get_ipc_handle(array))
assert error.cause == "ipc" and "PyTorch tensor" in str(error)
# Its traceback has the array.
del array, error
manager.reset()
assert seamalloc.stats()["reserved_bytes"]["all"]["current"] == 0
assert manager.memalloc(MIB).size == MIB
""",
        )

    def test_a_context_that_others_made_is_served(self):
        self.run_here(
            self.CODE
            + """
others = driver.manager(driver.CUdevice())
array = others.memalloc(MIB)
assert array.size == MIB and live() == MIB
del array; gc.collect()
others.deallocations.clear()
assert live() == 0
""",
        )

    def test_the_environment_variable_s_name_leads_to_it(self):
        self.run_here("""
import importlib
from numba.cuda.cudadrv import driver
module = importlib.import_module("seamalloc.numba")
manager = module._numba_memory_manager
assert issubclass(manager, driver.HostOnlyCUDAMemoryManager) and manager is module._numba_memory_manager
driver.set_memory_manager(manager)
module.enable()
class Own(driver.HostOnlyCUDAMemoryManager): pass
driver.set_memory_manager(Own)
error = refused(seamalloc.LibraryError, module.enable)
assert error.cause == "too-late" and "with Own" in str(error) and "NUMBA_CUDA_MEMORY_MANAGER=seamalloc.numba" in str(error)
refused(AttributeError, lambda: module.nothing)
""")


class All(Stand):
    def test_what_is_imported_is_over_one_memory_and_limit(self):
        stand_in.make(self.folder)
        self.run_here(
            """
import torch, cupy, numba.cuda, rmm, triton
assert seamalloc.enable_all(memory_limit="1GiB") == ["torch", "cupy", "numba", "rmm", "triton"]
assert seamalloc.enable_all() == ["torch", "cupy", "numba", "rmm", "triton"]
array, stream = cupy.empty(600 * MIB), rmm.Stream(0x700)
resource = rmm.mr.get_per_device_resource(0)
assert live() == 600 * MIB
error = refused(MemoryError, lambda: resource.allocate(600 * MIB, stream))
assert "600.00 MiB" in str(error)
del array
assert resource.allocate(600 * MIB, stream) and live() == 600 * MIB
refused((seamalloc.LibraryError, seamalloc.OptionError), lambda: seamalloc.enable_all(memory_limit="2GiB"))
""",
            SEAMALLOC_FALLBACK="pluggable",
        )

    def test_a_cuda_core_that_is_too_old_is_left_out(self):
        self.run_here(
            "import rmm, cuda.core; assert seamalloc.enable_all() == ['rmm'], 'cuda.core'", STAND_IN_TOO_OLD="1"
        )
        self.run_here("import cupy, cuda.core; assert seamalloc.enable_all() == ['cupy', 'cuda_core']")

    def test_nothing_imported_is_nothing_enabled(self):
        self.run_here("assert seamalloc.enable_all() == []")


class Memory(Stand):
    names = ()

    def test_what_no_library_names_is_in_no_stream_s_order(self):
        self.run_here("""
idle = _memory.Idle(0)
first = idle.allocate(4 * MIB)
assert live() == 4 * MIB
idle.free(first)
assert live() == 0 and idle.allocate(4 * MIB) == first
idle.free(first)
idle.forget()
idle.forget()
assert idle.allocate(MIB) != 0
""")

    def test_a_captured_stream_is_waited_for_by_nobody(self):
        # Whose it is may destroy it before an event could be recorded. A driver that says so is played.
        self.run_here("""
import types
streams = _memory.Streams(0)
captured = set()
class Driver:
    def cuStreamIsCapturing(self, stream, answer):
        answer._obj.value = int(stream.value in captured)
        return 0
for is_captured, kept in ((False, 4 * MIB), (True, 0)):
    _memory.is_simulated = lambda: True
    address = streams.allocate(4 * MIB, 0x700)
    _memory.is_simulated, _memory._driver = (lambda: False), (lambda name: Driver())
    captured.update({0x800} if is_captured else ())
    streams.free(address, 0x800)
    assert (live(), waiting()) == (0, kept), (is_captured, live(), waiting())
    _memory.check(_memory.library.seam_empty_cache(_memory.plugged(0), None))
captured.add(2)
waits = []
_memory.synchronize = waits.append
address = _memory.allocate(0, MIB)
_memory.free(0, address, 2)
assert waits == [] and live() == 0
captured.clear()
address = _memory.allocate(0, MIB)
_memory.free(0, address, 2)
assert waits == [0] and live() == 0
""")

    def test_a_free_that_names_no_stream_names_none_to_the_driver(self):
        self.run_here("""
streams = _memory.Streams(0)
address = streams.allocate(MIB, 0x700)
def driver(name):
    raise AssertionError("the stream may be gone")
_memory.is_simulated, _memory._driver = (lambda: False), driver
refused(AssertionError, lambda: _memory.free(0, address, 0x700))
streams.free(address, None)
assert live() == 0 and address not in streams
child = os.fork()
if child == 0:
    streams.free(address, None)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
""")

    def test_a_wrong_address_is_an_error(self):
        self.run_here("""
streams = _memory.Streams(0)
address = streams.allocate(MIB, 0x700)
assert address in streams
streams.free(address, None)
assert address not in streams
streams.discard(address)
error = refused(seamalloc.Error, lambda: streams.free(address, 0x700))
assert error.name == "SEAM_STATUS_INVALID_ADDRESS", error.name
streams.free(0, 0x700)
free, total = _memory.memory_info(0)
assert 0 < free <= total and _memory.in_use(0) == 0
""")


PAGE = Path(__file__).resolve().parents[3] / "docs" / "python-libraries.md"


class Page(Stand):
    """The documentation's commands and programs."""

    def setUp(self):
        super().setUp()
        blocks = PAGE.read_text(encoding="utf-8").split("```")[1::2]
        self.programs = [block.removeprefix("python\n") for block in blocks if block.startswith("python\n")]
        self.lines = [line for block in blocks if block.startswith("sh\n") for line in block.splitlines()[1:]]

    def test_commands_without_a_gpu_run_as_they_are_written(self):
        lines = [line for line in self.lines if line.startswith("SEAMALLOC_DEVICE=sim:")]
        self.assertGreaterEqual(len(lines), 2)
        python = self.folder / "bin" / "python"
        python.parent.mkdir()
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        for line in lines:
            done = subprocess.run(
                ["sh", "-c", line],
                env={
                    **os.environ,
                    "PATH": f"{python.parent}:{os.environ['PATH']}",
                    "PYTHONPATH": path_with(self.folder),
                },
                capture_output=True,
                text=True,
                check=False,
            )
            self.assertEqual((done.returncode, done.stderr), (0, ""), line)
            self.assertIn(done.stdout, ("True\n", "0\n"), line)

    def test_programs_name_what_is_there(self):
        found = 0
        for program in self.programs:
            compile(program, str(PAGE), "exec")
            for module, name in re.findall(r"\bseamalloc\.(?:(\w+)\.)?(\w+)\(", program):
                path = f"seamalloc.{module}" if module else "seamalloc"
                self.assertTrue(hasattr(importlib.import_module(path), name), f"{path}.{name}")
                found += 1
        self.assertGreaterEqual(found, 8)

    def test_every_module_is_in_it(self):
        text = PAGE.read_text(encoding="utf-8")
        for module in MODULES:
            self.assertIn(f"`seamalloc.{module}`", text)


class Table(unittest.TestCase):
    """The table of what the programs for a GPU print."""

    SUITE = {
        "suite": "rmm",
        "tests": 3,
        "own": {"passed": 3},
        "ours": {"passed": 3},
        "differ": 0,
        "only_own": 0,
        "only_ours": 2,
        "codes": {"ours": 0},
        "left": {"own": 7, "ours": None},
    }
    DIFFERS = {"suite": "rmm", "test": "a.py::test|b", "own": "passed", "ours": "failed", "text": "why"}
    MEMORY = {
        "mode": "ours", "limit_gib": 12, "only_limit": False, "wrong_words": {"torch": 0, "cupy": 0}, "refused": {},
        "first_turns": {"torch": True}, "last_turns": {"torch": True}, "requests": 60, "most_held_gib": 11.5,
        "seconds": 2.5,
    }  # fmt: skip

    def table(self, *entries):
        script = Path(__file__).resolve().parent / "gpu" / "libraries" / "libraries_table.py"
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log.txt"
            log.write_text(
                "hello rmm: right, at most 5 bytes in use\n{cut\n" + "".join(json.dumps(one) + "\n" for one in entries)
            )
            done = run(script, log)
        return done.returncode, done.stdout + done.stderr

    def test_says_what_differs_and_what_is_wrong(self):
        status, text = self.table(self.SUITE, self.MEMORY)
        self.assertEqual(status, 0, text)
        for part in (
            "- hello rmm: right",
            "| RMM | 3 | 3, 0, 0, 0 | 3, 0, 0, 0 | 0 | 0 | 2 | 7, ? |",
            "| seamalloc | 12 | 11.5 | torch yes | 60 | 0 | 0 | 2.5 |",
        ):
            self.assertIn(part, text)
        for wrong, part in (
            (self.DIFFERS, "| RMM | `a.py::test\\|b` | passed | failed | why |"),
            ({**self.MEMORY, "wrong_words": {"torch": 2}}, "| 0 | 2 | 2.5 |"),
            ({**self.MEMORY, "refused": {"rmm": {"times": 4}}}, "| 4 | 0 | 2.5 |"),
            ({**self.SUITE, "codes": {"ours": -11}}, "| RMM | 3 |"),
        ):
            status, text = self.table(self.SUITE, wrong)
            self.assertEqual(status, 1, text)
            self.assertIn(part, text)
        status, text = self.table({**self.MEMORY, "mode": "own", "refused": {"rmm": {"times": 4}}})
        self.assertEqual(status, 0, text)
        self.assertIn("| their own | 12", text)


if __name__ == "__main__":
    unittest.main()

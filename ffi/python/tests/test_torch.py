"""Seamalloc inside PyTorch, on a simulated device: addresses are never used."""

import tempfile
import unittest
from pathlib import Path

from processes import has_torch, run, run_code

HERE = Path(__file__).resolve().parent

# As where the package carries no shim for this PyTorch.
WITHOUT_PREBUILT = """
import pathlib, seamalloc
from seamalloc import _prebuilt
_prebuilt.FOLDER = pathlib.Path("/nowhere")
"""
ENABLE = """
import seamalloc, torch
seamalloc.enable()
C, MIB = torch._C, 1 << 20
get = lambda size, stream=0: C._cuda_cudaCachingAllocator_raw_alloc(size, stream)
put = C._cuda_cudaCachingAllocator_raw_delete
"""


@unittest.skipUnless(has_torch(), "PyTorch with CUDA is not installed")
class Shim(unittest.TestCase):
    def test_is_the_allocator_and_counts(self):
        run_code(
            ENABLE
            + """
assert seamalloc.enabled() == "full" and torch.cuda.get_allocator_backend() == "seamalloc"
address = get(10 * MIB)
stats = C._cuda_memoryStats(0)
assert stats["allocated_bytes"]["all"] == {"current": 10 * MIB, "peak": 10 * MIB, "allocated": 10 * MIB, "freed": 0}
assert stats["reserved_bytes"]["large_pool"]["current"] == 10 * MIB and stats["max_split_size"] == -1
put(address)
C._cuda_resetPeakMemoryStats(0)
assert C._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"] == 0
C._cuda_emptyCache()
assert C._cuda_memoryStats(0)["reserved_bytes"]["all"]["current"] == 0
assert seamalloc.stats()["allocated_bytes"]["all"]["freed"] == 10 * MIB
"""
        )

    def test_raises_out_of_memory_with_the_report_and_goes_on(self):
        run_code(
            ENABLE
            + """
C._cuda_setMemoryFraction(0.5, 0)
assert C._cuda_getMemoryFraction(0) == 0.5
try:
    get(100 << 30)
except torch.OutOfMemoryError as error:
    assert "Tried to allocate 100.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which" in str(error) and "69.90 GiB" in str(error), error
else:
    raise AssertionError("it should not fit")
try:
    get(8_000_000_000 << 30)
except torch.OutOfMemoryError as error:
    assert "CUDA out of memory. Tried to allocate more than 1EB memory." in str(error), error
else:
    raise AssertionError("nothing has so much")
put(get(50 << 30))
assert C._cuda_memoryStats(0)["num_ooms"] == 1
"""
        )

    def test_wrong_frees_are_errors(self):
        run_code(
            ENABLE
            + """
address = get(5000)
put(address)
try:
    put(address)
except RuntimeError as error:
    assert "freed twice" in str(error)
else:
    raise AssertionError("freed twice")
"""
        )

    def test_pools_keep_their_memory_and_are_restored(self):
        run_code(
            ENABLE
            + """
pool = (0, 1)
C._cuda_beginAllocateCurrentThreadToPool(0, pool)
inside = [get(size) for size in (3 * MIB, 700, 40 * MIB)]
C._cuda_endAllocateToPool(0, pool)
outside = get(5 * MIB)
live = lambda *pointers: C._cuda_checkPoolLiveAllocations(0, pool, set(pointers))
assert live(*inside) and not live(*inside[:2]) and not live(outside, *inside)
state = C._cuda_getCheckpointState(0, pool)
for address in inside:
    put(address)
assert live()
C._cuda_setCheckpointPoolState(0, state, [], [])
assert live(*inside)
put(inside[1])
C._cuda_setCheckpointPoolState(0, state, [], [])
assert live(*inside)
owners = {segment["segment_pool_id"] for segment in C._cuda_memorySnapshot((0, 0))["segments"]}
assert owners == {(0, 0), pool}, owners
assert {segment["segment_pool_id"] for segment in C._cuda_memorySnapshot(pool)["segments"]} == {pool}
C._cuda_releasePool(0, pool)
"""
        )

    def test_snapshots_agree_with_the_statistics(self):
        run_code(
            ENABLE
            + """
pool = (0, 1)
C._cuda_beginAllocateCurrentThreadToPool(0, pool)
held = [get(size, stream) for size in (700, 5 * MIB, 300_000) for stream in (0, 0x10)]
C._cuda_endAllocateToPool(0, pool)
held += [get(size) for size in (10, 3 * MIB, 1 * MIB, 900_000, 40 * MIB, 20, 7 * MIB)]
for address in held[1::2]:
    put(address)
get(33 * MIB)
stats = C._cuda_memoryStats(0)
segments = C._cuda_memorySnapshot((0, 0))["segments"]
for kind in ("small", "large"):
    of_kind = [segment for segment in segments if segment["segment_type"] == kind]
    for total, name in (("total_size", "reserved"), ("active_size", "active"), ("requested_size", "requested")):
        found, counted = sum(segment[total] for segment in of_kind), stats[f"{name}_bytes"][f"{kind}_pool"]["current"]
        assert found == counted, (kind, name, found, counted)
    live = sum(block["state"] == "active_allocated" for segment in of_kind for block in segment["blocks"])
    assert live == stats["allocation"][f"{kind}_pool"]["current"], (kind, live)
kinds = sorted(segment["segment_type"] for segment in segments if segment["segment_pool_id"] == pool)
assert kinds == ["large", "large", "small", "small"], "each of two streams has its own"
"""
        )

    def test_snapshots_are_what_pytorchs_viewer_reads(self):
        with tempfile.TemporaryDirectory() as folder:
            shot = Path(folder) / "shot.pickle"
            run_code(
                ENABLE
                + f"""
import pickle
get(700), put(get(10 * MIB)), get(3 * MIB)
pickle.dump(C._cuda_memorySnapshot((0, 0)), open({str(shot)!r}, "wb"))
"""
            )
            for what in ("stats", "trace", "trace_plot", "segment_plot"):
                out = () if what in ("stats", "trace") else ("-o", Path(folder) / "plot.html")
                done = run("-m", "torch.cuda._memory_viz", what, shot, *out)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_answers_what_only_a_gpu_asks_for(self):
        self.exercise("exercise")

    def test_questions_open_no_device_and_threads_end_quietly(self):
        self.exercise("exercise_ends")

    def test_other_threads_do_no_harm(self):
        self.exercise("exercise_sharing")

    def test_mempools_have_memory_of_their_own(self):
        import torch

        from seamalloc._compiler import torch_version

        if torch_version(torch) < (2, 8):
            self.skipTest("before 2.8 only Python's context says which allocator a MemPool has, and needs a GPU")
        self.exercise("exercise_pools")

    def test_the_fraction_is_told_whoever_has_set_it(self):
        run_code(ENABLE + "assert C._cuda_getMemoryFraction(0) == 0.25", conf="per_process_memory_fraction:0.25")
        run_code(ENABLE + "assert C._cuda_getMemoryFraction(0) == 1")
        run_code("""
import seamalloc, torch
seamalloc.enable(per_process_memory_fraction=0.5)
assert torch._C._cuda_getMemoryFraction(0) == 0.5
torch._C._cuda_setMemoryFraction(1, 0)
assert torch._C._cuda_getMemoryFraction(0) == 1
""")

    def test_page_locked_memory_is_as_pytorch_has_it(self):
        self.exercise("exercise_pinned", "pinned=True")

    def test_page_locked_memory_has_options_and_figures_of_its_own(self):
        run_code(
            """
import seamalloc, torch
seamalloc.enable(max_views=3, pinned={"memory_limit": "10MiB", "strategy": "caching"})
assert 65536 not in seamalloc._library.plugged_devices(), "it is opened on first use"
stats = seamalloc.stats("pinned")
assert stats["options"] == "strategy:caching,memory_limit:10MiB", stats["options"]
assert seamalloc.report("pinned").startswith("seamalloc, device pinned (host"), seamalloc.report("pinned")
assert 65536 in seamalloc._library.plugged_devices() and seamalloc.trim(device="pinned") == 0
seamalloc.forget_stream(0x70)
assert seamalloc.stats(0)["options"] == "max_views:3"
"""
        )

    def test_page_locked_memory_by_the_environment(self):
        for value, expected in (("1", "65536"), ("memory_limit:10MiB", "65536"), ("0", "none"), ("", "none")):
            out = run_code(
                """
import seamalloc, torch
seamalloc.enable()
try:
    seamalloc.stats("pinned")
    print(max(seamalloc._library.plugged_devices()))
except RuntimeError:
    print("none")
""",
                SEAMALLOC_PINNED=value,
            )
            self.assertEqual(out.strip(), expected, value)

    def test_page_locked_memory_of_an_older_version_stays_pytorchs(self):
        run_code(
            """
import seamalloc, torch
torch.__version__ = "2.8.0"
try:
    seamalloc.enable(pinned=True)
except seamalloc.UnavailableError as error:
    assert error.cause == "version" and "2.9" in str(error), error
else:
    raise AssertionError("2.8 has no way")
assert seamalloc.enabled() is None
"""
        )

    def exercise(self, name, options=""):
        """Compiles the C++ file of that name, and runs its function of that name under the shim."""
        import torch

        from seamalloc import _compiler

        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "exercise.so"
            _compiler.shared_library(torch, [HERE / f"{name}.cpp"], library)
            run_code(
                ENABLE.replace("enable()", f"enable({options})")
                + f"""
import ctypes
exercise = ctypes.CDLL({str(library)!r}).{name}
exercise.restype = ctypes.c_char_p
why = exercise()
assert why is None, why.decode()
"""
            )


@unittest.skipUnless(has_torch(), "PyTorch with CUDA is not installed")
class Enabling(unittest.TestCase):
    def test_once_only(self):
        run_code(
            ENABLE
            + """
try:
    seamalloc.enable()
except RuntimeError as error:
    assert "already" in str(error)
else:
    raise AssertionError("twice")
"""
        )

    def test_too_late_is_an_error(self):
        run_code("""
import seamalloc, os, torch
torch.cuda.is_initialized = lambda: True
before = os.environ["SEAMALLOC_CONF"]
try:
    seamalloc.enable(max_views=3)
except RuntimeError as error:
    assert "too late" in str(error) and "python -m seamalloc run" in str(error)
else:
    raise AssertionError("it was in time")
assert os.environ["SEAMALLOC_CONF"] == before and seamalloc.enabled() is None
""")

    def test_without_a_compiler_it_is_an_error_or_pluggable_and_says_what_is_missing(self):
        out = run_code(
            WITHOUT_PREBUILT
            + """
import torch, warnings
try:
    seamalloc.enable()
except seamalloc.UnavailableError as error:
    assert error.cause == "compiler" and "there is no C++ compiler (no-such-compiler)" in str(error), error
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    seamalloc.enable(max_views=5, fallback="pluggable")
(text,) = [str(one.message) for one in warned if "seamalloc" in str(one.message)]
assert "there is no C++ compiler (no-such-compiler)" in text and "memory_stats" in text, text
assert seamalloc.enabled() == "pluggable" and torch.cuda.get_allocator_backend() == "pluggable"
print(seamalloc.stats()["options"])
""",
            CXX="no-such-compiler",
            SEAMALLOC_CACHE=self.empty_cache(),
        )
        self.assertEqual(out.strip(), "max_views:5,sharing:never", "nobody says under which stream it frees")

    def test_a_version_of_another_interface_is_an_error(self):
        run_code(
            WITHOUT_PREBUILT
            + """
import torch
from seamalloc import _compiler, _interface
torch.__version__, _compiler.flags = "2.99.0", lambda version, abi: [*_interface.flags((2, 7), abi), "-fsyntax-only"]
try:
    seamalloc.enable()
except seamalloc.UnavailableError as error:
    assert error.cause == "version" and "2.6 to 2.15, and does not for 2.99.0" in str(error), error
    assert "error: " in str(error), error
else:
    raise AssertionError("compiled with the interface of 2.7")
""",
            SEAMALLOC_CACHE=self.empty_cache(),
        )

    def test_displaced_it_is_not_enabled(self):
        run_code("""
import seamalloc, torch
seamalloc.enable()
assert seamalloc.enabled() == "full"
other = torch.cuda.memory.CUDAPluggableAllocator(str(seamalloc._library.PATH), "seamalloc_malloc", "seamalloc_free")
torch.cuda.memory.change_current_allocator(other)
assert seamalloc.enabled() is None
""")

    def test_streams_that_the_program_destroys_are_forgotten(self):
        run_code(
            ENABLE
            + """
put(get(4 * MIB, 0x70))
seamalloc.forget_stream(0x70, device="cuda:0")
# Its memory serves others.
get(4 * MIB)
assert seamalloc.stats()["reserved_bytes"]["all"]["current"] == 4 * MIB
"""
        )

    def empty_cache(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder.name


if __name__ == "__main__":
    unittest.main()

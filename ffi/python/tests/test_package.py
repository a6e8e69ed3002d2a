"""The package by itself: no PyTorch, no GPU."""

import importlib.metadata
import pickle
import tempfile
import unittest
from pathlib import Path

from processes import run, run_code

import seamalloc
from seamalloc import _library, _options

# A few allocations of a simulated device, by the functions that PyTorch loads.
ALLOCATE = """
import ctypes, seamalloc
from seamalloc._library import library
library.seamalloc_malloc.restype = ctypes.c_void_p
library.seamalloc_malloc.argtypes = (ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
library.seamalloc_free.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
MIB = 1 << 20
def get(size, device=0, stream=0):
    address = library.seamalloc_malloc(size, device, stream)
    assert address and address % 512 == 0
    return address
def put(address, device=0, stream=0):
    library.seamalloc_free(address, 0, device, stream)
"""


class Wheel(unittest.TestCase):
    def test_is_for_every_python_of_the_platform(self):
        try:
            distribution = importlib.metadata.distribution("seamalloc")
        except importlib.metadata.PackageNotFoundError:
            distribution = None
        # What a build leaves in the source folder has no such file.
        if distribution is None or distribution.read_text("WHEEL") is None:
            self.skipTest("seamalloc was not installed from a wheel")
        self.assertRegex(distribution.read_text("WHEEL"), r"(?m)^Tag: py3-none-(many)?linux_\w+$")
        self.assertEqual(distribution.version, seamalloc.__version__)
        for part in ("libseamalloc.so", "seamalloc.h", "py.typed", "shim/allocator.cpp", "shim/allocator.h"):
            self.assertTrue((_library.PATH.parent / part).is_file(), part)

    def test_imports_nothing_of_pytorch(self):
        run_code("import sys, seamalloc; assert 'torch' not in sys.modules and seamalloc.enabled() is None")

    def test_needs_no_other_package(self):
        # Without the folder where others lie.
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "seamalloc").symlink_to(_library.PATH.parent)
            code = "import seamalloc, seamalloc.__main__, seamalloc._shim"
            done = run("-S", "-c", code, PYTHONPATH=folder)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class Options(unittest.TestCase):
    def test_are_a_list_as_the_library_reads_it(self):
        options = {"strategy": "stitch", "memory_limit": "80GiB", "expandable_segments": False}
        text = _options.join("max_views:7", options)
        self.assertEqual(text, "max_views:7,strategy:stitch,memory_limit:80GiB,expandable_segments:False")
        self.assertEqual(
            _options.join(None, {"roundup_power2_divisions": {256: 1, ">": 4}}), "roundup_power2_divisions:[256:1,>:4]"
        )
        self.assertEqual(_options.join("", {}), "")
        self.assertEqual(_options.join(None, {"memory_limit": None, "max_views": 7}), "max_views:7", "not given")
        _library.read_options("strategy:stitch,roundup_power2_divisions:[256:1,>:4]")

    def test_that_cannot_be_read_are_errors_with_a_hint(self):
        with self.assertRaises(seamalloc.OptionError) as raised:
            seamalloc.enable(strateg="stitch")
        self.assertIn("did you mean `strategy`?", str(raised.exception))
        self.assertEqual(raised.exception.name, "SEAM_STATUS_OPTIONS")
        self.assertIsInstance(raised.exception, ValueError)
        with self.assertRaises(seamalloc.OptionError):
            seamalloc.enable(memory_limit="a lot")
        self.assertIsNone(seamalloc.enabled())


class Plugged(unittest.TestCase):
    def test_says_what_it_holds(self):
        out = run_code(
            ALLOCATE
            + """
kept = get(10 * MIB), get(700)
other = get(3 * MIB, device=1)
stats = seamalloc.stats()
assert stats["allocated_bytes"]["all"]["current"] == 10 * MIB + 1024, stats
assert stats["options"] == "max_views:7" and stats["device"] == "sim:h200", stats
assert seamalloc.stats(device=1)["allocated_bytes"]["all"]["current"] == 3 * MIB
put(kept[0])
assert seamalloc.fragmentation()["largest_reachable"] == 10 * MIB
assert seamalloc.trim(1) >= 1
assert seamalloc.trim() + seamalloc.trim() >= 0
assert seamalloc.stats()["reserved_bytes"]["all"]["current"] == 2 * MIB
print(seamalloc.report())
""",
            conf="max_views:7",
        )
        self.assertIn("seamalloc, device 0 (sim:h200)", out)
        self.assertRegex(out, r"in use +1\.00 KiB, at most 10\.00 MiB")

    def test_tags_sleep_and_wake(self):
        run_code(
            ALLOCATE
            + """
def held():
    return seamalloc.stats()["reserved_bytes"]["all"]["current"]
with seamalloc.tag("weights"):
    weights = get(10 * MIB)
    with seamalloc.tag("cache"):
        cache = get(6 * MIB)
other = get(4 * MIB)
assert held() == 20 * MIB
assert seamalloc.sleep("weights") == 10 * MIB and seamalloc.sleep("cache", discard=True) == 6 * MIB
assert held() == 4 * MIB and seamalloc.sleep("cache") == 0
try:
    with seamalloc.tag("weights"):
        seamalloc._library.check(library.seam_malloc(seamalloc._library.plugged(0), 1, None, ctypes.byref(ctypes.c_void_p())))
    raise AssertionError("a tag that sleeps gave memory")
except seamalloc.Error as error:
    assert error.name == "SEAM_STATUS_POOL_ASLEEP", error
assert seamalloc.wake("weights") == 10 * MIB and seamalloc.wake("weights") == 0 and held() == 14 * MIB
put(cache)
assert seamalloc.wake("cache") == 6 * MIB
try:
    seamalloc.sleep("none")
    raise AssertionError("there is no such tag")
except KeyError:
    pass
put(weights), put(other)
"""
        )

    def test_memory_grows_in_place(self):
        run_code(
            """
import ctypes, gc, seamalloc
MIB, TOKEN = 1 << 20, 320 << 10
def held():
    return seamalloc.stats()["reserved_bytes"]["all"]["current"]
cache = seamalloc.reserve(512 * MIB)
address = cache.address
assert address % (2 * MIB) == 0 and (cache.size, cache.mapped, cache.capacity, held()) == (0, 0, 512 * MIB, 0)
for token in range(1, 801):
    cache.grow(token * TOKEN)
assert cache.address == address and cache.size == 800 * TOKEN
assert cache.mapped == held() == 250 * MIB
# The device is host memory: what is written stays where it is.
pattern = bytes(range(256)) * (10 * MIB // 256)
ctypes.memmove(address, pattern, len(pattern))
cache.grow(300 * MIB)
cache.shrink(9 * MIB)
assert cache.mapped < 20 * MIB and ctypes.string_at(address, 9 * MIB) == pattern[: 9 * MIB]
cache.record_stream(7)
try:
    cache.grow(513 * MIB)
    raise AssertionError("it grew beyond its capacity")
except seamalloc.Error as error:
    assert error.name == "SEAM_STATUS_BEYOND_CAPACITY" and cache.size == 9 * MIB, error
for wrong in (-1, True, 1 << 63):
    try:
        cache.grow(wrong)
        raise AssertionError(wrong)
    except ValueError:
        pass
del cache
gc.collect()
assert seamalloc.stats()["allocated_bytes"]["all"]["current"] == 0
with_tag = seamalloc.reserve(64 * MIB, tag="cache")
with_tag.grow(5 * MIB)
ctypes.memmove(with_tag.address, pattern[: 5 * MIB], 5 * MIB)
assert seamalloc.sleep("cache") == 6 * MIB
seamalloc.wake("cache")
assert ctypes.string_at(with_tag.address, 5 * MIB) == pattern[: 5 * MIB]
with_tag.free()
with_tag.free()
limited = seamalloc.reserve(4 << 30)
try:
    limited.grow(3 << 30)
    raise AssertionError("there is no such memory")
except seamalloc.OutOfMemory:
    assert limited.size == 0
""",
            device="host:1GiB",
        )

    def test_a_tensor_grows_along_its_first_dimension(self):
        # What PyTorch does with the address is not looked at here, but what it is asked, and when there is memory.
        run_code(
            """
import sys, types
class Tensor:
    def __init__(self, owner, size, dtype=None):
        self.owner, self.size, self.dtype = owner, size, dtype
    def view(self, to):
        return Tensor(self.owner, to if isinstance(to, tuple) else self.size, self.dtype if isinstance(to, tuple) else to)
    def __getitem__(self, rows):
        return Tensor(self.owner, (len(range(*rows.indices(self.size[0]))), *self.size[1:]), self.dtype)
    def copy_(self, other):
        assert len(other) == self.size[0]
    def data_ptr(self):
        return self.owner.__cuda_array_interface__["data"][0]
def as_tensor(owner, device):
    seen = owner.__cuda_array_interface__
    assert owner.mapped > 0 and seen["typestr"] == "|u1" and seen["shape"] == (owner.capacity,), seen
    return Tensor(owner, seen["shape"])
float16 = types.SimpleNamespace(itemsize=2)
sys.modules["torch"] = torch = types.ModuleType("torch")
torch.__dict__.update(as_tensor=as_tensor, device=lambda *of: of, float16=float16, get_default_dtype=lambda: float16)
torch.cuda = types.SimpleNamespace(current_device=lambda: 0, is_initialized=lambda: False)
import seamalloc
cache = seamalloc.growing_tensor((100_000, 8, 128), rows=0)
assert cache.row_bytes == 2048 and len(cache) == 0 and cache.tensor.size == (0, 8, 128)
pointer = cache.tensor.data_ptr()
for rows in (1, 1000, 1001, 50_000):
    assert cache.grow(rows).size == (rows, 8, 128) and cache.tensor.data_ptr() == pointer
    assert cache.memory.size == rows * 2048 <= cache.memory.mapped
assert cache.append([0] * 5).size == (50_005, 8, 128)
assert cache.shrink(0).size == (0, 8, 128) and cache.memory.mapped > 0
assert cache.grow(100_000).size == (100_000, 8, 128)
try:
    cache.grow(100_001)
    raise AssertionError("it grew beyond its capacity")
except seamalloc.Error:
    assert len(cache) == 100_000
for shape in ((), (0, 8), (5, 0)):
    try:
        seamalloc.growing_tensor(shape)
        raise AssertionError(shape)
    except ValueError:
        pass
kept = cache.tensor
del cache
assert seamalloc.stats()["allocated_bytes"]["all"]["current"] > 0
del kept
assert seamalloc.stats()["allocated_bytes"]["all"]["current"] == 0
"""
        )

    def test_writes_snapshots_and_traces(self):
        with tempfile.TemporaryDirectory() as folder:
            run_code(
                ALLOCATE
                + f"""
with seamalloc.record({folder!r} + "/one.csv"):
    put(get(5 * MIB))
    seamalloc.snapshot({folder!r} + "/shot.pickle")
left = seamalloc.record({folder!r} + "/two.seam")
get(7 * MIB)
"""
            )
            trace = (Path(folder) / "one.csv").read_text()
            self.assertIn(str(5 << 20), trace)
            self.assertGreater((Path(folder) / "two.seam").stat().st_size, 0, "written at the end of the process")
            shot = pickle.loads((Path(folder) / "shot.pickle").read_bytes())
            self.assertEqual(
                [event["action"] for event in shot["device_traces"][0]],
                ["segment_map", "alloc", "free_requested", "free_completed"],
            )

    def test_tells_what_a_strategy_would_have_made_of_a_job(self):
        with tempfile.TemporaryDirectory() as folder:
            job = Path(folder) / "job.csv"
            job.write_text("a,1,104857600,0\na,2,52428800,0\nr,2\nf,2\n")
            found = seamalloc.whatif(job, "sim:h200,capacity=200MiB")
            self.assertEqual([line["strategy"] for line in found], list(seamalloc.STRATEGIES))
            for line in found:
                self.assertEqual((line["trace"], line["peak_live"]), ("job", 150 << 20))
                self.assertTrue(1.9 <= line["largest_step"] <= 2.0, line)
            (one,) = seamalloc.whatif(job, strategy="stitch", chunk_size_mb=2)
            self.assertEqual((one["strategy"], one["recorded_reserved"]), ("stitch", None))
            with self.assertRaises(seamalloc.OptionError):
                seamalloc.whatif(job, strategy="stich")
            job.write_text("this is no trace")
            with self.assertRaises(seamalloc.Error) as raised:
                seamalloc.whatif(job)
            self.assertNotIsInstance(raised.exception, FileNotFoundError)
            self.assertEqual(len(seamalloc.whatif(self.small_job(folder), strategy=None)), len(seamalloc.STRATEGIES))
        for kind in (FileNotFoundError, seamalloc.Error):
            with self.assertRaisesRegex(kind, "/nowhere/job.pickle"):
                seamalloc.whatif("/nowhere/job.pickle")

    def test_tells_what_a_snapshot_without_a_history_holds(self):
        free = {"address": 1 << 30, "size": 30 << 20, "requested_size": 0, "state": "inactive"}
        used = {"address": (1 << 30) + (30 << 20), "size": 10 << 20, "requested_size": 10 << 20, "state": "active_allocated"}
        segment = {"address": 1 << 30, "total_size": 40 << 20, "segment_type": "large", "blocks": [free, used]}
        with tempfile.TemporaryDirectory() as folder:
            snapshot = Path(folder) / "oom.pickle"
            snapshot.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [[{"action": "snapshot"}]]}))
            (found,) = seamalloc.whatif(snapshot)
            self.assertEqual((found["layout"], found["free"], found["capacity"]), (True, 30 << 20, None))
            (found,) = seamalloc.whatif(snapshot, "sim:h200,capacity=60MiB")
            self.assertEqual(found["largest_request"]["stitch"], 50 << 20)

    def small_job(self, folder):
        job = Path(folder) / "small.csv"
        job.write_text("a,1,104857600,0\na,2,52428800,0\nr,2\nf,2\n")
        return job

    def test_gives_back_a_number_of_bytes(self):
        run_code(
            ALLOCATE
            + """
put(get(10 * MIB))
for wrong in (-1, 1 << 64, True, False):
    try:
        seamalloc.trim(wrong)
    except ValueError as error:
        assert "expected a number of bytes" in str(error), error
    else:
        raise AssertionError(wrong)
for wrong in (1.5, "1GiB", [1]):
    try:
        seamalloc.trim(wrong)
    except TypeError:
        pass
    else:
        raise AssertionError(wrong)
assert seamalloc.keep_headroom() == 0 and seamalloc.keep_headroom(5) == 0, "there is none"
assert seamalloc.trim(0) == 0 and seamalloc.trim((1 << 64) - 1) == 10 * MIB
assert seamalloc.trim(device=5) == 0 and seamalloc._library.plugged_devices() == [0], "no device is opened for it"
"""
        )

    def test_tells_of_what_is_spilled_and_kept(self):
        run_code(
            ALLOCATE
            + """
old, new = get(48 * MIB), get(32 * MIB)
assert seamalloc.stats()["spilled_bytes"]["current"] == 16 * MIB, seamalloc.stats()
put(new)
assert seamalloc.unspill() == 16 * MIB
spills = seamalloc.stats()["spills"]
assert spills["kept_bytes"] == 16 * MIB and spills["reused_bytes"] == 0, spills
assert "16.00 MiB kept for the next time" in seamalloc.report(), seamalloc.report()
put(get(32 * MIB))
assert seamalloc.stats()["spills"]["reused_bytes"] == 16 * MIB
seamalloc.trim()
put(old)
assert seamalloc.stats()["spills"]["kept_bytes"] == 0
# The device has less than the soft headroom: all that is free goes back.
assert seamalloc.keep_headroom() == seamalloc.stats()["headroom"]["yielded_bytes"] and seamalloc.keep_headroom() == 0
""",
            device="sim:h200,capacity=64MiB",
            conf="spill:host=1GiB,chunk_size_mb:8",
        )

    def test_forgets_streams(self):
        run_code(
            ALLOCATE
            + """
import types
seamalloc.forget_stream(0x70, device=3)
assert seamalloc._library.plugged_devices() == [], "no device is opened for it"
put(get(4 * MIB, stream=0x70), stream=0x70)
# Of PyTorch's classes, what counts.
class Device:
    type, index = "cuda", 1
    def __str__(self):
        return "cuda:1"
stream = types.SimpleNamespace(cuda_stream=0x71, device=Device())
put(get(6 * MIB, device=1, stream=0x71), device=1, stream=0x71)
held = lambda device: seamalloc.stats(device)["reserved_bytes"]["all"]["current"]
seamalloc.forget_stream(0x70)
seamalloc.forget_stream(stream)
get(4 * MIB, stream=0x72), get(6 * MIB, device=1, stream=0x72)
assert (held(0), held(1)) == (4 * MIB, 6 * MIB), "its memory serves others, without a wait"
assert seamalloc.stats(0)["stream_waits"] == seamalloc.stats(1)["stream_waits"] == 0
for wrong, kind in ((None, TypeError), ("0x70", TypeError), (True, TypeError), (-1, ValueError), (1 << 64, ValueError)):
    try:
        seamalloc.forget_stream(wrong)
    except kind:
        pass
    else:
        raise AssertionError(wrong)
""",
            conf="sharing:wait",
        )

    def test_devices_are_numbers_or_names(self):
        from seamalloc._devices import current_device

        self.assertEqual([current_device(name) for name in (2, "cuda:3", "cuda", None)], [2, 3, 0, 0])
        for wrong in ("cpu", "cuda:x", 1.5, True):
            with self.assertRaisesRegex(ValueError, "is no CUDA device"):
                current_device(wrong)

    def test_a_trace_has_a_known_name(self):
        with self.assertRaisesRegex(ValueError, "named .seam, .csv"):
            seamalloc.record("trace.json")
        with self.assertRaisesRegex(FileNotFoundError, "no such folder.*/nowhere"):
            seamalloc.record("/nowhere/trace.seam")
        for wrong in (0, -1, 1 << 60):
            with self.assertRaisesRegex(ValueError, "max_entries"):
                seamalloc.record("trace.seam", max_entries=wrong)
        self.assertEqual(run_code("import seamalloc\nprint(seamalloc._library.plugged_devices())").strip(), "[]")

    def test_a_forked_process_leaves_a_recording_to_its_parent(self):
        with tempfile.TemporaryDirectory() as folder:
            out = run_code(
                ALLOCATE
                + f"""
import os, sys
recording = seamalloc.record({folder!r} + "/job.csv")
get(5 * MIB)
child = os.fork()
if child == 0:
    recording.stop()
    # As programs end: with what is registered for it.
    sys.exit(7)
status = os.waitpid(child, 0)[1]
assert os.waitstatus_to_exitcode(status) == 7, status
assert not os.path.exists({folder!r} + "/job.csv")
get(7 * MIB)
recording.stop()
recording.stop()
"""
            )
            self.assertEqual(out, "")
            self.assertIn(str(7 << 20), (Path(folder) / "job.csv").read_text())

    def test_the_hooks_do_what_they_say(self):
        run_code(
            ALLOCATE
            + """
library.seamalloc_record_stream.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
library.seamalloc_set_memory_fraction.argtypes = (ctypes.c_double, ctypes.c_int)
library.seamalloc_begin_pool.argtypes = (ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p)
pool = (ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)
library.seamalloc_end_pool.argtypes = library.seamalloc_release_pool.argtypes = pool
active = lambda device=0: seamalloc.stats(device)["active_bytes"]["all"]["current"]
reserved = lambda: seamalloc.stats()["reserved_bytes"]["all"]["current"]
one = get(4 * MIB, device=1)
library.seamalloc_record_stream(one, 0x77)
put(one, device=1)
assert active(1) == 4 * MIB
library.seamalloc_empty_cache()
assert active(1) == 0
kept = get(6 * MIB)
library.seamalloc_begin_pool(0, 3, 0, None)
private = get(6 * MIB)
put(private)
library.seamalloc_end_pool(0, 3, 0)
put(kept)
assert get(6 * MIB) == kept and get(6 * MIB) not in (kept, private), "the pool's memory is its own"
library.seamalloc_release_pool(0, 3, 0)
library.seamalloc_empty_cache()
assert reserved() == 12 * MIB, reserved()
library.seamalloc_set_memory_fraction(0.0001, 0)
assert library.seamalloc_malloc(1 << 30, 0, None) is None
library.seam_last_error_text.restype = ctypes.c_char_p
assert b"1.00 GiB" in library.seam_last_error_text()
"""
        )

    def test_errors_have_their_status(self):
        code = (
            ALLOCATE
            + """
try:
    seamalloc.snapshot("/nowhere/shot.pickle")
except FileNotFoundError as error:
    assert isinstance(error, seamalloc.Error) and "/nowhere/shot.pickle" in str(error), error
    print(error.name, error)
"""
        )
        self.assertIn("SEAM_STATUS_FILE", run_code(code))


if __name__ == "__main__":
    unittest.main()

"""Figures for other processes, metrics, and the flight recorder: no PyTorch, no GPU."""

import pickle
import tempfile
import unittest
from pathlib import Path

from processes import run, run_code
from test_package import ALLOCATE

import seamalloc

ASK = """
import json, os, socket
def ask(path):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.sendall(b'{"ask":"samples"}\\n')
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    return json.loads(answer)["process"]
"""


class Live(unittest.TestCase):
    def test_tells_what_the_allocators_do(self):
        with tempfile.TemporaryDirectory() as folder:
            run_code(
                ALLOCATE
                + ASK
                + f"""
path = {folder!r} + "/job.sock"
seamalloc.serve(path)
seamalloc.serve(path)
get(5 * MIB), get(7 * MIB, device=3)
told = ask(path)
assert told["pid"] == os.getpid(), told
assert sorted(sample["live_bytes"] for sample in told["allocators"]) == [5 * MIB, 7 * MIB], told
seamalloc.stop_serving()
assert not os.path.exists(path)
for kind in (FileNotFoundError, seamalloc.Error):
    try:
        seamalloc.serve("/nowhere/job.sock")
    except kind as error:
        assert "/nowhere/job.sock" in str(error), error
    else:
        raise AssertionError(kind)
"""
            )

    def test_is_asked_for_by_the_environment_and_ends_with_the_process(self):
        with tempfile.TemporaryDirectory() as folder:
            code = (
                ALLOCATE
                + ASK
                + f"""
get(MIB)
import glob
[path] = glob.glob({folder!r} + "/seamalloc/*-" + str(os.getpid()) + ".sock")
assert ask(path)["allocators"][0]["allocations_total"] == 1
if os.fork() == 0:
    raise SystemExit
os.wait()
assert os.path.exists(path), "a forked process leaves it alone"
"""
            )
            run_code(code, SEAMALLOC_SERVE="1", XDG_RUNTIME_DIR=folder)
            self.assertEqual(list((Path(folder) / "seamalloc").iterdir()), [])
            (Path(folder) / "seamalloc").chmod(0o755)
            done = run("-c", ALLOCATE + "get(MIB)", SEAMALLOC_SERVE="1", XDG_RUNTIME_DIR=folder)
            self.assertEqual(done.returncode, 0, "the program goes on")
            self.assertIn("others may use it: mode 755", done.stderr)

    def test_has_metrics(self):
        out = run_code(ALLOCATE + "get(3 * MIB)\nprint(seamalloc.metrics(), end='')")
        self.assertIn("# TYPE seamalloc_live_bytes gauge\n", out)
        self.assertRegex(out, r'(?m)^seamalloc_live_bytes\{pid="\d+",device="sim:h200",allocator="0"\} 3145728$')


class Flight(unittest.TestCase):
    def test_is_dumped_at_any_time_and_at_a_refusal(self):
        with tempfile.TemporaryDirectory() as folder:
            run_code(
                ALLOCATE
                + f"""
for count in range(100):
    put(get(2 * MIB + count, device=1), device=1)
seamalloc.dump_flight({folder!r} + "/asked.pickle", device=1)
seamalloc.dump_flight({folder!r} + "/asked.csv", device=1)
assert library.seamalloc_malloc(1 << 42, 1, None) is None
try:
    seamalloc.dump_flight("/nowhere/flight.pickle", device=1)
except FileNotFoundError:
    pass
else:
    raise AssertionError
""",
                conf=f"flight_recorder:50,flight_dump:{folder}/refused-{{device}}.pickle",
            )
            for name in ("asked.pickle", "refused-1.pickle"):
                found = pickle.loads((Path(folder) / name).read_bytes())
                said = found["allocator_settings"]["flight_recorder"]
                self.assertEqual(said["capacity"], 50, name)
                self.assertGreater(said["overwritten"], 140, name)
                sizes = [event["size"] for event in found["device_traces"][1] if event["action"] == "alloc"]
                self.assertEqual(sizes[-10:], [(2 << 20) + count for count in range(90, 100)], name)
            self.assertEqual(found["device_traces"][1][-1]["action"], "oom")
            self.assertIn(f"a,0,{(2 << 20) + 75},", (Path(folder) / "asked.csv").read_text())


if __name__ == "__main__":
    unittest.main()

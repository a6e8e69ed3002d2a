"""The parts of the programs in gpu/ that need no GPU: the choice of tests, the order of runs, and tables."""

import gzip
import itertools
import json
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

from processes import has_torch, path_with, run

GPU = Path(__file__).resolve().parent / "gpu"
sys.path.insert(0, str(GPU))

import programs_table
import pytorch_tests
import pytorch_tests_choice as choice
import pytorch_tests_table as tests_table

from seamalloc._library import PATH

# A file of tests, of which each ends in another way.
FAKE = """
import os, signal, unittest

class TestEnds(unittest.TestCase):
    def test_crashes(self): os.kill(os.getpid(), signal.SIGSEGV)
    def test_fails(self): self.assertEqual(1, 2)
    def test_is_skipped(self): self.skipTest("a reason")
    def test_of_pinned_memory(self): pass
    def test_mem_get_info(self): pass
    def test_warns(self): os.write(2, b" WARN seamalloc::config: 7 of 0x7f\\n WARN seamalloc::config: 8 of 0x2a\\nWARN other\\n")
    def test_passes(self): pass

class TestOtherCPU(unittest.TestCase):
    def test_is_not_taken(self): pass
"""


def report(test, allocator, outcome, turn=1, message=""):
    """A line of the runner."""
    return {
        "suite": "cuda",
        "test": test,
        "allocator": allocator,
        "outcome": outcome,
        "round": turn,
        "message": message,
    }


@unittest.skipUnless(has_torch(), "PyTorch with CUDA is not installed")
class PageLocked(unittest.TestCase):
    def test_shapes_become_a_trace_of_what_save_on_cpu_asks_for(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "shapes.csv"
            size = ("--steps", 3, "--width", 128, "--layers", 2)
            done = run(GPU / "pinned_record.py", path, "--shapes", *size)
            self.assertEqual(done.returncode, 0, done.stderr)
            head, *lines = path.read_text().splitlines()
            # What is installed from the repository may lack the command.
            is_whole = (PATH.parent / "bin" / "seamalloc").is_file()
            judged = run("-m", "seamalloc", "pinned", path, "--json")
        self.assertEqual(json.loads(head[1:])["source"], "generated from the model's shapes on the CPU, not recorded")
        allocated = [line.split(",")[1:3] for line in lines if line.startswith("a")]
        freed = [line.split(",")[1] for line in lines if line.startswith("f")]
        self.assertEqual(sorted(number for number, _ in allocated), sorted(freed), "autograd drops all that it kept")
        # Of the widest activations: two sequences, four times the width, two bytes each.
        widest = [2 * 4 * 128 * 2 * length for length in (1500, 700, 2040)]
        sizes = [int(size) for _, size in allocated]
        self.assertTrue(all(sizes.count(size) >= 2 for size in widest), sorted(set(sizes)))
        if is_whole:
            self.assertEqual(judged.returncode, 0, judged.stderr)
            pytorch, ours = map(json.loads, judged.stdout.splitlines())
            self.assertEqual(pytorch["peak_live"], ours["peak_live"])
            self.assertGreater(pytorch["peak_reserved"], ours["peak_reserved"])


class Choice(unittest.TestCase):
    def test_takes_what_is_for_cuda(self):
        taken = lambda group, name, code="": choice.is_chosen("torch", "test_torch", group, name, code)
        self.assertTrue(taken("TestTorchDeviceTypeCUDA", "test_add_cuda"))
        self.assertFalse(taken("TestTorchDeviceTypeCPU", "test_add_cpu", "device='cuda'"))
        self.assertTrue(taken("TestTorch", "test_pickle", "x = torch.ones(2, device='cuda')"))
        self.assertFalse(taken("TestTorch", "test_pickle", "x = torch.ones(2)"))
        self.assertFalse(taken("TestTorchDeviceTypeCUDA", "test_pin_memory_cuda"))

    def test_never_takes_multicast(self):
        name = "test_nccl_user_buffer_registration"
        self.assertFalse(choice.is_chosen("c10d_nccl", "distributed/test_c10d_nccl", "Some", name, ""))

    def test_knows_what_a_test_needs(self):
        self.assertEqual(choice.gpus_wanted("@skip_if_lt_x_gpu(2)\n@skip_if_lt_x_gpu(4)\ndef test_x(self): pass"), 4)
        self.assertEqual(choice.gpus_wanted("def test_x(self): pass"), 0)
        self.assertTrue(choice.is_of_whole_device("test_x", "@largeTensorTest('12GB')"))
        self.assertFalse(choice.is_of_whole_device("test_x", "def test_x(self): pass"))

    def test_puts_classes_in_order(self):
        groups = ["NCCLTraceTest", "LargeCommTest", "CommTest", "DistributedDataParallelTest"]
        ordered = sorted(groups, key=lambda group: choice.order("c10d_nccl", group))
        self.assertEqual(ordered, groups[::-1])


class Done(unittest.TestCase):
    def test_is_what_both_have_reached(self):
        lines = [report(test, allocator, "passed") for test in ("a", "b") for allocator in ("native", "seamalloc")]
        lines[-1]["outcome"] = "not reached"
        lines += [report("c", allocator, "failed") for allocator in ("native", "expandable")]
        text = "".join(json.dumps(line) + "\n" for line in [{"seconds": 1.0}, *lines])
        with tempfile.TemporaryDirectory() as folder:
            plain, packed = Path(folder) / "lines", Path(folder) / "lines.gz"
            plain.write_text(text)
            self.assertEqual(pytorch_tests.reached_in([plain]), {"a"})
            packed.write_bytes(gzip.compress(json.dumps(report("c", "seamalloc", "skipped")).encode()))
            self.assertEqual(pytorch_tests.reached_in([plain, packed]), {"a", "c"})


class Pick(unittest.TestCase):
    def line(self, file, waiting, processes=0):
        line = pytorch_tests.Line(file, "native")
        line.waiting, line.processes = waiting, processes
        return line

    def test_first_what_nothing_is_known_of(self):
        known, unknown = SimpleNamespace(suite="cuda"), SimpleNamespace(suite="torch")
        lines = [self.line(known, ["a"] * 9), self.line(unknown, None), self.line(unknown, None)]
        self.assertIs(pytorch_tests.pick(lines), lines[1])
        # One process of a file tells which tests it has.
        lines[1].processes = 1
        self.assertIs(pytorch_tests.pick(lines), lines[0])

    def test_then_where_most_is_left_for_each_process(self):
        file = SimpleNamespace(suite="cuda")
        lines = [self.line(file, ["a"] * 9, 3), self.line(file, ["a"] * 6, 1), self.line(file, [], 0)]
        self.assertIs(pytorch_tests.pick(lines), lines[1])

    def test_none_where_each_test_has_a_process_or_none_starts(self):
        file = SimpleNamespace(suite="cuda")
        lines = [self.line(file, ["a"], 1), self.line(file, ["a"], 0)]
        lines[1].failed = pytorch_tests.STARTS
        self.assertIsNone(pytorch_tests.pick(lines))


class TestsTable(unittest.TestCase):
    def verdict(self, native, ours, test="test_cuda.A.test_x"):
        lines = [report(test, "native", outcome, turn) for turn, outcome in enumerate(native, 1)]
        lines += [report(test, "seamalloc", outcome, turn) for turn, outcome in enumerate(ours, 1)]
        return tests_table.verdict(test, tests_table.by_test(lines)["cuda"][test])

    def test_verdicts(self):
        self.assertEqual(self.verdict(["passed"], ["passed"]), "same")
        self.assertEqual(self.verdict(["passed"], ["crashed"]), "fails")
        self.assertEqual(self.verdict(["passed", "passed"], ["failed", "hung"]), "fails")
        self.assertEqual(self.verdict(["passed", "passed"], ["failed", "passed"]), "unsteady")
        self.assertEqual(self.verdict(["failed"], ["hung"]), "fails under both")
        # A run that ended before it says nothing.
        self.assertEqual(self.verdict(["passed", "passed"], ["failed", "not reached"]), "fails")
        self.assertEqual(self.verdict(["passed"], ["not reached"]), "not compared")
        self.assertEqual(self.verdict(["failed", "failed"], ["passed", "passed"]), "differs")
        self.assertEqual(self.verdict(["passed"], ["not reached"]), "not compared")
        self.assertEqual(self.verdict(["passed"], ["failed"], "test_cuda.A.test_record_stream"), "as known")

    def test_tables(self):
        lines = [
            report("test_cuda.A.test_x", "native", "passed"),
            report("test_cuda.A.test_x", "seamalloc", "failed", message="Expected 1 | got 2"),
            report("test_cuda.A.test_y", "native", "skipped"),
            report("test_cuda.A.test_y", "seamalloc", "not reached"),
        ]
        suites = tests_table.by_test(lines)
        self.assertIn(
            "| cuda | 2 | 1 / 0 / 1 | 0 / 1 / 0, 1 not reached | 1 | 0 | 0 | 0 |", tests_table.summary(suites)
        )
        expected = "| cuda | `test_cuda.A.test_x` | passed | failed | seamalloc: Expected 1 \\| got 2 |"
        self.assertIn(expected, tests_table.differences(suites))
        self.assertEqual(tests_table.failures_of_both(suites), "None.")

    def test_leaves_out_a_line_that_was_cut_off(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "lines"
            path.write_text('{"suite": "cuda"}\n{"sui')
            self.assertEqual(tests_table.read([path]), [{"suite": "cuda"}])
            path.write_text('{"sui\n{"suite": "cuda"}\n')
            with self.assertRaisesRegex(SystemExit, "1: not a line of JSON"):
                tests_table.read([path])


class ProgramsTable(unittest.TestCase):
    def read(self, losses):
        """Returns the lines of programs.py for one program in three rounds; seamalloc takes longer from round to round."""
        lines = []
        for number, (allocator, of) in itertools.product((1, 2, 3), losses.items()):
            factor = 1 + number / 2 if allocator == "seamalloc" else 1
            about = {"allocator": allocator, "round": number, "rank": 0}
            lines += [
                {**about, "step": step, "seconds": factor * (step + 1), "loss": loss} for step, loss in enumerate(of)
            ]
            lines.append({**about, "end": True, "allocated": 2**30, "reserved": 2**31 * number, "retries": 7})
        return self.read_lines(lines)

    def read_lines(self, lines):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "lines"
            path.write_text("".join(json.dumps({"program": "p", "gpus": 1, **line}) + "\n" for line in lines))
            return programs_table.read([path])

    def test_compares_sums_of_rounds(self):
        programs = self.read({"native": [1.0] * 8, "seamalloc": [1.0] * 7 + [1.5]})
        of = programs["p", 1]
        self.assertEqual(programs_table.seconds(of["native"][1]), [3, 4, 5, 6, 7, 8])
        self.assertEqual(programs_table.ratios(of["seamalloc"], of["native"]), [1.5, 2.0, 2.5])
        self.assertEqual(programs_table.furthest(of["seamalloc"], of["native"]), (0.5, 24))
        native, ours = programs_table.rows(programs)
        self.assertEqual(native[3:6], ["33.00", "", "8000.0"])
        self.assertEqual(ours[3:5], ["66.00 (49.50 to 82.50)", "2.000 (1.500 to 2.500)"])
        self.assertEqual(ours[5], "16000.0 (12000.0 to 20000.0)")
        self.assertEqual(ours[6:10], ["1.00", "4.00 (2.00 to 6.00)", "300.0% (100.0% to 500.0%)", "7"])
        self.assertEqual(ours[10:], ["", "up to 5.0e-01 apart, of 24", ""])

    def test_counts_failures_and_measures_what_ended(self):
        about = {"allocator": "native", "rank": 0}
        lines = [{**about, "round": 1, "step": 0, "seconds": 1.0, "loss": 1.0}, {**about, "round": 1, "end": True}]
        lines += [{**about, "round": 2, "step": 0, "seconds": 9.0, "loss": 1.0}]
        lines += [{"allocator": "native", "round": number, "error": f"no memory {number}"} for number in (2, 3)]
        programs = self.read_lines(lines)
        self.assertEqual(programs_table.rows(programs)[0][3], "1.00")
        self.assertEqual(programs_table.rows(programs)[0][-1], "2 of 3: no memory 2")
        self.assertEqual(programs_table.wrong(programs), ["p failed under native"])

    def test_says_what_is_wrong(self):
        same = [1.0] * 4
        self.assertEqual(programs_table.wrong(self.read({"native": same, "expandable": same, "seamalloc": same})), [])
        wrong = programs_table.wrong(self.read({"native": same, "expandable": same, "seamalloc": [1.0, 1.0, 1.0, 2.0]}))
        self.assertIn("losses under seamalloc are not native's", wrong[0])
        # A program that does not reproduce itself says nothing.
        other = [1.0, 1.0, 1.0, 3.0]
        self.assertEqual(programs_table.wrong(self.read({"native": same, "expandable": other, "seamalloc": other})), [])


# A program, or a rank of one: whoever began in another round, or under another allocator, must be gone.
ALONE = """
import json, os, sys, time
program, allocator, device, steps = sys.argv[1:5]
mine = os.environ.get("PROGRAMS_STORE", os.getpid())
with open(os.environ["BEGUN"], "a+") as begun:
    begun.seek(0)
    before = [json.loads(line) for line in begun]
    begun.write(json.dumps([os.getpid(), mine, allocator]) + "\\n")
others = [pid for pid, whose, _ in before if whose != mine and os.path.exists(f"/proc/{pid}")]
if others:
    sys.exit(f"not alone: {others}")
if allocator == "expandable" and len({whose for _, whose, name in before if name == allocator}) == 1:
    sys.exit("out of memory")
for step in range(int(steps)):
    print(json.dumps({"step": step, "seconds": 1.0, "loss": 1.0}), flush=True)
limit = os.environ.get("PROGRAMS_LIMIT")
print(json.dumps({"end": True, "allocated": 100, "reserved": 200, "limit": limit}), flush=True)
time.sleep(60)
"""


class Programs(unittest.TestCase):
    def lines(self, folder, *arguments):
        """Runs programs.py. Returns its exit status, and what it wrote."""
        worker, out = Path(folder) / "worker.py", Path(folder) / "lines"
        worker.write_text(ALONE)
        code = "import sys; from pathlib import Path; import programs; programs.WORKER = Path(sys.argv.pop(1)); programs.main()"
        environment = {"PYTHONPATH": path_with(GPU), "BEGUN": Path(folder) / "begun"}
        command = ["-c", code, worker, "--json", out, "--device", "cpu", "--steps", 4, *arguments]
        done = run(*command, **environment)
        return done, [json.loads(line) for line in out.read_text().splitlines()]

    def test_run_alone_in_rounds_whatever_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            done, lines = self.lines(folder, "--programs", "peft")
            programs = programs_table.read([Path(folder) / "lines"])
        self.assertEqual(done.returncode, 1, done.stderr)
        order = [(number, allocator) for number in (1, 2, 3) for allocator in ("native", "expandable", "seamalloc")]
        self.assertEqual([(line["round"], line["allocator"]) for line in lines if "step" not in line], order)
        failed = [line for line in lines if "error" in line]
        self.assertEqual([line["round"] for line in failed], [2])
        self.assertIn("exit status 1. out of memory", failed[0]["error"])
        self.assertEqual([row[3] for row in programs_table.rows(programs)], ["3.00"] * 3)
        self.assertEqual(programs_table.wrong(programs), ["peft failed under expandable"])

    def test_on_two_gpus_have_the_limits_that_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            two = ("--gpus", 2, "--programs", "ddp")
            _, lines = self.lines(folder, *two, "--allocators", "native", "--rounds", 1)
            self.assertEqual([line["rank"] for line in lines if "end" in line], [0, 1])
            limited = ("--live", Path(folder) / "lines", "--allocators", "seamalloc@1.5", "--rounds", 2)
            done, lines = self.lines(folder, *two, *limited)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        ends = [line for line in lines if "@" in line["allocator"] and "end" in line]
        self.assertEqual([(line["round"], line["rank"]) for line in ends], [(1, 0), (1, 1), (2, 0), (2, 1)])
        self.assertEqual({line["limit"] for line in ends}, {"150"})

    def test_that_are_not_reached_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            _, lines = self.lines(folder, "--programs", "peft,serving", "--seconds", 0, "--rounds", 1)
        self.assertEqual({line["error"] for line in lines}, {"not reached: the time is over"})
        self.assertEqual(len(lines), 6)


@unittest.skipUnless(has_torch(), "PyTorch is missing")
class Runner(unittest.TestCase):
    def test_runs_every_test_whatever_becomes_of_its_process(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "test_cuda.py").write_text(FAKE)
            lines = Path(folder) / "lines"
            arguments = [folder, "--json", lines, "--allocators", "native", "--at-once", 2]
            done = run(GPU / "pytorch_tests.py", *arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
            tests = tests_table.by_test(tests_table.read([lines]))["cuda"]
        found = {test.rsplit(".", 1)[-1]: of["native"][0]["outcome"] for test, of in tests.items()}
        expected = {"test_crashes": "crashed", "test_fails": "failed", "test_is_skipped": "skipped"}
        passed = dict.fromkeys(["test_mem_get_info", "test_passes", "test_warns"], "passed")
        self.assertEqual(found, {**expected, **passed})

    def test_tells_what_allocators_complain_of(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "test_cuda.py").write_text(FAKE)
            path = Path(folder) / "lines"
            done = run(GPU / "pytorch_tests.py", folder, "--json", path, "--allocators", "native", "--only", "test_warns")
            self.assertEqual(done.returncode, 0, done.stderr)
            complaints = [line["complaints"] for line in tests_table.read([path]) if "complaints" in line]
        self.assertEqual(complaints, [{" WARN seamalloc::config: N of N": 2}])

    def test_says_that_nothing_was_reached(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "test_cuda.py").write_text("import time; time.sleep(60)\n" + FAKE)
            lines = Path(folder) / "lines"
            done = run(GPU / "pytorch_tests.py", folder, "--json", lines, "--allocators", "native", "--seconds", 2)
            errors = [line["error"] for line in tests_table.read([lines]) if "error" in line]
        self.assertEqual(done.returncode, 1)
        self.assertIn("give more --seconds", done.stderr)
        self.assertEqual(len(errors), 1)

    def test_says_what_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run(GPU / "pytorch_tests.py", folder, "--json", Path(folder) / "lines")
        self.assertEqual(done.returncode, 2)
        self.assertIn("test_cuda.py is missing", done.stderr)


if __name__ == "__main__":
    unittest.main()

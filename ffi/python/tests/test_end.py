"""The report at the end of a process, and log lines."""

import tempfile
import unittest
from pathlib import Path

from processes import path_with, run
from stand_in import make

PROGRAM = """
import ctypes, os, sys, seamalloc
seamalloc.enable(fallback="pluggable", max_views=7)
malloc = seamalloc._library.library.seamalloc_malloc
malloc.restype = ctypes.c_void_p
for device in map(int, sys.argv[1:]):
    assert malloc(ctypes.c_size_t(5 << 20), device, None)
"""


class OfStandIn(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        make(self.folder)

    def run_program(self, *devices, end="", status=0, **environment):
        keywords = {"PYTHONPATH": path_with(self.folder), "PYTHONWARNINGS": "ignore", **environment}
        done = run("-c", PROGRAM + end, *devices, **keywords)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stderr


class Report(OfStandIn):
    def test_is_of_each_device_that_was_used(self):
        text = self.run_program(0, 2, SEAMALLOC_REPORT="1")
        self.assertRegex(text, r"^seamalloc, process \d+, at its end\nseamalloc, device 0 \(sim:h200\)\n")
        self.assertEqual([f"device {device} " in text for device in range(4)], [True, False, True, False])
        self.assertEqual(text.count("at most 5.00 MiB"), 2, text)

    def test_is_only_for_those_who_ask(self):
        for asked in ({}, {"SEAMALLOC_REPORT": ""}, {"SEAMALLOC_REPORT": "0"}):
            self.assertEqual(self.run_program(0, **asked), "")
        self.assertEqual(self.run_program(SEAMALLOC_REPORT="1"), "", "no device was used")

    def test_goes_to_a_file_behind_those_of_other_processes(self):
        name = self.folder / "report-{rank}.txt"
        for rank in ("3", "3", "4"):
            self.assertEqual(self.run_program(1, SEAMALLOC_REPORT=name, RANK=rank), "")
        text = (self.folder / "report-3.txt").read_text()
        self.assertEqual(text.count(", rank 3, at its end\nseamalloc, device 1 (sim:h200)\n"), 2, text)
        self.assertEqual((self.folder / "report-4.txt").read_text().count("rank 4"), 1)
        self.run_program(1, SEAMALLOC_REPORT=self.folder / "{pid}")
        self.assertEqual(len([path for path in self.folder.iterdir() if path.name.isdigit()]), 1)

    def test_that_cannot_be_written_is_an_error_at_once(self):
        text = self.run_program(0, SEAMALLOC_REPORT="/nowhere/report", status=1)
        self.assertIn("FileNotFoundError", text)
        self.assertIn("(SEAMALLOC_REPORT): '/nowhere/report'", text)
        self.assertNotIn("at its end", text)

    def test_is_not_of_forked_processes(self):
        end = "\nif os.fork() == 0:\n    sys.exit(3)\nassert os.waitstatus_to_exitcode(os.wait()[1]) == 3\nsys.exit(4)"
        for asked in ({"SEAMALLOC_REPORT": "1"}, {"SEAMALLOC_LOG": "info"}):
            text = self.run_program(0, end=end, status=4, **asked)
            self.assertEqual(text.count("at its end") + text.count("an allocator in sum"), 1, text)
            self.assertNotIn("Traceback", text)


class Log(OfStandIn):
    def test_tells_of_devices_and_their_sums(self):
        opened, in_sum = self.run_program(1, SEAMALLOC_LOG="info").splitlines()
        for part in ("INFO", "an allocator is open", 'device="sim:h200"', "max_views:7"):
            self.assertIn(part, opened)
        for part in ("INFO", "an allocator in sum", "ordinal=1", 'peak_in_use="5.00 MiB"', "requests=1", "failed=0"):
            self.assertIn(part, in_sum)

    def test_is_silent_where_nobody_asks(self):
        for asked in ({}, {"SEAMALLOC_LOG": ""}, {"SEAMALLOC_LOG": "warn"}, {"SEAMALLOC_LOG": "off"}):
            self.assertEqual(self.run_program(1, **asked), "")

    def test_tells_of_options_without_effect_and_of_itself(self):
        text = self.run_program(1, conf="release_lock_on_cudamalloc:True", SEAMALLOC_LOG=",seamalloc::config=warn,")
        self.assertIn("has no effect: it concerns page-locked memory", text)
        self.assertIn("SEAMALLOC_LOG is `=x=`, which cannot be read", self.run_program(1, SEAMALLOC_LOG="=x="))


if __name__ == "__main__":
    unittest.main()

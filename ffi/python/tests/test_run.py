"""The command `python -m seamalloc`."""

import os
import tempfile
import unittest
from pathlib import Path

import seamalloc

from processes import has_torch, run

SCRIPT = """
import sys, seamalloc, helper
print(__name__, sys.argv[1:], seamalloc.enabled(), seamalloc.stats()["options"], helper.HERE)
if "fail" in sys.argv:
    sys.exit(3)
"""


class Command(unittest.TestCase):
    def assert_fails(self, arguments, part, **environment):
        done = run("-m", "seamalloc", *arguments, **environment)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(part, done.stderr)
        self.assertNotIn("Traceback", done.stderr)

    def test_says_what_is_wrong(self):
        self.assert_fails([], "usage:")
        self.assert_fails(["run"], "which program?")
        self.assert_fails(["run", "--recrod", "x"], "which program?")
        self.assert_fails(["run", "--record"], "needs a file's name")
        self.assert_fails(["run", "nothing.py"], "nothing.py is no file")
        self.assert_fails(["run", __file__], "SEAMALLOC_CONF: unknown option `strateg`", conf="strateg:stitch")

    def test_says_its_version(self):
        self.assertEqual(run("-m", "seamalloc", "--version").stdout.strip(), seamalloc.__version__)
        self.assertIn("usage:", run("-m", "seamalloc", "--help").stdout)

    @unittest.skipIf(has_torch(), "PyTorch is installed")
    def test_needs_pytorch(self):
        self.assert_fails(["run", __file__], "needs PyTorch")


@unittest.skipUnless(has_torch(), "PyTorch with CUDA is not installed")
class Programs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "program.py").write_text(SCRIPT)
        (self.folder / "helper.py").write_text("HERE = 'beside it'")

    def test_run_with_their_arguments_and_folder(self):
        done = run("-m", "seamalloc", "run", self.folder / "program.py", "--x", "1", conf="max_views:9")
        self.assertEqual(done.stdout.strip(), "__main__ ['--x', '1'] full max_views:9 beside it", done.stderr)

    def test_their_exit_status_is_the_commands(self):
        self.assertEqual(run("-m", "seamalloc", "run", self.folder / "program.py", "fail").returncode, 3)

    def test_modules_run_too_and_are_recorded(self):
        trace = self.folder / "t{rank}.csv"
        path = os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")])
        done = run("-m", "seamalloc", "run", "--record", trace, "-m", "program", PYTHONPATH=path, RANK="5")
        self.assertIn("beside it", done.stdout, done.stderr)
        self.assertTrue((self.folder / "t5.csv").is_file())

    def test_torchrun_starts_it(self):
        arguments = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "seamalloc", "run")
        done = run(*arguments, self.folder / "program.py", "y")
        self.assertEqual(done.stdout.count("__main__ ['y'] full"), 2, done.stderr)


if __name__ == "__main__":
    unittest.main()

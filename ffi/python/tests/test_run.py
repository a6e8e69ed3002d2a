"""The command `seamalloc`, and `python -m seamalloc`."""

import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from processes import has_torch, path_with, run
from stand_in import WithShim, make

import seamalloc

SCRIPT = """
import sys, seamalloc, helper
# In one write: ranks share the output.
print(f'{__name__} {sys.argv[1:]} {seamalloc.enabled()} {seamalloc.stats()["options"]} {helper.HERE}')
if "fail" in sys.argv:
    sys.exit(3)
"""
# What the program `seamalloc` is to its users, as far as it matters here.
PROGRAM = """#!/bin/sh
echo "$0: $@"
if [ "$1" = fail ]; then exit 3; fi
"""


class Command(unittest.TestCase):
    def assert_fails(self, arguments, part, status=1, **environment):
        done = run("-m", "seamalloc", *arguments, **environment)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertIn(part, done.stderr)
        self.assertNotIn("Traceback", done.stderr)

    def test_says_what_is_wrong(self):
        self.assert_fails([], "usage:", 2)
        self.assert_fails(["run"], "which program?", 2)
        self.assert_fails(["run", "--recrod", "x"], "--recrod is no option of run", 2)
        self.assert_fails(["run", "--record"], "--record needs a file's name", 2)
        self.assert_fails(["run", "--fallback"], "--fallback needs pytorch or pluggable", 2)
        self.assert_fails(["run", "--fallback", "native", __file__], "expected pytorch or pluggable", 2)
        self.assert_fails(["run", "nothing.py"], "nothing.py is no file")
        self.assert_fails(["run", __file__], "SEAMALLOC_CONF: unknown option `strateg`", conf="strateg:stitch")
        self.assert_fails(["run", __file__], "SEAMALLOC_FALLBACK is 'x'; expected", SEAMALLOC_FALLBACK="x")

    def test_says_its_version_and_what_it_can(self):
        self.assertEqual(run("-m", "seamalloc", "--version").stdout.strip(), seamalloc.__version__)
        for arguments in (["run", "--help"], ["run", "-h"], ["help", "run"]):
            done = run("-m", "seamalloc", *arguments)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("usage: seamalloc run", done.stdout)

    @unittest.skipIf(has_torch(), "PyTorch is installed")
    def test_needs_pytorch(self):
        self.assert_fails(["run", __file__], "Install it: pip install torch")


class InFolder(unittest.TestCase):
    """Tests with a copy of the package and a stand-in for PyTorch."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        self.path = {"PYTHONPATH": path_with(self.folder)}


class Others(InFolder):
    """Subcommands that the Rust command serves."""

    def setUp(self):
        super().setUp()
        self.program = WithShim(self.folder).package / "bin" / "seamalloc"

    def give_program(self, text=PROGRAM):
        WithShim.write(self.program, text)
        self.program.chmod(0o755)

    def test_are_those_of_the_program(self):
        self.give_program()
        done = run("-m", "seamalloc", "replay", "a file.seam", "--device", "x", **self.path)
        self.assertEqual(
            (done.returncode, done.stdout), (0, f"{self.program}: replay a file.seam --device x\n"), done.stderr
        )
        self.assertEqual(run("-m", "seamalloc", "fail", **self.path).returncode, 3)

    def test_need_no_pytorch(self):
        self.give_program()
        (self.folder / "torch" / "__init__.py").write_text("raise AssertionError('it was imported')")
        done = run("-m", "seamalloc", "fit", **self.path)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_are_in_the_help_beside_run(self):
        self.give_program()
        for word in ("--help", "-h", "help"):
            out = run("-m", "seamalloc", word, **self.path).stdout
            self.assertLess(out.index("usage: seamalloc run"), out.index(f"{self.program}: --help"))

    def test_are_an_error_where_the_program_is_missing_or_broken(self):
        done = run("-m", "seamalloc", "replay", "x", **self.path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("replay: this package was built without the program", done.stderr)
        self.assertIn("cargo install --locked --path crates/cli", done.stderr)
        self.give_program("")
        self.program.chmod(stat.S_IRUSR)
        self.program.write_bytes(b"nothing")
        done = run("-m", "seamalloc", "replay", "x", **self.path)
        self.assertIn("cannot be run: ", done.stderr)
        self.assertNotIn("Traceback", done.stderr)

    def test_of_the_package_are_the_real_ones_where_it_carries_them(self):
        if not (Path(seamalloc.__file__).parent / "bin" / "seamalloc").is_file():
            self.skipTest("this package was built without the program")
        job = self.folder / "job.csv"
        job.write_text("a,1,104857600,0\na,2,52428800,0\nr,2\nf,2\n")
        done = run("-m", "seamalloc", "replay", job)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("stitch", done.stdout)
        self.assertEqual(run("-m", "seamalloc", "replay", "--nonsense").returncode, 2)

    def test_of_python_are_named_by_the_program(self):
        program = Path(seamalloc.__file__).parent / "bin" / "seamalloc"
        if not program.is_file():
            self.skipTest("this package was built without the program")
        for name in ("run", "fleet"):
            done = subprocess.run([program, name, "--help"], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"python -m seamalloc {name}", done.stderr)
            # And it is there.
            self.assertEqual(run("-m", "seamalloc", name, "--help").returncode, 0)


class OfStandIn(InFolder):
    """`run`, with a pluggable allocator."""

    ALLOCATE = """
import ctypes, sys, seamalloc
malloc = seamalloc._library.library.seamalloc_malloc
malloc.restype = ctypes.c_void_p
for device in map(int, sys.argv[1:]):
    assert malloc(ctypes.c_size_t(5000 + device), device, None)
"""

    def setUp(self):
        super().setUp()
        make(self.folder)
        (self.folder / "helper.py").write_text("HERE = 'beside it'")
        self.program = self.folder / "program.py"
        self.program.write_text(SCRIPT)

    def run_program(self, *options, arguments=(), **environment):
        keywords = {"SEAMALLOC_FALLBACK": "pluggable", "PYTHONWARNINGS": "ignore", "SEAMALLOC_QUIET": "0"}
        command = ("-m", "seamalloc", "run", *options, self.program, *arguments)
        return run(*command, **{**self.path, **keywords, **environment})

    def test_is_an_entry_point(self):
        (self.folder / "bin").mkdir()
        entry = self.folder / "bin" / "seamalloc"
        # As pip writes it.
        entry.write_text("import sys\nfrom seamalloc.__main__ import main\nsys.exit(main())\n")
        (self.folder / "bin" / "helper.py").write_text("raise AssertionError('of the folder of the command')")
        keywords = {**self.path, "SEAMALLOC_FALLBACK": "pluggable", "PYTHONWARNINGS": "ignore"}
        done = run(entry, "run", self.program, "--x", "1", conf="max_views:9", **keywords)
        expected = "__main__ ['--x', '1'] pluggable max_views:9,sharing:never beside it"
        self.assertEqual(done.stdout.strip(), expected, done.stderr)
        self.assertEqual(run(entry, "run", self.program, "fail", **keywords).returncode, 3)
        self.assertEqual(run(entry, "--version").stdout.strip(), seamalloc.__version__)

    def test_has_the_programs_exit_code(self):
        for code, status in (("raise SystemExit(5)", 5), ("raise SystemExit", 0), ("1 / 0", 1)):
            self.program.write_text(code)
            self.assertEqual(self.run_program().returncode, status)

    def test_leaves_the_path_alone_where_python_has_put_nothing_there(self):
        if sys.version_info < (3, 11):
            self.skipTest("-P is of Python 3.11")
        self.program.write_text("import sys; print(sys.path[0])")
        found = run("-P", "-c", "import sys; print(sys.path[0])", **self.path).stdout
        keywords = {**self.path, "SEAMALLOC_FALLBACK": "pluggable"}
        self.assertEqual(run("-P", "-m", "seamalloc", "run", self.program, **keywords).stdout, found)

    def test_records_the_device_that_is_used(self):
        self.program.write_text(self.ALLOCATE)
        done = self.run_program("--record", self.folder / "t{rank}.csv", arguments=[3], RANK="5")
        self.assertEqual(done.returncode, 0, done.stderr)
        trace = self.folder / "t5.csv"
        self.assertIn(f"device 3 is recorded in {trace}", done.stderr)
        self.assertIn("5003", trace.read_text())
        self.assertEqual([path.name for path in self.folder.glob("t5*")], ["t5.csv"], "device 0 was not opened for it")

    def test_records_each_device_where_there_are_several(self):
        self.program.write_text(self.ALLOCATE)
        self.run_program(f"--record={self.folder}/t.csv.gz", arguments=[0, 2])
        names = sorted(path.name for path in self.folder.glob("t*.csv.gz"))
        self.assertEqual(names, ["t-device0.csv.gz", "t-device2.csv.gz"])
        self.run_program("--record", f"{self.folder}/d{{device}}.csv", arguments=[1])
        self.assertIn("5001", (self.folder / "d1.csv").read_text())

    def test_records_from_the_first_allocation_and_uses_no_gpu_before(self):
        self.program.write_text(
            "import os, seamalloc\nassert seamalloc._library.plugged_devices() == []\n"
            "child = os.fork()\n" + self.ALLOCATE + "\nif child == 0:\n    sys.exit(4)\n"
            "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4\nsys.exit(6)\n"
        )
        done = self.run_program("--record", self.folder / "t.csv", arguments=[0])
        self.assertEqual(done.returncode, 6, done.stderr)
        self.assertEqual(done.stderr.count("is recorded in"), 1, "not by the child too")

    def test_says_where_nothing_was_recorded(self):
        self.program.write_text("")
        done = self.run_program("--record", self.folder / "t.seam")
        self.assertIn("nothing was recorded to", done.stderr)
        self.assertEqual(done.returncode, 0)

    def test_says_at_once_where_nothing_can_be_recorded(self):
        self.program.write_text("print('begun')")
        for name, part in (("/nowhere/t.seam", "there is no such folder"), ("t.json", "named .seam, .csv or .csv.gz")):
            done = self.run_program("--record", name)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(part, done.stderr)
            self.assertNotIn("Traceback", done.stderr)


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
        path = path_with(self.folder)
        done = run("-m", "seamalloc", "run", "--record", trace, "-m", "program", PYTHONPATH=path, RANK="5")
        self.assertIn("beside it", done.stdout, done.stderr)
        self.assertTrue((self.folder / "t5.csv").is_file())

    def test_torchrun_starts_it(self):
        arguments = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "seamalloc", "run")
        done = run(*arguments, self.folder / "program.py", "y", SEAMALLOC_QUIET="0")
        self.assertEqual(done.stdout.count("__main__ ['y'] full"), 2, done.stderr)
        self.assertEqual(done.stderr.count("is the allocator of PyTorch"), 1, "of one of them")


if __name__ == "__main__":
    unittest.main()

"""The wheel that is given to users, where it is installed: what it does without a compiler, with an empty PATH.

Other builds of the package have no compiled shims; what is about them is left out there.
"""

import importlib.metadata
import json
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from processes import has_torch

import seamalloc

PACKAGE = Path(seamalloc.__file__).resolve().parent
MANIFEST = PACKAGE / "prebuilt" / "manifest.json"
# Two blocks of 100 and 50 MiB of which one is freed, as bytes.
TRACE = "a,1,104857600,0\na,2,52428800,0\nr,2\nf,2\n"
ENABLE = """
import time
import seamalloc, torch
began = time.monotonic()
seamalloc.enable()
took = time.monotonic() - began
assert seamalloc.enabled() == "full", seamalloc.enabled()
assert took < 1, f"{took} s"
stats = torch._C._cuda_memoryStats(0)
assert stats["allocated_bytes"]["all"]["current"] == 0, stats
print(torch.cuda.get_allocator_backend())
"""
LIBRARIES = """
import seamalloc, torch
seamalloc.enable()
with open("/proc/self/maps") as maps:
    print({line.split()[-1] for line in maps if "libseamalloc" in line} == {PATH} or "two copies")
"""


def run_alone(*command, **environment):
    """Runs a program in an environment with an empty PATH and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            list(map(str, command)),
            env={"PATH": "", "HOME": "/nonexistent", **environment},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def distribution():
    try:
        return importlib.metadata.distribution("seamalloc")
    except importlib.metadata.PackageNotFoundError:
        return None


class Command(unittest.TestCase):
    def setUp(self):
        if not (PACKAGE / "bin" / "seamalloc").is_file():
            self.skipTest("the package was built without the command")

    def outputs(self, *arguments):
        """Returns what the command prints, run through Python and as a program of its own."""
        ways = [[sys.executable, "-m", "seamalloc"]]
        program = Path(sys.executable).parent / "seamalloc"
        if distribution() is not None:
            self.assertTrue(program.is_file(), f"pip has made no {program}")
            ways.append([program])
        for way in ways:
            done = run_alone(*way, *arguments)
            self.assertEqual(done.returncode, 0, f"{way}: {done.stderr}")
            yield done.stdout

    def test_replays_and_judges_traces(self):
        with tempfile.TemporaryDirectory() as folder:
            job = Path(folder) / "job.csv"
            job.write_text(TRACE)
            for said in self.outputs("replay", job, "--json"):
                rows = [json.loads(line) for line in said.splitlines()]
                self.assertTrue(rows and all(row["peak_live"] == 150 << 20 for row in rows), said)
            for said in self.outputs("whatif", job, "--json"):
                self.assertEqual({json.loads(line)["peak_live"] for line in said.splitlines()}, {150 << 20}, said)

    def test_has_the_packages_version(self):
        for said in self.outputs("--version"):
            self.assertIn(seamalloc.__version__, said)


class Wheel(unittest.TestCase):
    def setUp(self):
        if not MANIFEST.is_file():
            self.skipTest("the package was built without compiled shims: it is no release")
        self.shims = json.loads(MANIFEST.read_text())

    def test_is_for_every_python_of_the_platform(self):
        self.assertRegex(distribution().read_text("WHEEL"), r"(?m)^Tag: py3-none-manylinux_2_28_x86_64$")

    def test_has_the_shims_that_its_list_names(self):
        named = {shim["library"] for shim in self.shims}
        self.assertTrue(named)
        self.assertEqual(named | {MANIFEST.name}, {path.name for path in MANIFEST.parent.iterdir()})

    def needs_shim(self):
        if not has_torch():
            self.skipTest("PyTorch with CUDA is not installed")
        import torch

        version = torch.__version__.partition("+")[0]
        if not any(version in shim["torch"] for shim in self.shims):
            self.skipTest(f"the wheel has no shim for PyTorch {version}")

    def test_takes_no_other_copy_of_the_c_library(self):
        self.needs_shim()
        with tempfile.TemporaryDirectory() as folder:
            for name in ("libseamalloc.so", "libseamalloc.so.1"):
                shutil.copy(PACKAGE / "libseamalloc.so", Path(folder) / name)
            code = LIBRARIES.replace("PATH", repr(str(PACKAGE / "libseamalloc.so")))
            done = run_alone(sys.executable, "-c", code, SEAMALLOC_DEVICE="sim:h200", LD_LIBRARY_PATH=folder)
            self.assertEqual((done.returncode, done.stdout), (0, "True\n"), done.stderr)

    def test_enables_within_a_second_without_a_compiler(self):
        self.needs_shim()
        # Python's start and PyTorch's import are not counted.
        began = time.monotonic()
        done = run_alone(sys.executable, "-c", ENABLE, SEAMALLOC_DEVICE="sim:h200", SEAMALLOC_CACHE="/nonexistent")
        self.assertEqual(
            (done.returncode, done.stdout), (0, "seamalloc\n"), f"{time.monotonic() - began} s\n{done.stderr}"
        )


if __name__ == "__main__":
    unittest.main()

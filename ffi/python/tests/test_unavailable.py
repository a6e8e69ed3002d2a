"""Programs in which seamalloc cannot be PyTorch's allocator: an error with its cause and a remedy, and fallbacks."""

import pickle
import shutil
import tempfile
import unittest
from pathlib import Path

from processes import has_torch, path_with, run
from stand_in import WithShim, make

import seamalloc

ENABLE = """
import pickle, sys, seamalloc
try:
    seamalloc.enable()
except seamalloc.UnavailableError as error:
    same = pickle.loads(pickle.dumps(error))
    assert (same.cause, str(same)) == (error.cause, str(error))
    assert seamalloc.enabled() is None and isinstance(error, RuntimeError) and error.remedy in str(error)
    print(error.cause)
    print(error)
else:
    print(seamalloc.enabled())
"""
FALL_BACK = """
import os, seamalloc, warnings
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    seamalloc.enable(fallback=os.environ["ASKED"] or None, max_views=7)
for one in warned:
    assert one.category is RuntimeWarning and one.filename == "<string>", one
    print("warned:", one.message)
print(seamalloc.enabled(), os.environ["SEAMALLOC_CONF"])
"""
COMPILER = shutil.which("c++")


class Errors(unittest.TestCase):
    """Errors with a stand-in for PyTorch."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.environment = {"PYTHONPATH": path_with(self.folder), "SEAMALLOC_CACHE": self.folder / "cache"}

    def stand_in(self, libraries=True):
        found = WithShim(self.folder)
        if libraries:
            if COMPILER is None:
                self.skipTest("there is no C++ compiler (c++)")
            found.make_libraries(COMPILER)
        # A version that is known, so that what is missing is to blame.
        self.environment["STAND_IN_VERSION"] = "2.15.0+cu130"
        return found

    def answer(self, code=ENABLE, **environment):
        done = run("-c", code, **{**self.environment, **environment})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def assert_error(self, cause, *parts, **environment):
        found, _, text = self.answer(**environment).partition("\n")
        self.assertEqual(found, cause, text)
        for part in (*parts, "SEAMALLOC_FALLBACK=pytorch"):
            self.assertIn(part, text)

    def test_no_compiler_and_no_prebuilt(self):
        self.stand_in(libraries=False)
        for environment in ({"CXX": "no-such-compiler"}, {"PATH": "", "CXX": ""}):
            self.assert_error(
                "compiler", "there is no C++ compiler", "Install g++ or clang++, or set CXX", **environment
            )
        self.assertFalse((self.folder / "cache").exists(), "nothing was to be kept")

    def test_a_compiler_that_fails_is_quoted(self):
        self.stand_in()
        self.assert_error("compiler", "false failed", "g++ 11 or newer", "-std=c++20", CXX="false")

    def test_a_compiler_that_cannot_be_run(self):
        stand_in = self.stand_in()
        broken = self.folder / "broken"
        stand_in.write(broken, "#!/no/such/interpreter\n")
        broken.chmod(0o755)
        self.assert_error("compiler", "cannot be run", CXX=broken)

    def test_headers_of_pytorch(self):
        stand_in = self.stand_in()
        shutil.rmtree(stand_in.headers)
        self.assert_error("headers", "PyTorch's headers are missing", str(stand_in.headers), "Install PyTorch by pip")

    def test_headers_of_cuda(self):
        stand_in = self.stand_in()
        shutil.rmtree(stand_in.cuda)
        toolkit = Path("/usr/local/cuda/include/cuda_runtime_api.h")
        if toolkit.is_file() or shutil.which("nvcc"):
            self.skipTest("CUDA is installed on this machine")
        self.assert_error(
            "headers", "cuda_runtime_api.h", "nvidia-cuda-runtime", "CUDA_HOME", CUDA_HOME="", CUDA_PATH=""
        )

    def test_one_header_that_an_include_needs(self):
        stand_in = self.stand_in()
        stand_in.write(stand_in.cuda / "cuda_runtime_api.h", "#include <crt/host_defines.h>\n")
        self.assert_error("headers", "the header crt/host_defines.h is missing", "nvidia-cuda-runtime")

    def test_versions_that_do_not_compile(self):
        stand_in = self.stand_in()
        stand_in.write(stand_in.headers / "c10" / "core" / "Allocator.h", "#error another interface\n")
        for version in ("2.99.0", "2.5.1"):
            parts = ("compiles for PyTorch 2.6 to 2.15, and does not for " + version, "another interface")
            self.assert_error("version", *parts, "Install PyTorch 2.6 to 2.15", STAND_IN_VERSION=version)

    def test_versions_that_nobody_can_read(self):
        self.stand_in()
        self.assert_error("version", "'mine' is no version", STAND_IN_VERSION="mine")

    def test_versions_that_nobody_knows_are_tried(self):
        self.stand_in()
        self.assertEqual(self.answer(STAND_IN_VERSION="2.99.0"), "full\n")

    def test_folders_that_cannot_be_written_to(self):
        self.stand_in()
        (self.folder / "file").write_text("")
        for folder in (self.folder / "file", self.folder / "file" / "below", "/proc/nowhere"):
            self.assert_error("cache", str(folder), "Set SEAMALLOC_CACHE to a folder", SEAMALLOC_CACHE=folder)

    def test_a_build_without_cuda(self):
        make(self.folder)
        self.assert_error("cpu-build", "is built without CUDA", "Install a build with CUDA", STAND_IN_CUDA="")

    def test_cuda_is_in_use(self):
        make(self.folder)
        parts = ("too late: CUDA was used before", "before the first tensor", "python -m seamalloc run")
        self.assert_error("too-late", *parts, CUDA_IS_USED="")

    def test_the_allocator_is_in_use(self):
        self.stand_in()
        self.assert_error("too-late", "already initialized", REFUSED="Can't swap an already initialized allocator")

    def test_pytorch_refuses_it(self):
        self.stand_in()
        self.assert_error("refused", "does not take it: for a reason", REFUSED="for a reason")

    def test_caching_is_not_wanted(self):
        self.stand_in()
        self.assert_error(
            "no-caching", "PYTORCH_NO_CUDA_MEMORY_CACHING", "Unset it", PYTORCH_NO_CUDA_MEMORY_CACHING="1"
        )
        self.assertEqual(self.answer(PYTORCH_NO_CUDA_MEMORY_CACHING="0"), "full\n")

    @unittest.skipIf(has_torch(), "PyTorch is installed")
    def test_no_pytorch(self):
        self.assert_error("torch", "PyTorch cannot be imported", "pip install torch")

    def test_pytorch_cannot_be_imported(self):
        make(self.folder, top="raise ImportError('a library is missing')\n")
        self.assert_error("torch", "a library is missing", "pip install torch")

    def test_options_stay_what_they_were(self):
        make(self.folder)
        code = ENABLE.replace("enable()", "enable(max_views=3)") + "import os; print(os.environ['SEAMALLOC_CONF'])"
        self.assertTrue(self.answer(code, conf="max_views:9").endswith("\nmax_views:9\n"))


class Fallbacks(unittest.TestCase):
    setUp = Errors.setUp
    stand_in = Errors.stand_in
    answer = Errors.answer

    def test_are_two(self):
        make(self.folder)
        code = """
import os, seamalloc
for asked in ("native", "", True):
    try:
        seamalloc.enable(fallback=asked)
    except ValueError as error:
        assert 'expected "pytorch" (its own allocator) or "pluggable"' in str(error), error
    else:
        raise AssertionError(asked)
os.environ["SEAMALLOC_FALLBACK"] = "natiev"
try:
    seamalloc.enable()
except ValueError as error:
    assert str(error).startswith("SEAMALLOC_FALLBACK is 'natiev'"), error
"""
        self.answer(code)

    def test_to_pytorch_warns_in_a_line_and_goes_on(self):
        make(self.folder)
        for environment in (
            {"CUDA_IS_USED": ""},
            {"STAND_IN_CUDA": ""},
            {"CXX": "no-such-compiler"},
            {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        ):
            for asked in ({"ASKED": "pytorch"}, {"ASKED": "", "SEAMALLOC_FALLBACK": "pytorch"}):
                with self.subTest(**environment, **asked):
                    first, *rest = self.answer(FALL_BACK, conf="max_views:9", **environment, **asked).splitlines()
                    self.assertIn("warned: seamalloc is not PyTorch's allocator, which goes on with its own (", first)
                    self.assertEqual(rest, ["None max_views:9"])

    def test_to_pytorch_without_pytorch(self):
        make(self.folder, top="raise ImportError('a library is missing')\n")
        self.assertIn("a library is missing", self.answer(FALL_BACK, ASKED="pytorch"))

    def test_to_the_pluggable_allocator_says_what_is_missing_there(self):
        make(self.folder)
        for asked in ({"ASKED": "pluggable"}, {"ASKED": "", "SEAMALLOC_FALLBACK": "pluggable"}):
            text = self.answer(FALL_BACK, CXX="no-such-compiler", conf="", **asked)
            self.assertTrue(text.endswith("\npluggable max_views:7\n"), text)
            for part in ("no-such-compiler", "torch.OutOfMemoryError", "memory_stats", "Install g++"):
                self.assertIn(part, text)

    def test_to_the_pluggable_allocator_is_not_taken_for_granted(self):
        make(self.folder)
        code = ENABLE.replace("enable()", 'enable(fallback="pluggable")')
        for cause, environment in (
            ("too-late", {"CUDA_IS_USED": ""}),
            ("too-late", {"ALLOCATOR_IS_USED": "", "CXX": "no-such-compiler"}),
            ("cpu-build", {"STAND_IN_CUDA": ""}),
            ("no-caching", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
        ):
            self.assertEqual(self.answer(code, **environment).splitlines()[0], cause)

    def test_are_not_taken_where_the_full_allocator_can_be_had(self):
        self.stand_in()
        for asked in ("pytorch", "pluggable"):
            self.assertEqual(self.answer(FALL_BACK, ASKED=asked), "full max_views:7\n")

    def test_of_the_command(self):
        make(self.folder)
        program = self.folder / "program.py"
        program.write_text("import seamalloc; print(seamalloc.enabled())")
        for option, found in ((("--fallback", "pytorch"), "None\n"), (("--fallback=pluggable",), "pluggable\n")):
            done = run("-m", "seamalloc", "run", *option, program, CXX="no-such-compiler", **self.environment)
            self.assertEqual((done.returncode, done.stdout), (0, found), done.stderr)
            self.assertIn("RuntimeWarning: seamalloc is", done.stderr)
        done = run("-m", "seamalloc", "run", program, CXX="no-such-compiler", **self.environment)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("Install g++ or clang++", done.stderr)
        self.assertNotIn("Traceback", done.stderr)


class Displaced(unittest.TestCase):
    setUp = Errors.setUp
    stand_in = Errors.stand_in
    answer = Errors.answer

    def test_by_a_later_allocator_it_is_not_enabled(self):
        self.stand_in()
        for fallback, compiler in (("None", ""), ("'pluggable'", "no-such-compiler")):
            code = f"""
import seamalloc, torch
seamalloc.enable(fallback={fallback})
print(seamalloc.enabled())
torch.cuda.memory.change_current_allocator(torch.Pluggable(torch.__file__, "malloc", "free"))
assert seamalloc.enabled() is None
"""
            found = self.answer(code, CXX=compiler, PYTHONWARNINGS="ignore", SEAMALLOC_CACHE=self.folder / fallback)
            self.assertEqual(found, "full\n" if fallback == "None" else "pluggable\n")


class Lines(unittest.TestCase):
    """The lines on standard error."""

    setUp = Errors.setUp
    stand_in = Errors.stand_in

    def lines(self, code="import seamalloc; seamalloc.enable()", **environment):
        done = run("-c", code, **{**self.environment, "SEAMALLOC_QUIET": "0", **environment})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr.splitlines()

    def test_say_that_it_compiles_and_that_it_is_on(self):
        self.stand_in()
        compiling, on = self.lines(conf="max_views:7")
        self.assertRegex(compiling, r"^seamalloc: compiling for PyTorch 2\.15\.0\+cu130 with \S+, once, \d+ to \d+ s$")
        expected = (
            f"seamalloc: {seamalloc.__version__} is the allocator of PyTorch 2.15.0+cu130 (full, options max_views:7)"
        )
        self.assertEqual(on, expected)
        self.assertEqual(len(self.lines()), 1, "it is kept")
        self.assertIn("default options", self.lines()[0])

    def test_say_that_no_gpu_is_visible(self):
        self.stand_in()
        self.lines()
        on, none = self.lines(device="", CUDA_VISIBLE_DEVICES="")
        self.assertIn("is the allocator of PyTorch", on)
        expected = "seamalloc: no GPU is visible (CUDA_VISIBLE_DEVICES hides all), so that no GPU memory will be allocated"
        self.assertEqual(none, expected)

    def test_are_silenced(self):
        self.stand_in()
        self.assertEqual(self.lines("import seamalloc; seamalloc.enable(quiet=True)"), [])
        self.assertEqual(self.lines(SEAMALLOC_QUIET="1"), [])
        self.assertEqual(len(self.lines("import seamalloc; seamalloc.enable(quiet=False)", SEAMALLOC_QUIET="1")), 1)

    def test_are_of_one_process_of_a_machine(self):
        self.stand_in()
        self.lines()
        for name in ("LOCAL_RANK", "SLURM_LOCALID"):
            self.assertEqual((len(self.lines(**{name: "0"})), self.lines(**{name: "3"})), (1, []))

    def test_tell_of_pytorchs_options_that_have_no_effect(self):
        self.stand_in()
        self.lines()
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            _, ignored = self.lines(**{name: "expandable_segments:True,pinned_use_background_threads:True"})
            self.assertIn(f"what {name} says of GPU memory has no effect (expandable_segments:True", ignored)
            self.assertIn("SEAMALLOC_CONF", ignored)
            self.assertEqual(len(self.lines(**{name: "pinned_use_background_threads:True"})), 1, "PyTorch reads that")
            self.assertEqual(self.lines(**{name: "expandable_segments:True"}, SEAMALLOC_QUIET="1"), [])


class Text(unittest.TestCase):
    def test_is_that_of_the_library_after_pickling(self):
        for kind in (seamalloc.Error, seamalloc.OptionError, seamalloc.MissingFileError):
            same = pickle.loads(pickle.dumps(kind(5, "SEAM_STATUS_X", "what it says")))
            self.assertEqual(
                (type(same), same.status, same.name, str(same)), (kind, 5, "SEAM_STATUS_X", "what it says")
            )


if __name__ == "__main__":
    unittest.main()

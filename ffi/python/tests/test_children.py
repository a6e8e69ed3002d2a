"""Processes that multiprocessing starts. Most tests have a stand-in for PyTorch, which takes a pluggable allocator."""

import shutil
import tempfile
import textwrap
import unittest
from pathlib import Path

from processes import has_torch, path_with, run
from stand_in import TORCH, WithShim, make

PROGRAM = """
import multiprocessing, os, sys
{top}

def start(function, *arguments):
    process = multiprocessing.Process(target=function, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0, process.exitcode

def say():
    import seamalloc
    print(seamalloc.enabled(), os.environ["SEAMALLOC_CONF"], flush=True)

def child():
{child}

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
{main}
    start(child)
"""


COMPILER = shutil.which("c++")
METHODS = ("spawn", "forkserver")
ENABLE = "import seamalloc; seamalloc.enable(max_views=7)"
# Of the stand-in for PyTorch, for which no shim can be had.
PLUG = "import seamalloc; seamalloc.enable(max_views=7, fallback='pluggable')"


class Programs(unittest.TestCase):
    """A program in a folder of its own, run once for each way to start a process."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    ENABLE = ENABLE

    def run_program(self, *, child, main=None, top="", before=(), methods=METHODS, status=0, **keywords):
        main = self.ENABLE if main is None else main
        parts = {"child": textwrap.indent(textwrap.dedent(child), "    "), "main": textwrap.indent(main, "    ")}
        (self.folder / "program.py").write_text(PROGRAM.format(top=top, **parts))
        for method in methods:
            with self.subTest(method=method):
                # A fork server does not take its path from the program, nor does the command.
                path = path_with(self.folder)
                done = run(*before, self.folder / "program.py", method, PYTHONPATH=path, **keywords)
                self.assertEqual(done.returncode, status, done.stderr + done.stdout)
                yield done


class Children(Programs):
    ENABLE = PLUG

    def setUp(self):
        super().setUp()
        make(self.folder)

    def test_have_it_when_pytorch_is_imported(self):
        child = """
        import importlib.util, seamalloc
        assert importlib.util.find_spec("torch") is not None and "torch" not in sys.modules
        assert seamalloc.enabled() is None and type(sys.meta_path[0]).__name__ == "AfterImport"
        import torch
        assert type(sys.meta_path[0]).__name__ != "AfterImport"
        assert "seamalloc" not in type(torch.__loader__).__module__ and torch.__loader__ is torch.__spec__.loader
        say()
        """
        for done in self.run_program(child=child):
            self.assertEqual(done.stdout, "pluggable max_views:7\n")
            self.assertEqual(done.stderr.count("RuntimeWarning"), 1, "it is the parent's")

    def test_have_it_at_once_in_a_main_module_that_imports_pytorch(self):
        top = """\
import seamalloc, torch
# A fork server may have imported it before it forked.
if __name__ == "__mp_main__" and sys.argv[1] == "spawn":
    assert seamalloc.enabled() == "pluggable"
"""
        for done in self.run_program(top=top, child="say()"):
            self.assertEqual(done.stdout, "pluggable max_views:7\n")

    def test_of_a_fork_server_that_imported_pytorch_before(self):
        main = """\
import seamalloc
multiprocessing.set_forkserver_preload(["torch"])
start(print, "before")
seamalloc.enable(max_views=7, fallback="pluggable")
"""
        child = "assert 'torch' in sys.modules or sys.argv[1] == 'spawn'\nimport torch\nsay()"
        for done in self.run_program(main=main, child=child):
            self.assertEqual(done.stdout, "before\npluggable max_views:7\n")

    def test_of_a_fork_server_that_has_it_keep_it(self):
        (self.folder / "early.py").write_text("import seamalloc\nseamalloc.enable(max_views=9, fallback='pluggable')")
        main = "multiprocessing.set_forkserver_preload(['early'])\n" + PLUG
        child = """
        import seamalloc
        if sys.argv[1] == "forkserver":
            assert seamalloc.enabled() == "pluggable"
            seamalloc.enable(max_views=9, fallback="pluggable")
            print(seamalloc.stats()["options"])
        """
        for done in self.run_program(main=main, child=child):
            self.assertIn(done.stdout, ("", "max_views:9,sharing:never\n"))

    def test_of_a_fork_server_that_imported_the_main_module_keep_it(self):
        # As that of Python 3.14 and later does: earlier ones look for the module under another key.
        main = """\
from multiprocessing import spawn
of_python = spawn.get_preparation_data
def with_main(name):
    data = of_python(name)
    return {**data, "main_path": data["init_main_from_path"]}
spawn.get_preparation_data = with_main
"""
        top = "import torch\n" + PLUG + "\nprint('once', flush=True)"
        child = PLUG + "\nassert seamalloc.stats()['options'] == 'max_views:7,sharing:never'"
        for done in self.run_program(top=top, main=main, child=child, methods=["forkserver"]):
            self.assertEqual(done.stdout, "once\nonce\n", done.stderr)

    def test_forked_before_the_first_allocation_have_an_allocator_of_their_own(self):
        child = """
        import ctypes, seamalloc
        say()
        assert seamalloc._library.library.seamalloc_malloc(ctypes.c_size_t(512), 0, None) != 0
        assert seamalloc.stats()["allocated_bytes"]["all"]["current"] == 512
        """
        for done in self.run_program(child=child, methods=["fork"]):
            self.assertEqual(done.stdout, "pluggable max_views:7\n")

    def test_hand_it_down(self):
        top = "def grandchild():\n    import torch\n    say()"
        for done in self.run_program(top=top, child="assert 'torch' not in sys.modules\nstart(grandchild)"):
            self.assertEqual(done.stdout, "pluggable max_views:7\n")

    def test_never_import_pytorch_for_it(self):
        child = "import seamalloc\nassert seamalloc.enabled() is None and 'torch' not in sys.modules"
        for done in self.run_program(child=child):
            self.assertEqual(done.stderr.count("RuntimeWarning"), 1)

    def test_may_call_enable_for_the_same(self):
        top = "import seamalloc, torch\nseamalloc.enable(max_views=7, memory_limit='1GiB', fallback='pluggable')"
        child = "seamalloc.enable(memory_limit='1024MiB', fallback='pluggable')\nsay()"
        for done in self.run_program(top="import seamalloc, torch", main=top.splitlines()[1], child=child):
            self.assertEqual(done.stdout, "pluggable max_views:7,memory_limit:1GiB\n")
        for done in self.run_program(top=top, main="", child="say()"):
            self.assertEqual(done.stdout.split()[0], "pluggable")

    def test_may_not_ask_for_something_else_when_it_is_there(self):
        child = """
        import seamalloc, torch
        for wrong in ({"max_views": 8, "fallback": "pluggable"}, {"max_views": 7}, {"fallback": "pytorch"}):
            try:
                seamalloc.enable(**wrong)
            except RuntimeError as error:
                assert "of the process that started this one" in str(error), error
            else:
                raise AssertionError(wrong)
        seamalloc.enable(max_views=7, fallback="pluggable")
        say()
        """
        for done in self.run_program(child=child):
            self.assertEqual(done.stdout, "pluggable max_views:7\n")

    def test_may_ask_for_something_else_before(self):
        child = """
        import seamalloc
        seamalloc.enable(max_views=8, fallback="pluggable")
        import torch
        say()
        print(seamalloc.stats()["options"])
        try:
            seamalloc.enable(fallback="pluggable")
        except RuntimeError as error:
            assert "called once" in str(error), error
        else:
            raise AssertionError("called twice")
        """
        for done in self.run_program(child=child):
            self.assertEqual(done.stdout, "pluggable max_views:7,max_views:8\nmax_views:8,sharing:never\n")

    def test_fail_where_they_cannot_have_it(self):
        main = PLUG + "\nos.environ['CUDA_IS_USED'] = ''"
        for done in self.run_program(main=main, child="import torch\nsay()", status=1):
            self.assertEqual(done.stdout, "")
            self.assertIn("in this process, whose parent has it, it is too late: CUDA was used", done.stderr)
            self.assertIn("AssertionError: 1", done.stderr, "the child's exit status")

    def test_go_on_without_it_with_a_warning_where_the_parent_would(self):
        # The parent has the shim; there is none for the child, which finds another version.
        with_shim = WithShim(self.folder, has_torch=True)
        if COMPILER is None:
            self.skipTest("there is no C++ compiler (c++)")
        with_shim.make_libraries(COMPILER)
        main = """\
import seamalloc
seamalloc.enable(fallback=os.environ["ASKED"])
print(seamalloc.enabled(), flush=True)
os.environ.update(STAND_IN_VERSION="2.98.0", CXX="no-such-compiler")
"""
        child = """
        import seamalloc, torch
        say()
        seamalloc.enable(fallback=os.environ["ASKED"])
        try:
            seamalloc.enable()
        except RuntimeError as error:
            print(type(error).__name__, flush=True)
        start(grandchild)
        """
        keywords = {
            "top": "def grandchild():\n    import torch\n    say()",
            "SEAMALLOC_CACHE": with_shim.cache,
            "STAND_IN_VERSION": "2.99.0",
            "conf": "max_views:9",
        }
        for done in self.run_program(main=main, child=child, ASKED="pytorch", **keywords):
            self.assertEqual(done.stdout, "full\nNone max_views:9\nUnavailableError\nNone max_views:9\n")
            self.assertEqual(done.stderr.count("RuntimeWarning: "), 1, done.stderr)
            self.assertIn("in this process, whose parent has it, its shim has to be compiled", done.stderr)
        for done in self.run_program(main=main, child=child, ASKED="pluggable", **keywords):
            self.assertEqual(done.stdout, "full\npluggable max_views:9\nRuntimeError\npluggable max_views:9\n")
            self.assertEqual(done.stderr.count("RuntimeWarning: "), 1, done.stderr)

    def test_of_one_that_went_on_without_it_do_not_try_again(self):
        main = "import seamalloc\nseamalloc.enable(fallback='pytorch')\nprint(seamalloc.enabled(), flush=True)"
        child = """
        import seamalloc
        seamalloc.enable(fallback="pytorch")
        say()
        try:
            seamalloc.enable()
        except seamalloc.UnavailableError as error:
            print(error.cause)
        """
        for cause, why in (("compiler", {"CXX": "no-such-compiler"}), ("cpu-build", {"STAND_IN_CUDA": ""})):
            for done in self.run_program(main=main, child=child, **why):
                self.assertEqual(done.stdout, f"None\nNone \n{cause}\n")
                self.assertEqual(done.stderr.count("RuntimeWarning"), 1, "it is the parent's")

    def test_may_ask_again_after_an_error(self):
        child = """
        import seamalloc
        os.environ["CUDA_IS_USED"] = ""
        for options in ({"max_views": 8}, {"max_views": 7}):
            try:
                seamalloc.enable(**options, fallback="pluggable")
            except seamalloc.UnavailableError as error:
                print(error.cause)
        del os.environ["CUDA_IS_USED"]
        seamalloc.enable(max_views=7, fallback="pluggable")
        say()
        """
        for done in self.run_program(child=child):
            self.assertEqual(done.stdout, "too-late\ntoo-late\npluggable max_views:7,max_views:7\n")

    def test_that_cannot_import_seamalloc_go_on_too(self):
        main = PLUG + "\n"
        main += "sys.path = [path for path in sys.path if not os.path.isdir(path + '/seamalloc')]"
        for done in self.run_program(main=main, child="import torch\nprint('seamalloc' in sys.modules)"):
            self.assertEqual(done.stdout, "False\n")
            self.assertIn("though it is in its parent: No module named 'seamalloc'", done.stderr)

    def test_find_it_where_the_parent_did(self):
        # In place of a path that every Python here has: that of the parent alone.
        import seamalloc

        (self.folder / "other").mkdir()
        (self.folder / "other" / "seamalloc").symlink_to(Path(seamalloc.__file__).resolve().parent)
        main = "sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)) + '/other')\nimport seamalloc\n"
        main += "seamalloc.enable(fallback='pluggable')"
        child = "import seamalloc, torch\nassert '/other/' in seamalloc.__file__\nsay()"
        for done in self.run_program(main=main, child=child):
            self.assertEqual(done.stdout, "pluggable \n")

    def test_try_again_after_an_import_that_failed(self):
        torch = self.folder / "torch" / "__init__.py"
        torch.write_text("import os\nif 'BROKEN' in os.environ: raise ImportError('a library is missing')\n" + TORCH)
        child = """
        os.environ["BROKEN"] = ""
        try:
            import torch
        except ImportError:
            del os.environ["BROKEN"]
        import torch
        say()
        """
        for done in self.run_program(child=child):
            self.assertEqual(done.stdout, "pluggable max_views:7\n")

    def test_of_the_command_have_it(self):
        main = "import seamalloc"
        before = ("-m", "seamalloc", "run", "--fallback", "pluggable")
        for done in self.run_program(main=main, child="import torch\nsay()", before=before, conf="max_views:9"):
            self.assertEqual(done.stdout, "pluggable max_views:9\n")


@unittest.skipUnless(has_torch(), "PyTorch with CUDA is not installed")
class OfPyTorch(Programs):
    USE = """
    import seamalloc, torch
    assert seamalloc.enabled() == "full" and torch.cuda.get_allocator_backend() == "seamalloc"
    address = torch._C._cuda_cudaCachingAllocator_raw_alloc(10 << 20, 0)
    assert seamalloc.stats()["allocated_bytes"]["all"]["current"] == 10 << 20
    # In one piece: several processes write to the same place.
    print(seamalloc.stats()["options"] + "\\n", end="")
    """

    def test_of_the_shim_have_the_shim(self):
        for done in self.run_program(child=self.USE):
            self.assertEqual(done.stdout, "max_views:7\n")
            self.assertNotIn("seamalloc", done.stderr)

    def test_have_page_locked_memory_too(self):
        main = "import seamalloc\nseamalloc.enable(max_views=7, pinned='memory_limit:10MiB')"
        child = """
        import seamalloc, torch
        seamalloc.enable(max_views=7, pinned={"memory_limit": "10MiB"})
        print(seamalloc.stats("pinned")["options"])
        try:
            seamalloc.enable(max_views=7)
        except RuntimeError:
            print("its own")
        """
        for done in self.run_program(main=main, child=child):
            self.assertEqual(done.stdout, "memory_limit:10MiB\nits own\n", done.stderr)

    def test_of_torch_multiprocessing_and_the_command_have_it(self):
        main = "import torch.multiprocessing\n"
        main += "torch.multiprocessing.start_processes(rank, nprocs=2, start_method=sys.argv[1])"
        top = "import torch\ndef rank(number):\n    child()"
        before = ("-m", "seamalloc", "run")
        for done in self.run_program(top=top, main=main, child=self.USE, before=before, conf="max_views:9"):
            self.assertEqual(done.stdout, "max_views:9\n" * 3, done.stderr)


if __name__ == "__main__":
    unittest.main()

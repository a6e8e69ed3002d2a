"""The sources of the shim: the package, the cache, the compiler. PyTorch is a stand-in."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from processes import path_with, run
from stand_in import SHIM, WithShim

COMPILER = shutil.which("c++")
ENABLE = "import seamalloc; seamalloc.enable(); print(seamalloc.enabled())"
FAILS = """
import seamalloc
try:
    seamalloc.enable()
except seamalloc.UnavailableError as error:
    print(error.cause)
    print(error)
else:
    raise AssertionError(seamalloc.enabled())
"""


@unittest.skipIf(COMPILER is None, "there is no C++ compiler (c++)")
class OfStandIn(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.stand_in = WithShim(folder.name)
        self.stand_in.make_libraries(COMPILER)
        self.folder, self.cache = self.stand_in.folder, self.stand_in.cache
        self.environment = {
            "PYTHONPATH": path_with(self.folder),
            "SEAMALLOC_CACHE": self.cache,
            "SEAMALLOC_QUIET": "0",
            "STAND_IN_VERSION": "2.15.0+cu130",
        }

    def enable(self, **environment):
        """Enables seamalloc. Returns whether a shim was compiled."""
        done = run("-c", ENABLE, **{**self.environment, **environment})
        self.assertEqual((done.returncode, done.stdout), (0, "full\n"), done.stderr)
        return "compiling" in done.stderr

    def error(self, **environment):
        """Fails to enable seamalloc. Returns the cause and the text."""
        done = run("-c", FAILS, **{**self.environment, **environment})
        self.assertEqual(done.returncode, 0, done.stderr)
        cause, _, text = done.stdout.partition("\n")
        return cause, text

    def start(self, code, **environment):
        """Runs a program beside others."""
        given = {name: str(value) for name, value in {**self.environment, **environment}.items()}
        return subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **given},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kept(self):
        return sorted(self.cache.glob("*.so"))


class Pinned(OfStandIn):
    """Page-locked memory: the request to the shim, and the error where it has none."""

    PROGRAM = """
import ctypes, glob, os, seamalloc
asked = {"": None, "True": True, "False": False}.get(os.environ["ASKED"], os.environ["ASKED"])
try:
    seamalloc.enable(pinned=asked)
    print(seamalloc.enabled())
except seamalloc.UnavailableError as error:
    print(error.cause, seamalloc.enabled())
(path,) = glob.glob(os.environ["SEAMALLOC_CACHE"] + "/*.so")
shim = ctypes.CDLL(path)
shim.pinned_options.restype = ctypes.c_char_p
print(shim.pinned_options())
"""

    def ask(self, asked, **environment):
        done = run("-c", self.PROGRAM, ASKED=asked, **{**self.environment, **environment})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()

    def test_is_asked_for_by_the_argument_or_the_environment(self):
        self.assertEqual(self.ask(""), ["full", "None"])
        self.assertEqual(self.ask("True"), ["full", "b''"])
        self.assertEqual(self.ask("max_views:3"), ["full", "b'max_views:3'"])
        self.assertEqual(self.ask("", SEAMALLOC_PINNED="1"), ["full", "b''"])
        self.assertEqual(self.ask("", SEAMALLOC_PINNED="max_views:4"), ["full", "b'max_views:4'"])
        self.assertEqual(self.ask("False", SEAMALLOC_PINNED="max_views:4"), ["full", "None"])

    def test_is_taken_back_where_the_rest_cannot_be_had(self):
        self.assertEqual(self.ask("True", REFUSED="no"), ["refused None", "None"])
        self.assertEqual(self.ask("True", REFUSED_PINNED="no"), ["refused None", "b''"])


class Cache(OfStandIn):
    def test_keeps_a_shim_for_the_user_alone(self):
        self.assertTrue(self.enable())
        self.assertEqual(self.cache.stat().st_mode & 0o777, 0o700)
        (kept,) = self.kept()
        self.assertEqual(kept.stat().st_mode & 0o777, 0o700)
        self.assertEqual([path.name for path in self.cache.iterdir() if path.is_dir()], [], "nothing is left over")
        self.assertFalse(self.enable())

    def test_is_where_the_user_or_the_system_says(self):
        nowhere = {"SEAMALLOC_CACHE": "", "HOME": self.folder / "home"}
        self.assertTrue(self.enable(**nowhere, XDG_CACHE_HOME=self.folder / "xdg"))
        self.assertEqual(len(list(self.folder.glob("xdg/seamalloc/*.so"))), 1)
        self.assertTrue(self.enable(**nowhere, XDG_CACHE_HOME=""))
        self.assertEqual(len(list(self.folder.glob("home/.cache/seamalloc/*.so"))), 1)

    def test_compiles_anew_for_other_headers(self):
        self.enable()
        (self.stand_in.headers / "c10" / "core" / "Allocator.h").write_text("#define ALLOCATOR 2\n")
        self.assertTrue(self.enable())
        self.assertFalse(self.enable())
        self.stand_in.write(self.stand_in.headers / "c10" / "core" / "Other.h", "")
        self.assertFalse(self.enable(), "the shim does not include that one")

    def test_compiles_anew_for_another_version_compiler_or_shim(self):
        self.enable()
        self.assertTrue(self.enable(STAND_IN_VERSION="2.15.1+cu130"))
        self.assertTrue(self.enable(STAND_IN_CUDA="13.2"))
        self.assertTrue(self.enable(CXX=f"{COMPILER} -O1"))
        (self.stand_in.package / "shim" / "install.cpp").write_text(SHIM + "// changed\n")
        self.assertTrue(self.enable())
        self.assertFalse(self.enable())

    def test_serves_where_there_is_no_compiler_any_more_and_no_headers(self):
        self.enable()
        shutil.rmtree(self.stand_in.headers)
        self.assertFalse(self.enable(CXX="no-such-compiler"))

    def test_mends_what_cannot_be_loaded(self):
        self.enable()
        (kept,) = self.kept()
        whole = kept.read_bytes()
        record = kept.with_suffix(".json")
        for broken in (b"", whole[: len(whole) // 2], b"no library at all"):
            kept.write_bytes(broken)
            self.assertTrue(self.enable())
            self.assertFalse(self.enable())
        # What is as it was written, and still cannot be loaded.
        for source in ("", "void nowhere(); void call() { nowhere(); }"):
            compile_library = [COMPILER, "-shared", "-fPIC", "-x", "c++", "-", "-o", kept]
            subprocess.run(compile_library, input=source, text=True, check=True)
            kept.chmod(0o700)
            found = json.loads(record.read_text())
            found["library"] = hashlib.sha256(kept.read_bytes()).hexdigest()
            record.write_text(json.dumps(found))
            done = run("-c", ENABLE, **self.environment)
            self.assertRegex(done.stderr, r"compiling .*\(.*undefined symbol: ", "it says why")
            self.assertEqual(done.stdout, "full\n", done.stderr)
        record.unlink()
        self.assertTrue(self.enable(), "nobody knows what it was compiled with")

    def test_compiles_once_where_it_cannot_be_loaded_at_all(self):
        (self.stand_in.package / "shim" / "install.cpp").write_text("void nowhere(); void call() { nowhere(); }\n")
        cause, text = self.error()
        self.assertEqual(cause, "load", text)
        self.assertIn("was compiled and cannot be loaded", text)

    def test_loads_nothing_that_somebody_else_could_have_written(self):
        self.enable()
        (kept,) = self.kept()
        for path, mode, back in ((self.cache, 0o777, 0o700), (self.cache, 0o770, 0o700), (kept, 0o722, 0o700)):
            path.chmod(mode)
            cause, text = self.error()
            self.assertEqual(cause, "cache")
            self.assertIn(f"{path} can be written to by others", text)
            path.chmod(back)
        self.assertFalse(self.enable())

    @unittest.skipIf(os.geteuid() != 0, "only root can give a folder away")
    def test_loads_nothing_of_another_user(self):
        self.cache.mkdir()
        os.chown(self.cache, 12345, 12345)
        cause, text = self.error()
        self.assertEqual(cause, "cache")
        self.assertIn("belongs to another user (uid 12345)", text)
        self.assertIn("SEAMALLOC_CACHE", text)

    def test_leaves_alone_what_its_lock_points_to(self):
        self.cache.mkdir(mode=0o700)
        precious = self.folder / "precious"
        precious.write_text("as it was")
        (self.cache / "lock").symlink_to(precious)
        self.assertEqual(self.error()[0], "cache")
        (self.cache / "lock").unlink()
        (self.cache / "lock").write_text("as it was")
        self.assertTrue(self.enable())
        self.assertEqual((precious.read_text(), (self.cache / "lock").read_text()), ("as it was", "as it was"))

    def test_is_filled_by_one_process(self):
        processes = [self.start(ENABLE) for _ in range(4)]
        said = "".join(process.communicate()[1] for process in processes)
        self.assertEqual([process.returncode for process in processes], [0] * 4, said)
        self.assertEqual(said.count("compiling"), 1, said)

    def test_tells_those_who_wait_why_it_was_not_filled(self):
        slow = self.folder / "slow"
        self.stand_in.write(
            slow, f"#!/bin/sh\necho x >> {self.folder}/tries\nsleep 2\necho 'error: hopeless' >&2\nexit 1\n"
        )
        slow.chmod(0o755)
        processes = [self.start(FAILS, CXX=slow) for _ in range(3)]
        said = [process.communicate()[0] for process in processes]
        for text in said:
            self.assertTrue(text.startswith("compiler\n") and "hopeless" in text, text)
        self.assertEqual((self.folder / "tries").read_text(), "x\n")
        # Whoever comes later tries again.
        self.assertFalse("hopeless" in self.error(CXX="false")[1])
        self.assertTrue(self.enable())

    def test_says_that_another_process_compiles(self):
        self.cache.mkdir(mode=0o700)
        with open(self.cache / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            process = self.start(ENABLE)
            self.assertIn("waiting for another process", process.stderr.readline())
            self.assertIsNone(process.poll())
        out, errors = process.communicate()
        self.assertEqual(out, "full\n", errors)


class Compiler(OfStandIn):
    def test_is_ended_with_all_that_it_started_when_it_takes_too_long(self):
        slow = self.folder / "slow"
        self.stand_in.write(slow, f"#!/bin/sh\nsleep 600 &\necho $! > {self.folder}/pid\nwait\n")
        slow.chmod(0o755)
        code = "from seamalloc import _compiler\n_compiler.PATIENCE = 2\n" + FAILS
        began = time.monotonic()
        done = run("-c", code, **{**self.environment, "CXX": str(slow)})
        self.assertEqual(done.stdout.split("\n")[0], "compiler", done.stderr)
        self.assertIn("took longer than 2 s", done.stdout)
        self.assertLess(time.monotonic() - began, 60)
        pid = int((self.folder / "pid").read_text())
        for _ in range(100):
            with contextlib.suppress(FileNotFoundError):
                # Ended, and perhaps not yet collected by its new parent.
                if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                    time.sleep(0.05)
                    continue
            break
        else:
            self.fail("what the compiler started still runs")
        with open(self.cache / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_of_several_sources_one_may_fail(self):
        for name in ("a", "b", "c"):
            self.stand_in.write(self.stand_in.package / "shim" / f"{name}.cpp", f"int {name};\n")
        self.assertTrue(self.enable())
        self.stand_in.write(self.stand_in.package / "shim" / "b.cpp", "int b\n")
        cause, text = self.error()
        self.assertEqual(cause, "compiler")
        self.assertIn("b.cpp:1:6: error: expected", text)
        self.assertNotIn("a.cpp", text)


class Prebuilt(OfStandIn):
    """Shims that the package carries."""

    def setUp(self):
        super().setUp()
        self.enable()
        (kept,) = self.kept()
        record = json.loads(kept.with_suffix(".json").read_text())
        self.prebuilt = self.stand_in.package / "prebuilt"
        self.prebuilt.mkdir()
        shutil.copy(kept, self.prebuilt / "shim-one.so")
        self.manifest([self.one(record)])
        self.record = record
        shutil.rmtree(self.cache)
        self.environment["CXX"] = "no-such-compiler"

    def one(self, record, **different):
        entry = {"library": "shim-one.so", "torch": ["2.15.0"], "cxx11_abi": True}
        return {**entry, "headers": record["headers"], "digest": record["digest"], **different}

    def manifest(self, entries):
        (self.prebuilt / "manifest.json").write_text(json.dumps(entries))

    def test_need_no_compiler_and_no_cache(self):
        self.enable(PATH="")
        self.assertFalse(self.cache.exists())

    def test_fit_another_version_with_the_same_headers(self):
        self.enable(STAND_IN_VERSION="2.99.0")

    def test_fit_by_the_version_where_pytorch_has_no_headers(self):
        shutil.rmtree(self.stand_in.headers)
        self.enable()
        cause, text = self.error(STAND_IN_VERSION="2.14.0")
        self.assertEqual(cause, "compiler", text)

    def test_do_not_fit_other_headers_or_another_abi(self):
        header = self.stand_in.headers / "c10" / "core" / "Allocator.h"
        text = header.read_text()
        header.write_text("#define ALLOCATOR 2\n")
        self.assertEqual(self.error()[0], "compiler")
        header.write_text(text)
        self.manifest([self.one(self.record, cxx11_abi=False)])
        self.assertEqual(self.error()[0], "compiler")

    def test_come_before_the_cache(self):
        self.enable(CXX=COMPILER)
        self.assertFalse(self.cache.exists())

    def test_that_cannot_be_loaded_are_compiled_and_it_says_why(self):
        (self.prebuilt / "shim-one.so").write_bytes(b"nothing")
        cause, text = self.error()
        self.assertEqual(cause, "compiler")
        self.assertIn("shim-one.so, cannot be loaded: ", text)
        done = run("-c", ENABLE, **{**self.environment, "CXX": COMPILER})
        self.assertEqual(done.stdout, "full\n", done.stderr)
        self.assertRegex(done.stderr, "compiling .*shim-one.so, cannot be loaded: ")

    def test_have_a_list_that_can_be_read(self):
        for text in ("{", "[1]", '[{"library": "x"}]'):
            (self.prebuilt / "manifest.json").write_text(text)
            cause, found = self.error()
            self.assertEqual(cause, "load")
            self.assertIn("manifest.json cannot be read", found)


if __name__ == "__main__":
    unittest.main()

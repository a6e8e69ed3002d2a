"""Builds the wheel: the C library by cargo, beside Python files that load it with ctypes.

No extension module is built, so the wheel is for every Python 3 of a platform. maturin and setuptools-rust make
extension modules, named and tagged for one Python; this is one command line instead.

SEAMALLOC_CARGO_PROFILE names a profile of cargo other than `dist`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
WORKSPACE = HERE.parent.parent
PACKAGE = HERE / "seamalloc"


def version():
    """The workspace's."""
    text = (WORKSPACE / "Cargo.toml").read_text(encoding="utf-8")
    return re.search(r'^version = "(.+)"', text, re.MULTILINE).group(1)


def build_library():
    """Builds libseamalloc and says where it is."""
    profile = os.environ.get("SEAMALLOC_CARGO_PROFILE", "dist")
    command = ["cargo", "build", "--locked", "-p", "seamalloc-ffi", "--profile", profile]
    try:
        built = subprocess.run(
            [*command, "--message-format=json-render-diagnostics"],
            cwd=WORKSPACE,
            stdout=subprocess.PIPE,
            check=True,
        )
    except FileNotFoundError:
        sys.exit("seamalloc is built with cargo, which is missing: install Rust from https://rustup.rs")
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and "cdylib" in message["target"]["kind"]:
            return next(Path(name) for name in message["filenames"] if name.endswith(".so"))
    sys.exit("cargo built no libseamalloc.so; Linux is needed")


class BuildWithLibrary(build_py):
    """Puts the library and its header beside the Python files."""

    def run(self):
        if not (WORKSPACE / "ffi" / "seamalloc.h").is_file():
            sys.exit("seamalloc is built inside of its repository: pip install ./ffi/python")
        shutil.copy2(build_library(), PACKAGE / "libseamalloc.so")
        shutil.copy2(WORKSPACE / "ffi" / "seamalloc.h", PACKAGE / "seamalloc.h")
        # A library of another profile that is left from before may be the newer file.
        self.force = True
        super().run()


class WheelOfPlatform(bdist_wheel):
    """For one platform, and every Python 3 there."""

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


class WithLibrary(Distribution):
    """Not pure: it carries a library."""

    def has_ext_modules(self):
        return True


setup(
    version=version(),
    distclass=WithLibrary,
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelOfPlatform},
)

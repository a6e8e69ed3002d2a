"""Builds the package: the C library and the command by cargo, beside Python files that load and start them.

No extension module is built, so the wheel is for every Python 3 of a platform. maturin and setuptools-rust make
extension modules, named and tagged for one Python; this is one command line instead.

SEAMALLOC_CARGO_PROFILE names a profile of cargo other than `dist`. The command that builds the wheel for others
(build_tools) sets SEAMALLOC_BINARIES, a folder that has libseamalloc.so and seamalloc already, and SEAMALLOC_PREBUILT,
a folder of compiled shims with their manifest; without it the package has none, and compiles its shim on first use.
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
LIBRARY, COMMAND = "libseamalloc.so", "seamalloc"


def version():
    """The workspace's."""
    text = (WORKSPACE / "Cargo.toml").read_text(encoding="utf-8")
    return re.search(r'^version = "(.+)"', text, re.MULTILINE).group(1)


def build_binaries():
    """Builds the C library and the command by cargo, and says where each is, by its name."""
    profile = os.environ.get("SEAMALLOC_CARGO_PROFILE", "dist")
    command = ["cargo", "build", "--locked", "-p", "seamalloc-ffi", "-p", "seamalloc-cli", "--profile", profile]
    try:
        built = subprocess.run(
            [*command, "--message-format=json-render-diagnostics"],
            cwd=WORKSPACE,
            stdout=subprocess.PIPE,
            check=True,
        )
    except FileNotFoundError:
        sys.exit("seamalloc is built with cargo, which is missing: install Rust from https://rustup.rs")
    except subprocess.CalledProcessError as error:
        sys.exit(f"cargo could not build seamalloc (status {error.returncode}); what it says is above")
    found = {}
    for line in built.stdout.splitlines():
        message = json.loads(line)
        for path in map(Path, message.get("filenames", ())):
            if path.name in (LIBRARY, COMMAND):
                found[path.name] = path
    return found


class BuildWithBinaries(build_py):
    """Puts the library, its header and the command beside the Python files, and compiled shims where there are any."""

    def run(self):
        header = WORKSPACE / "ffi" / "seamalloc.h"
        if not header.is_file():
            sys.exit("seamalloc is built inside of its repository: pip install ./ffi/python")
        given = os.environ.get("SEAMALLOC_BINARIES")
        binaries = {name: Path(given) / name for name in (LIBRARY, COMMAND)} if given else build_binaries()
        for name in (LIBRARY, COMMAND):
            if name not in binaries or not binaries[name].is_file():
                sys.exit(f"there is no {name} in {given or 'what cargo built'}; Linux is needed")
        if self.editable_mode:
            package = PACKAGE
        else:
            # setuptools adds to the folder of an earlier build, and files that are gone since would be in the wheel.
            shutil.rmtree(self.build_lib, ignore_errors=True)
            package = Path(self.build_lib) / "seamalloc"
        super().run()
        (package / "bin").mkdir(parents=True, exist_ok=True)
        shutil.copy2(header, package / "seamalloc.h")
        shutil.copy2(binaries[LIBRARY], package / LIBRARY)
        shutil.copy2(binaries[COMMAND], package / "bin" / COMMAND)
        prebuilt = os.environ.get("SEAMALLOC_PREBUILT")
        if prebuilt:
            shutil.copytree(prebuilt, package / "prebuilt", dirs_exist_ok=True)


class WheelOfPlatform(bdist_wheel):
    """For one platform, and every Python 3 there."""

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


class WithBinaries(Distribution):
    """Not pure: it carries a library and a program."""

    def has_ext_modules(self):
        return True


setup(
    version=version(),
    distclass=WithBinaries,
    cmdclass={"build_py": BuildWithBinaries, "bdist_wheel": WheelOfPlatform},
)

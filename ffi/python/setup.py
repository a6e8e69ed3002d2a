"""Builds the package: the C library and the command by cargo, beside Python files that load and start them.

No extension module is built, so the wheel is for every Python 3 of a platform. maturin and setuptools-rust make
extension modules, named and tagged for one Python; this is one command line instead.

SEAMALLOC_CARGO_PROFILE names a profile of cargo other than `release`. The command that builds the wheel for others
(build_tools) sets SEAMALLOC_BINARIES, a folder that has libseamalloc.so and seamalloc already, and SEAMALLOC_PREBUILT,
a folder of compiled shims with their manifest; without it the package has none, and compiles its shim on first use.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
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


class Progress:
    """Lines that say how far the build is: to the terminal, where this process belongs to one, else to standard error.

    pip shows standard error with -v alone, and where the build fails.
    """

    STAGES = 3
    # Seconds without a line, at most, while crates become ready.
    INTERVAL = 10

    def __init__(self):
        self._began = self._last = time.monotonic()
        self._stage = 0

    def stage(self, text):
        """Begins the next stage."""
        self._stage += 1
        self.line(text)

    def line(self, text):
        """Says how far the stage is."""
        self._last = time.monotonic()
        line = f"seamalloc: [{self._stage}/{self.STAGES}] {text} ({self._last - self._began:.0f} s)\n"
        if sys.stderr.isatty() or not self._to_terminal(line):
            print(line, end="", file=sys.stderr, flush=True)

    def is_due(self):
        """Returns whether the last line is some time ago."""
        return time.monotonic() - self._last > self.INTERVAL

    @staticmethod
    def _to_terminal(line):
        """Writes to the terminal; returns whether there is one, in whose foreground this is."""
        try:
            terminal = os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY)
        except OSError:
            return False
        try:
            # A process in the background may be stopped where it writes.
            if os.tcgetpgrp(terminal) != os.getpgrp():
                return False
            # pip has begun a line of its own.
            os.write(terminal, f"\n{line}".encode())
        except OSError:
            return False
        finally:
            os.close(terminal)
        return True


def cargo(*arguments):
    """Starts cargo in the workspace, and reads its standard output line by line."""
    command = ["cargo", *arguments]
    try:
        started = subprocess.Popen(command, cwd=WORKSPACE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    except FileNotFoundError:
        sys.exit("seamalloc is built with cargo, which is missing: install Rust from https://rustup.rs")
    with started:
        yield from started.stdout
    if started.returncode != 0:
        sys.exit(f"cargo could not build seamalloc (status {started.returncode}); what it says is above")


def build_binaries(progress):
    """Builds the C library and the command by cargo, and says where each is, by its name."""
    profile = os.environ.get("SEAMALLOC_CARGO_PROFILE", "release")
    packages = ["--locked", "-p", "seamalloc-ffi", "-p", "seamalloc-cli"]
    progress.stage("fetching crates")
    # The list has what is needed here, and cargo fetches what it lists.
    listed = {line.split(" (")[0].strip() for line in cargo("tree", *packages, "-e", "normal,build", "--prefix", "none")}
    crates = len(listed - {""})
    progress.stage(f"compiling {crates} crates with the profile {profile}: the C library and the command")
    found, ready = {}, set()
    for line in cargo("build", *packages, "--profile", profile, "--message-format=json-render-diagnostics"):
        message = json.loads(line)
        for path in map(Path, message.get("filenames", ())):
            if path.name in (LIBRARY, COMMAND):
                found[path.name] = path
        target = message.get("target", {})
        if message["reason"] == "compiler-artifact" and "custom-build" not in target["kind"]:
            ready.add(message["package_id"])
            is_own = message["package_id"].startswith("path+")
            if not message["fresh"] and (is_own or progress.is_due()):
                progress.line(f"{len(ready)} of {crates} crates, with {target['name']}")
    return found


class BuildWithBinaries(build_py):
    """Puts the library, its header and the command beside the Python files, and compiled shims where there are any."""

    def run(self):
        header = WORKSPACE / "ffi" / "seamalloc.h"
        if not header.is_file():
            sys.exit("seamalloc is built inside of its repository: pip install ./ffi/python")
        given = os.environ.get("SEAMALLOC_BINARIES")
        progress = Progress()
        binaries = {name: Path(given) / name for name in (LIBRARY, COMMAND)} if given else build_binaries(progress)
        for name in (LIBRARY, COMMAND):
            if name not in binaries or not binaries[name].is_file():
                sys.exit(f"there is no {name} in {given or 'what cargo built'}; Linux is needed")
        if not given:
            progress.stage("packing the package")
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
    """A wheel for one platform, and every Python 3 there."""

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


class WithBinaries(Distribution):
    """A distribution that is not pure: it carries a library and a program."""

    def has_ext_modules(self):
        return True


setup(
    version=version(),
    distclass=WithBinaries,
    cmdclass={"build_py": BuildWithBinaries, "bdist_wheel": WheelOfPlatform},
)

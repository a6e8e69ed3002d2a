"""The source tree: where its parts are, and the description of PyTorch's interface that the package itself uses."""

import importlib.util
import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "ffi" / "python" / "seamalloc"
SHIM = PACKAGE / "shim"
# The folder of seamalloc.h, which the installed package has beside its Python files.
HEADER_FOLDER = ROOT / "ffi"


class BuildError(Exception):
    """The error of a build: what could not be built, where, and what was expected."""


def _load_interface():
    """Loads the module by path: importing the package would load the C library, which is not built yet."""
    spec = importlib.util.spec_from_file_location("seamalloc_interface", PACKAGE / "_interface.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


interface = _load_interface()


def cache_folder():
    """Returns the folder in which downloads are kept between runs."""
    folder = os.environ.get("SEAMALLOC_BUILD_CACHE")
    if folder:
        return Path(folder).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seamalloc-build"


def shim_sources():
    """The C++ files of the shim."""
    sources = sorted(SHIM.glob("*.cpp"))
    if not sources:
        raise BuildError(f"{SHIM} has no *.cpp")
    return sources


def declared_functions():
    """The functions that seamalloc.h declares."""
    return set(re.findall(r"\bseam\w+(?=\()", (HEADER_FOLDER / "seamalloc.h").read_text(encoding="utf-8")))


def files(under="."):
    """The files below a folder of the repository that git tracks or would track, relative to its root.

    A tracked file that is missing is an error: a build would leave it out without a word.
    """

    def listed(*options):
        command = ["git", "-c", "safe.directory=*", "ls-files", "-z", *options, "--", under]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
        except FileNotFoundError as error:
            raise BuildError("git is missing: it says which files belong to the source") from error
        except subprocess.CalledProcessError as error:
            raise BuildError(f"{ROOT} is no checkout of git: {error.stderr.decode().strip()}") from error
        return {Path(os.fsdecode(name)) for name in done.stdout.split(b"\0") if name}

    missing = listed("--deleted")
    if missing:
        raise BuildError(f"files that git tracks are missing: {', '.join(sorted(map(str, missing)))}")
    return sorted(listed("--cached", "--others", "--exclude-standard"))

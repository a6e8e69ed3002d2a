"""A real PyTorch with CUDA for the tests, which need no GPU: the simulated device is one. 5.5 GB, kept in the cache."""

import shutil
import subprocess
import sys

from . import index
from .source import BuildError, cache_folder, interface

# Bytes that must be free: what is installed and, on other disks than this one, what is unpacked.
SPACE = 8 << 30


class Unavailable(BuildError):
    """The error for a PyTorch that cannot be installed here, through no fault of this repository."""


def install():
    """Installs the newest PyTorch that the shim is for, where it is not there yet. Returns its folder of packages."""
    version = ".".join(map(str, interface.NEWEST))
    python = ".".join(map(str, sys.version_info[:2]))

    def fill(folder):
        space = shutil.disk_usage(folder).free
        if space < SPACE:
            raise Unavailable(f"PyTorch {version} needs {SPACE >> 30} GiB in {cache_folder()}, which has {space >> 30}")
        command = [
            "uv",
            "pip",
            "install",
            "--quiet",
            "--no-cache",
            "--only-binary",
            ":all:",
            "--python",
            sys.executable,
        ]
        command += ["--index-url", index.endpoint(), "--target", str(folder)]
        # NumPy: PyTorch warns where it is missing.
        done = subprocess.run(
            [sys.executable, "-m", *command, f"torch=={version}.*", "numpy"], capture_output=True, text=True
        )
        if done.returncode != 0:
            raise Unavailable(f"PyTorch {version} cannot be installed: {' '.join(done.stderr.split())[-500:]}")

    return index.complete(cache_folder() / f"python{python}-torch{version}", fill)

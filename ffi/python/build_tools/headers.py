"""The headers of PyTorch's versions, and of the CUDA that each was built with, in a cache: about 65 MB a version."""

import re
from pathlib import Path
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

from . import index
from .source import BuildError, cache_folder, interface

# The wheels of CUDA's headers, by CUDA's major version: the runtime, and what carries crt/.
CUDA_PROJECTS = {
    12: ("nvidia-cuda-runtime-cu12", "nvidia-cuda-nvcc-cu12"),
    13: ("nvidia-cuda-runtime", "nvidia-cuda-crt"),
}
TORCH_FILE = re.compile(r"torch/(include/.*|version\.py|lib/libc10(_cuda)?\.so)")
CUDA_FILE = re.compile(r"nvidia/\w+/(include/([^/]+\.h(pp)?|crt/[^/]+)|lib/libcudart\.so\.\d+)")


class Release(NamedTuple):
    """One version of PyTorch, as far as the shim is compiled and linked against it."""

    version: Version
    # The wheel's `torch` folder: include, version.py, and the libraries of c10.
    torch: Path
    # CUDA's version that the wheel was built with, and the folder of its packages.
    cuda: Version
    cuda_packages: Path

    @property
    def minor(self):
        return self.version.release[:2]

    @property
    def include(self):
        return self.torch / "include"

    @property
    def include_folders(self):
        api = self.include / "torch" / "csrc" / "api" / "include"
        return [self.include, api, *sorted(self.cuda_packages.glob("nvidia/*/include"))]

    @property
    def cxx11_abi(self):
        """Returns whether the wheel's libraries take the new std::string: names of the new one's functions have its namespace."""
        return b"ErrorC1ENS_14SourceLocationENSt7__cxx11" in (self.torch / "lib" / "libc10.so").read_bytes()


def known_versions():
    """Every release in the index, patch releases too, of the minor versions that the shim is for."""
    return sorted(v for v in index.wheels("torch") if interface.OLDEST <= v.release[:2] <= interface.NEWEST)


def newest_patches():
    """The newest patch release of each minor version that the shim is for. Each of them must be in the index."""
    newest = {version.release[:2]: version for version in known_versions()}
    (major, first), (_, last) = interface.OLDEST, interface.NEWEST
    for minor in range(first, last + 1):
        if (major, minor) not in newest:
            raise BuildError(
                f"{index.endpoint()} has no PyTorch {major}.{minor}, which _interface.py says the shim is for"
            )
    return sorted(newest.values())


def choose(names):
    """The versions that are named: "2.11.0", "2.11" for its newest patch, or one of these groups."""
    groups = {
        "oldest": lambda: newest_patches()[:1],
        "newest": lambda: newest_patches()[-1:],
        "minors": newest_patches,
        "all": known_versions,
    }
    chosen = set()
    for name in names:
        if name in groups:
            chosen.update(groups[name]())
            continue
        try:
            wanted = Version(name)
        except InvalidVersion as error:
            expected = f"expected 2.11.0, 2.11, {', '.join(groups)}"
            raise BuildError(f"{name!r} is no version of PyTorch; {expected}") from error
        exact = len(wanted.release) > 2
        fitting = [v for v in index.wheels("torch") if v == wanted or not exact and v.release[:2] == wanted.release[:2]]
        if not fitting:
            raise BuildError(f"{index.endpoint()} has no PyTorch {name} for Linux on x86-64")
        chosen.add(max(fitting))
    return sorted(chosen)


def fetch(version):
    """A version's headers, fetched where they are not in the cache."""

    def fill(folder):
        url = index.wheels("torch")[version]
        names = index.extract(url, TORCH_FILE.fullmatch, folder)
        for needed in ("torch/version.py", "torch/lib/libc10.so", "torch/include/c10/cuda/CUDACachingAllocator.h"):
            if needed not in names:
                raise BuildError(f"{url} has no {needed}: it is no wheel of PyTorch with CUDA")

    torch = index.complete(cache_folder() / f"torch-{version}", fill) / "torch"
    found = re.search(r"^cuda\b[^=]*= '(.+)'", (torch / "version.py").read_text(encoding="utf-8"), re.MULTILINE)
    if not found:
        raise BuildError(f"{torch / 'version.py'} does not say which CUDA it is for")
    cuda = Version(found.group(1))
    return Release(version, torch, cuda, fetch_cuda(cuda))


def fetch_cuda(version):
    """CUDA's headers that c10's include, of a major and minor version."""
    projects = CUDA_PROJECTS.get(version.major)
    if projects is None:
        raise BuildError(f"no packages are known for CUDA {version}; headers.py knows {sorted(CUDA_PROJECTS)}")

    def fill(folder):
        for project in projects:
            url = index.newest(project, version.release[:2])
            if not index.extract(url, CUDA_FILE.fullmatch, folder):
                raise BuildError(f"{url} has no headers")

    return index.complete(cache_folder() / f"cuda-{version}", fill)

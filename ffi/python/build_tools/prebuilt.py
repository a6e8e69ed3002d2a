"""The shims that the wheel carries: one for each allocator interface and C++ ABI, with a manifest of what each fits.

They are linked against empty libraries of PyTorch's names, so that any build of that version will do. What they leave
undefined is looked for in PyTorch's and CUDA's real ones.
"""

import functools
import json
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from . import elf, headers, portable
from .compile import include_flags
from .source import PACKAGE, ROOT, BuildError, cache_folder, declared_functions, interface, shim_sources

# The C library is needed by its soname. The package loads it first, so that no file of this name elsewhere
# (LD_LIBRARY_PATH) is loaded as a second copy.
SONAME = "libseamalloc.so.1"
# The libraries that a shim needs, besides those of libstdc++.
NEEDED = ["libc10.so", "libc10_cuda.so", "libtorch_cpu.so", "libtorch_cuda.so", SONAME]
RUNPATH = "$ORIGIN/.."
# libtorch_cuda.so and libtorch_cpu.so are too large to be fetched for a look; this class and these functions of them are what the
# shim registers itself with. A version without the functions is not compiled against them: its headers lack them.
OF_TORCH = (
    "_ZN5torch4cuda22CUDAPluggableAllocator",
    "_ZN2at16getHostAllocatorE",
    "_ZN2at16setHostAllocatorE",
)
# Resolved through libstdc++, which needs libgcc_s itself.
OF_LIBGCC = "_Unwind_Resume"
OF_GLIBC = ("libc.so.6", "ld-linux-x86-64.so.2")
# A version of PyTorch is given out for several CUDAs: what the shim calls is there in the oldest of each major version.
OLDEST_CUDA = (Version("12.4"), Version("13.0"))
# Headers that differ between versions by saying which one they are of.
VERSION_HEADERS = {"torch/headeronly/version.h", "torch/version.h", "torch/csrc/api/include/torch/version.h"}


class Shim(NamedTuple):
    """A compiled shim, as its line in the manifest says."""

    library: str
    torch: list
    cxx11_abi: bool
    headers: list
    digest: str


def abis(release):
    """The C++ ABIs in which a version is given out: the new one, and that of the wheel in the index (2.6: the old)."""
    return sorted({True, release.cxx11_abi})


def objects_of(release, cxx11_abi, folder):
    """Compiles the shim's sources into a folder. Returns the objects, and PyTorch's headers that they depend on."""
    flags = [flag for flag in interface.flags(release.minor, cxx11_abi) if flag != "-shared"]
    # The last that fits counts.
    names = [(f"{path}/", "") for path in (ROOT, PACKAGE.parent, release.torch.parent, release.cuda_packages)]
    compiled, used = [], set()
    for source in shim_sources():
        compiled.append(folder / f"{source.stem}.o")
        portable.compile_object(source, compiled[-1], [*flags, *include_flags(release)], names)
        used |= portable.headers_of(compiled[-1])
    compiled.append(folder / "older_libstdcxx.o")
    portable.compile_object(portable.HERE / "older_libstdcxx.cpp", compiled[-1], [*flags, "-std=c++17"], names)
    relative = {str(path.relative_to(release.include)) for path in used if path.is_relative_to(release.include)}
    return compiled, sorted(relative - VERSION_HEADERS)


def build_one(release, cxx11_abi, output):
    """Builds the shim of one release and ABI into the folder `output`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        objects, used = objects_of(release, cxx11_abi, folder)
        libraries = [portable.empty_library(library, folder) for library in NEEDED]
        # Names of libstdc++'s functions get their version from the real one.
        libraries.append(portable.of_compiler("libstdc++.so.6"))
        linked = folder / "shim.so"
        portable.link(objects, libraries, linked, [f"-Wl,-rpath,{RUNPATH}", "-Wl,-soname,seamalloc-shim.so"])
        try:
            check(linked, release, cxx11_abi, machine=[folder])
        except BuildError as error:
            raise BuildError(f"PyTorch {release.version}, C++11 ABI {int(cxx11_abi)}: {error}") from error
        digest = interface.digest(release.include, used)
        major, minor = release.minor
        library = f"shim-torch{major}.{minor}-{digest[:16]}-abi{int(cxx11_abi)}.so"
        shutil.copy2(linked, output / library)
    return Shim(library, [str(release.version)], cxx11_abi, used, digest)


def check(path, release, cxx11_abi, machine):
    """Raises BuildError where a shim does not keep what is promised of it."""
    library = elf.Library(path)
    library.check_age()
    library.check_text([*machine, ROOT, cache_folder(), Path.home(), tempfile.gettempdir()])
    others = [name for name in library.needed if name not in OF_GLIBC]
    if sorted(others) != sorted([*NEEDED, "libstdc++.so.6"]) or library.runpath != RUNPATH:
        raise BuildError(
            f"{path.name} needs {library.needed} by way of {library.runpath}, expected {NEEDED} and {RUNPATH}"
        )
    for name in ("seamalloc_install", "seamalloc_install_pinned", "seamalloc_pinned"):
        if name not in library.defined:
            raise BuildError(f"{path.name} does not export {name}")

    left = {name for name in library.undefined if not name.startswith(OF_TORCH)}
    left -= {OF_LIBGCC} | declared_functions()
    runtimes = [exported_by_cuda(headers.fetch_cuda(version)) for version in OLDEST_CUDA]
    left -= set.intersection(*runtimes)
    if cxx11_abi == release.cxx11_abi:
        for name in ("libc10.so", "libc10_cuda.so"):
            left -= elf.Library(release.torch / "lib" / name).defined
    else:
        # The index has no library with these names.
        left = {name for name in left if not name.startswith("_Z")}
    if left:
        raise BuildError(f"{path.name} uses what no library has: {', '.join(sorted(left))}")


@functools.cache
def exported_by_cuda(packages):
    """Returns the names that CUDA's runtime library defines."""
    (library,) = packages.glob("nvidia/*/lib/libcudart.so.*")
    return elf.Library(library).defined


def fits(shim, release):
    """Returns whether a shim was compiled from the same headers as a release has."""
    try:
        return interface.digest(release.include, shim.headers) == shim.digest
    except FileNotFoundError:
        return False


def build_minor(releases, cxx11_abi, output):
    """Builds the shims of the releases of one minor version, the newest first; one serves all that have its headers."""
    shims = []
    for release in sorted(releases, key=lambda release: release.version, reverse=True):
        fitting = next((shim for shim in shims if fits(shim, release)), None)
        if fitting:
            fitting.torch.append(str(release.version))
        else:
            shims.append(build_one(release, cxx11_abi, output))
    return shims


def build(releases, output):
    """Builds the shims of `releases` into the folder `output`, with their manifest."""
    output.mkdir(parents=True, exist_ok=True)
    if any(output.iterdir()):
        raise BuildError(f"{output} is not empty: what is left there would be taken for shims")
    minors = {}
    for release in releases:
        for cxx11_abi in abis(release):
            minors.setdefault((release.minor, cxx11_abi), []).append(release)
    shims = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        started = [pool.submit(build_minor, of, cxx11_abi, output) for (_, cxx11_abi), of in minors.items()]
        for result in started:
            for shim in result.result():
                size = (output / shim.library).stat().st_size
                print(f"{shim.library}: PyTorch {', '.join(shim.torch)}; {size >> 10} KiB", flush=True)
                shims.append(shim)
    manifest = [shim._asdict() for shim in shims]
    (output / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")

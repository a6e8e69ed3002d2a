"""The C++ shim: compiled against the PyTorch that is installed, once for each version of both, and kept.

The compiler is called directly. torch.utils.cpp_extension would need ninja, nvcc and Python's headers; the shim needs a
C++ compiler and CUDA's headers, which come with PyTorch's own packages too.
"""

import ctypes
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from ._library import PATH as LIBRARY

PACKAGE = Path(__file__).resolve().parent
SOURCES = PACKAGE / "shim"
# PyTorch's interface differs between versions; these were compiled against.
OLDEST, NEWEST = (2, 6), (2, 11)
# Compilers are given up after so many seconds.
PATIENCE = 600


class ShimError(RuntimeError):
    """The shim cannot be had; the text says why."""


def torch_version(torch):
    """PyTorch's version, major and minor."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def cache_folder():
    """Where compiled shims are kept."""
    folder = os.environ.get("SEAMALLOC_CACHE")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seamalloc"


def cuda_includes(torch):
    """The folders of CUDA's headers: those of a toolkit, or of the packages that PyTorch brings."""
    folders = []
    toolkit = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc = shutil.which("nvcc")
    if not toolkit and nvcc:
        toolkit = Path(nvcc).resolve().parent.parent
    for root in filter(None, (toolkit, "/usr/local/cuda")):
        folders.append(Path(root) / "include")
    # PyTorch's packages lie beside it.
    packages = Path(torch.__file__).resolve().parent.parent
    folders += sorted(packages.glob("nvidia/cu[0-9]*/include"), reverse=True)
    folders += [packages / "nvidia" / part / "include" for part in ("cuda_runtime", "cuda_nvcc", "cuda_crt")]
    # Triton carries all headers that c10 asks for.
    folders.append(packages / "triton" / "backends" / "nvidia" / "include")
    return [str(folder) for folder in folders if (folder / "cuda.h").is_file() or (folder / "crt").is_dir()]


def command(torch, output):
    """The command line that compiles the shim to `output`."""
    compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("c++") or shutil.which("g++") or "g++"]
    root = Path(torch.__file__).resolve().parent
    includes = [str(root / "include"), str(root / "include/torch/csrc/api/include"), *cuda_includes(torch)]
    major, minor = torch_version(torch)
    return [
        *compiler,
        "-std=c++17",
        "-O2",
        "-fPIC",
        "-shared",
        # What is exported is one function; PyTorch's own classes stay those of its libraries.
        "-fvisibility-inlines-hidden",
        f"-DSEAMALLOC_TORCH={major * 100 + minor}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        f"-I{PACKAGE}",
        *(argument for folder in includes for argument in ("-isystem", folder)),
        *map(str, sorted(SOURCES.glob("*.cpp"))),
        "-o",
        str(output),
        f"-L{root / 'lib'}",
        "-ltorch_cuda",
        "-lc10_cuda",
        "-lc10",
        str(LIBRARY),
        # Where a toolchain has libstdc++ as an archive only, a copy of it in the shim would meet the one that PyTorch
        # has loaded, and crash in its streams.
        *loaded_libraries("/libstdc++.so"),
    ]


def loaded_libraries(name):
    """Paths of the libraries of this process that have `name` in them."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if name in line}
    return sorted(path for path in paths if os.path.isfile(path))


def key(torch):
    """What a compiled shim depends on, as a name."""
    digest = hashlib.sha256()
    for part in (torch.__version__, str(torch.version.cuda), str(torch._C._GLIBCXX_USE_CXX11_ABI)):
        digest.update(part.encode() + b"\0")
    for path in (Path(__file__), PACKAGE / "seamalloc.h", *sorted(SOURCES.iterdir())):
        digest.update(path.read_bytes())
    return f"shim-torch{torch.__version__}-{digest.hexdigest()[:16]}.so"


def build(torch):
    """The compiled shim; compiled now if it is not there yet."""
    found = torch_version(torch)
    if not OLDEST <= found <= NEWEST:
        raise ShimError(
            f"PyTorch {torch.__version__} has another allocator interface than those that seamalloc knows "
            f"({OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]})"
        )
    if torch.version.cuda is None:
        raise ShimError(f"PyTorch {torch.__version__} is built without CUDA")
    folder = cache_folder()
    output = folder / key(torch)
    if output.is_file():
        return output
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "w") as lock:
            # One process of a machine compiles, the others wait for it.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not output.is_file():
                compile_to(torch, output)
    except OSError as error:
        raise ShimError(f"{folder} cannot be written to ({error}); set SEAMALLOC_CACHE to a folder that can") from error
    return output


def compile_to(torch, output):
    """Compiles the shim; it appears only when it is complete."""
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        unfinished = Path(folder) / "shim.so"
        arguments = command(torch, unfinished)
        try:
            result = subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE)
        except FileNotFoundError as error:
            raise ShimError(f"there is no C++ compiler ({arguments[0]}): install g++ or clang++, or set CXX") from error
        except subprocess.TimeoutExpired as error:
            raise ShimError(f"{arguments[0]} took longer than {PATIENCE} s") from error
        if result.returncode != 0:
            lines = [line for line in result.stderr.splitlines() if "error" in line][:5]
            raise ShimError(f"{shlex.join(arguments)}\nfailed:\n" + "\n".join(lines or [result.stderr[-2000:]]))
        os.replace(unfinished, output)


def install(torch):
    """Makes seamalloc PyTorch's allocator."""
    try:
        shim = ctypes.CDLL(str(build(torch)))
    except OSError as error:
        raise ShimError(f"the compiled shim cannot be loaded: {error}") from error
    shim.seamalloc_install.restype = ctypes.c_char_p
    why = shim.seamalloc_install()
    if why is not None:
        raise ShimError(why.decode(errors="replace"))

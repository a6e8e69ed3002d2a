"""A stand-in for PyTorch: what enabling looks at, so that it is tested where PyTorch is missing.

It takes a pluggable allocator, and `WithShim` a shim of a few lines, which is compiled, kept and loaded as the real one.
"""

import shutil
import subprocess
from pathlib import Path

# Of a version that nobody knows, without headers.
TORCH = """
import os, types
__version__ = os.environ.get("STAND_IN_VERSION", "0.1")
version = types.SimpleNamespace(cuda=os.environ.get("STAND_IN_CUDA", "13.0") or None)

class Pluggable:
    def __init__(self, library, malloc, free):
        assert os.path.isfile(library)
    def allocator(self):
        return self
    def __getattr__(self, name):
        return lambda function: None

current = None
def change_current_allocator(allocator):
    global current
    if "ALLOCATOR_IS_USED" in os.environ:
        raise RuntimeError("Can't swap an already initialized allocator")
    current = allocator

cuda = types.SimpleNamespace(
    is_initialized=lambda: "CUDA_IS_USED" in os.environ,
    current_device=lambda: 0,
    get_allocator_backend=lambda: "seamalloc" if current is None else "pluggable",
    memory=types.SimpleNamespace(
        CUDAPluggableAllocator=Pluggable, change_current_allocator=change_current_allocator
    ),
)
_C = types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True, _cuda_getAllocator=lambda: current)
"""

SHIM = """
#include <c10/core/Allocator.h>
#include <cuda_runtime_api.h>
#include <cstdlib>
#include <string>
extern "C" const char* seamalloc_install() { return std::getenv("REFUSED"); }
static std::string kept;
static const char* pinned = nullptr;
extern "C" const char* seamalloc_install_pinned(const char* options) {
  kept = options == nullptr ? "" : options;
  pinned = options == nullptr ? nullptr : kept.c_str();
  return std::getenv("REFUSED_PINNED");
}
extern "C" const char* pinned_options() { return pinned; }
extern "C" unsigned long long seamalloc_pinned(bool, const char** why) { *why = nullptr; return 0; }
"""


def make(folder, top=""):
    """Writes the stand-in to a folder that is to be on Python's path."""
    package = Path(folder) / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(top + TORCH)
    return package


class WithShim:
    """The stand-in with headers and libraries, in a folder, and a copy of the package seamalloc whose shim is of a few lines."""

    def __init__(self, folder, has_torch=False):
        import seamalloc

        self.folder = Path(folder).resolve()
        self.torch = self.folder / "torch" if has_torch else make(self.folder)
        self.headers = self.torch / "include"
        self.cuda = self.folder / "nvidia" / "cu13" / "include"
        self.cache = self.folder / "cache"
        self.write(self.headers / "c10" / "core" / "Allocator.h", "#define ALLOCATOR 1\n")
        self.write(self.cuda / "cuda.h", "")
        self.write(self.cuda / "cuda_runtime_api.h", "")
        self.package = self.folder / "seamalloc"
        self.package.mkdir()
        installed = Path(seamalloc.__file__).resolve().parent
        for path in [*installed.glob("*.py"), installed / "seamalloc.h"]:
            shutil.copy(path, self.package)
        shutil.copytree(installed / "fleet", self.package / "fleet", ignore=shutil.ignore_patterns("__pycache__"))
        (self.package / "libseamalloc.so").symlink_to(installed / "libseamalloc.so")
        self.write(self.package / "shim" / "install.cpp", SHIM)

    @staticmethod
    def write(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def make_libraries(self, compiler):
        """Libraries of PyTorch's names, empty."""
        for name in ("c10", "c10_cuda", "torch_cpu", "torch_cuda"):
            path = self.torch / "lib" / f"lib{name}.so"
            path.parent.mkdir(exist_ok=True)
            subprocess.run([compiler, "-shared", "-x", "c++", "/dev/null", "-o", path], check=True)

"""Compiles C++ against the installed PyTorch.

The compiler is called directly. torch.utils.cpp_extension would need ninja, nvcc and Python's headers. The shim needs a
C++ compiler and CUDA's headers, which PyTorch's own packages contain too.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ._interface import NEWEST, OLDEST, flags, minor_version
from ._library import PATH as LIBRARY
from ._unavailable import UnavailableError

PACKAGE = Path(__file__).resolve().parent
# Seconds after which a compiler is stopped.
PATIENCE = 600.0
# The largest number of compilers at once. Each takes up to 1 GB.
AT_ONCE = 4
KNOWN = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"


def torch_version(torch: Any) -> tuple[int, int]:
    """Returns PyTorch's version as major and minor."""
    try:
        return minor_version(torch.__version__)
    except ValueError:
        raise UnavailableError(
            "version",
            f"{torch.__version__!r} is no version of PyTorch's that can be read",
            f"Install PyTorch {KNOWN}",
        ) from None


def torch_include(torch: Any) -> Path:
    """Returns the folder of PyTorch's headers, which may not exist."""
    return Path(torch.__file__).resolve().parent / "include"


def compiler() -> list[str]:
    """Returns the C++ compiler's command. Raises `UnavailableError` without a compiler."""
    command = shlex.split(os.environ.get("CXX", "")) or [shutil.which("c++") or shutil.which("g++") or "c++"]
    if shutil.which(command[0]) is None:
        raise UnavailableError(
            "compiler",
            f"its shim has to be compiled for this PyTorch, and there is no C++ compiler ({command[0]})",
            "Install g++ or clang++, or set CXX",
        )
    return command


def toolchain() -> str | None:
    """Returns a text that identifies the C++ compiler, or None without a compiler."""
    try:
        command = compiler()
    except UnavailableError:
        return None
    path = Path(str(shutil.which(command[0]))).resolve()
    found = path.stat()
    return shlex.join([str(path), *command[1:], str(found.st_size), str(found.st_mtime_ns)])


def cuda_includes(torch: Any) -> list[str]:
    """Returns the folders of CUDA's headers: the headers of a toolkit, or of the packages that PyTorch depends on."""
    folders = []
    toolkit = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc = shutil.which("nvcc")
    if not toolkit and nvcc:
        toolkit = str(Path(nvcc).resolve().parent.parent)
    for root in filter(None, (toolkit, "/usr/local/cuda")):
        folders.append(Path(root) / "include")
    # PyTorch's packages are in the same folder as PyTorch.
    packages = Path(torch.__file__).resolve().parent.parent
    folders += sorted(packages.glob("nvidia/cu[0-9]*/include"), reverse=True)
    folders += [packages / "nvidia" / part / "include" for part in ("cuda_runtime", "cuda_nvcc", "cuda_crt")]
    # Triton contains all headers that c10 needs.
    folders.append(packages / "triton" / "backends" / "nvidia" / "include")
    return [str(folder) for folder in folders if (folder / "cuda.h").is_file() or (folder / "crt").is_dir()]


def check_headers(torch: Any) -> None:
    """Raises an error if headers of PyTorch or CUDA are missing."""
    include = torch_include(torch)
    if not (include / "c10").is_dir():
        raise UnavailableError(
            "headers",
            f"its shim has to be compiled for this PyTorch, and PyTorch's headers are missing ({include})",
            "Install PyTorch by pip, whose packages have them",
        )
    if not any(Path(folder, "cuda_runtime_api.h").is_file() for folder in cuda_includes(torch)):
        raise UnavailableError(
            "headers",
            "its shim has to be compiled for this PyTorch, and CUDA's headers are missing (cuda_runtime_api.h)",
            "Install the package nvidia-cuda-runtime (of CUDA 12: nvidia-cuda-runtime-cu12), or set CUDA_HOME",
        )


def shared_library(torch: Any, sources: Iterable[Path], output: Path) -> list[str]:
    """Compiles sources that use the C library and PyTorch to a shared library. Returns the names of PyTorch's headers
    that the sources include, relative to PyTorch's folder of headers."""
    command = compiler()
    check_headers(torch)
    options = [*command, *flags(torch_version(torch), torch._C._GLIBCXX_USE_CXX11_ABI)]
    include = torch_include(torch)
    folders = [str(include), str(include / "torch/csrc/api/include"), *cuda_includes(torch)]
    searched = [f"-I{PACKAGE}", *(argument for folder in folders for argument in ("-isystem", folder))]
    deadline = time.monotonic() + PATIENCE
    with tempfile.TemporaryDirectory(dir=output.parent) as name:
        folder = Path(name)
        units = [(source, folder / f"{source.stem}.o", folder / f"{source.stem}.d") for source in sources]
        compiling = [option for option in options if option != "-shared"]
        commands = [
            [*compiling, *searched, "-c", str(source), "-o", str(unit), "-MD", "-MF", str(needs)]
            for source, unit, needs in units
        ]
        libraries = [f"-L{include.parent / 'lib'}", "-ltorch_cuda", "-ltorch_cpu", "-lc10_cuda", "-lc10", str(LIBRARY)]
        # If a toolchain has libstdc++ only as an archive, the shim would contain a copy of it. The copy would conflict
        # with the libstdc++ that PyTorch has loaded, and crash in its streams.
        libraries += loaded_libraries("/libstdc++.so")
        linking = [*options, *(str(unit) for _, unit, _ in units), "-o", str(output), *libraries]
        for step in (commands, [linking]):
            failed = _run_all(step, folder, deadline)
            if failed is not None:
                raise _failure(torch, *failed)
        return sorted(set().union(*(_names(needs, include) for _, _, needs in units)))


def loaded_libraries(name: str) -> list[str]:
    """Returns the paths of the libraries of this process whose path contains `name`."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if name in line}
    return sorted(path for path in paths if os.path.isfile(path))


def _run_all(commands: list[list[str]], folder: Path, deadline: float) -> tuple[list[str], str] | None:
    """Runs commands, several at once. Returns a command that failed and its standard error, or None."""
    waiting = list(enumerate(commands))
    running: list[tuple[int, subprocess.Popen[bytes]]] = []
    # `_failure` searches error messages for English words.
    environment = {**os.environ, "LC_ALL": "C"}
    at_once = min(AT_ONCE, len(os.sched_getaffinity(0)))
    with ExitStack() as files:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    number, command = waiting.pop(0)
                    errors = files.enter_context(open(folder / f"errors-{number}", "wb"))
                    # The compiler runs in a session of its own, so that the compiler and its child processes can be
                    # ended together.
                    try:
                        started = subprocess.Popen(
                            command,
                            stdin=subprocess.DEVNULL,
                            stdout=errors,
                            stderr=errors,
                            env=environment,
                            start_new_session=True,
                        )
                    except OSError as error:
                        raise _failed(f"{command[0]} cannot be run to compile its shim ({error})") from error
                    running.append((number, started))
                for number, process in running:
                    if process.poll() is not None:
                        running.remove((number, process))
                        if process.returncode != 0:
                            return commands[number], (folder / f"errors-{number}").read_text(errors="replace")
                        break
                else:
                    if time.monotonic() > deadline:
                        raise _failed(f"compiling its shim took longer than {PATIENCE:.0f} s ({commands[0][0]})")
                    time.sleep(0.01)
        finally:
            for _, process in running:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return None


def _failure(torch: Any, command: list[str], errors: str) -> UnavailableError:
    """Returns the error that says why the compiler failed."""
    lines = [line for line in errors.splitlines() if re.search(r"error|cannot find|undefined", line)][:5]
    details = "\n".join([shlex.join(command), "failed:", *(lines or [errors[-2000:]])])
    missing = re.search(r"fatal error: '?([^':]+)'?(?:: No such file| file not found)", errors)
    version = torch_version(torch)
    if not OLDEST <= version <= NEWEST:
        return UnavailableError(
            "version",
            f"its shim compiles for PyTorch {KNOWN}, and does not for {torch.__version__}",
            f"Install PyTorch {KNOWN}, or a newer seamalloc",
            details,
        )
    if missing is not None:
        return UnavailableError(
            "headers",
            f"the header {missing.group(1)} is missing, which compiling its shim needs",
            "Install the package that has it, of CUDA's nvidia-cuda-runtime (of CUDA 12: nvidia-cuda-runtime-cu12), or "
            "set CUDA_HOME",
            details,
        )
    return _failed(f"{command[0]} failed to compile its shim for PyTorch {torch.__version__}", details)


def _failed(what: str, details: str = "") -> UnavailableError:
    return UnavailableError(
        "compiler", what, "Install g++ 11 or newer, or clang++ 13 or newer, or set CXX to one", details
    )


def _names(needs: Path, include: Path) -> list[str]:
    """Returns the files in the folder `include` that a compiler's dependency list names, relative to `include`."""
    text = needs.read_text(encoding="utf-8", errors="surrogateescape").replace("\\\n", " ")
    found = [part.replace("\\ ", " ") for part in re.split(r"(?<!\\)\s+", text)]
    inside = [os.path.relpath(path, include) for path in found if path.startswith(f"{include}{os.sep}")]
    return [name for name in inside if not name.startswith("..")]

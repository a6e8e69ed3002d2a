"""Compiles the shim against the headers of PyTorch's versions, as a user's machine would."""

import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor

from .source import HEADER_FOLDER, PACKAGE, BuildError, interface, shim_sources

ERRORS_SHOWN = 5


def include_flags(release):
    """The folders of headers: the shim's own, then PyTorch's and CUDA's."""
    flags = [f"-I{HEADER_FOLDER}", f"-I{PACKAGE}"]
    for folder in release.include_folders:
        flags += ["-isystem", str(folder)]
    return flags


def errors_of(release, source):
    """Returns the compiler's errors in one source; empty if there are none."""
    compiler = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    flags = [flag for flag in interface.flags(release.minor, release.cxx11_abi) if flag != "-shared"]
    command = [*compiler, *flags, "-fsyntax-only", *include_flags(release), str(source)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise BuildError(f"there is no C++ compiler ({compiler[0]}): install g++ or clang++, or set CXX") from error
    if done.returncode == 0:
        return []
    return [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr.strip() or "no message"]


def compile_all(releases):
    """Compiles every source against every release, and prints a line for each release. Returns whether all pass."""
    sources = shim_sources()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        started = {release: [pool.submit(errors_of, release, source) for source in sources] for release in releases}
        passed = True
        for release, results in started.items():
            errors = [line for result in results for line in result.result()]
            of = f"PyTorch {release.version} (CUDA {release.cuda}, C++11 ABI {int(release.cxx11_abi)})"
            print(f"{of}: {'fails' if errors else 'ok'}", flush=True)
            for line in errors[:ERRORS_SHOWN]:
                print(f"    {line}")
            if len(errors) > ERRORS_SHOWN:
                print(f"    and {len(errors) - ERRORS_SHOWN} more")
            passed &= not errors
    return passed

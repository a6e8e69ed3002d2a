"""The compiler of what runs on other machines: zig's, with glibc 2.28 and the headers of this machine's libstdc++.

PyTorch's libraries are libstdc++'s, so zig's own libc++ is left out. What newer headers call and the libstdc++ of
manylinux_2_28 lacks stands in older_libstdcxx.cpp; `elf.py` checks that nothing is left.
"""

import subprocess
import sys
from pathlib import Path

from .source import BuildError

HERE = Path(__file__).resolve().parent
GLIBC = (2, 28)
PLATFORM = "manylinux_2_28_x86_64"
TARGET = "x86_64-linux-gnu.2.28"
# The first libstdc++ whose headers have what C++20 code of PyTorch uses.
OLDEST_HEADERS = 11


def libstdcxx_headers():
    """The folders of libstdc++'s headers: the oldest that will do, since newer ones call for more."""
    root = Path("/usr/include/c++")
    versions = sorted(int(folder.name) for folder in root.glob("*") if folder.name.isdigit())
    for version in versions:
        if version >= OLDEST_HEADERS:
            for machine in (
                root / f"{version}/x86_64-redhat-linux",
                Path(f"/usr/include/x86_64-linux-gnu/c++/{version}"),
            ):
                if machine.is_dir():
                    return [root / str(version), machine, root / str(version) / "backward"]
    raise BuildError(
        f"no headers of libstdc++ {OLDEST_HEADERS} or newer in {root}/{{number}}, found {versions}: install g++"
    )


def run(arguments):
    """Runs zig; what it says is the error where it fails."""
    command = [sys.executable, "-m", "ziglang", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\nfailed:\n{done.stderr[-4000:]}")


def compile_object(source, output, flags, names):
    """Compiles one source to an object. `names` are pairs of a folder and what stands for it in the object's texts."""
    # Not by -isystem, which zig puts behind the C library's, where libstdc++ cannot find these by #include_next.
    folders = [f"-I{folder}" for folder in (HERE / "glibc_2_28", *libstdcxx_headers())]
    renamed = [f"-ffile-prefix-map={folder}={name}" for folder, name in names]
    fixed = ["-nostdinc++", "-w", "-g0", "-fno-sanitize=undefined"]
    run(
        [
            "c++",
            "-target",
            TARGET,
            *fixed,
            *folders,
            *renamed,
            *flags,
            "-MD",
            "-MF",
            f"{output}.d",
            "-c",
            source,
            "-o",
            output,
        ]
    )


def headers_of(output):
    """The headers that an object was compiled from, as the compiler found them."""
    words = Path(f"{output}.d").read_text(encoding="utf-8").replace("\\\n", " ").split()
    return {Path(word) for word in words[1:]}


def empty_library(name, folder):
    """Makes a library of that name with nothing in it: what is linked against it finds symbols when it is loaded."""
    source, output = folder / "empty.c", folder / name
    source.write_text("")
    run(["cc", "-target", TARGET, "-nostdlib", "-shared", f"-Wl,-soname,{name}", source, "-o", output])
    return output


def of_compiler(name):
    """The path of a library that this machine's C++ compiler links with."""
    try:
        done = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise BuildError(f"g++ does not say where {name} is: install g++") from error
    path = Path(done.stdout.strip())
    if not path.is_absolute():
        raise BuildError(f"g++ has no {name}, which the shims are linked against")
    return path.resolve()


def link(objects, libraries, output, flags):
    """Links a shared library, stripped, that needs all of `libraries` and has every name bound when it is loaded."""
    fixed = ["-shared", "-s", "-Wl,-z,now", "-Wl,--allow-shlib-undefined", "-Wl,--no-as-needed"]
    run(["cc", "-target", TARGET, *fixed, *objects, *libraries, *flags, "-o", output])

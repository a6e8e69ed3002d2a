"""The wheel that is given to users: for every Linux since glibc 2.28, with all that runs without a compiler.

It is built from a copy of the source that has nothing else in it, and its content is compared with that source's files.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from . import elf, portable, prebuilt, source
from .source import ROOT, BuildError

RUST_TARGET = "x86_64-unknown-linux-gnu"
# Where there is nothing about a commit's time: 2020-01-01, which zip files can say.
EPOCH = "1577836800"
LIBRARY, COMMAND = "libseamalloc.so", "seamalloc"
OF_TORCH = ("libc10.so", "libc10_cuda.so", "libtorch_cpu.so", "libtorch_cuda.so")
OF_SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"}


def target_folder():
    """Cargo's, absolute: the copy of the source uses it too, so that dependencies are compiled once."""
    return (ROOT / os.environ.get("CARGO_TARGET_DIR", "target")).resolve()


def run(command, folder, **variables):
    """Runs a command in a folder, with more variables of the environment; an error where it fails."""
    try:
        subprocess.run(list(map(str, command)), cwd=folder, env={**os.environ, **variables}, check=True)
    except FileNotFoundError as error:
        raise BuildError(f"{command[0]} is missing; Rust is installed from https://rustup.rs") from error
    except subprocess.CalledProcessError as error:
        raise BuildError(f"{' '.join(map(str, command))} failed with status {error.returncode}") from error


def copy_source(folder):
    """Copies the source's files, and no others, to a folder that did not exist."""
    for name in source.files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    for licence in ("LICENSE-APACHE", "LICENSE-MIT"):
        shutil.copy2(ROOT / licence, folder / "ffi" / "python" / licence)


def build_binaries(copy, scratch):
    """Builds the C library and the command for glibc 2.28. Returns the folder that has them."""
    stubs = scratch / "stubs"
    stubs.mkdir()
    # cuda-driver-sys asks for it, nothing of it is used, and zig takes no empty archive for it as other linkers do.
    portable.empty_library("libcuda.so", stubs)
    cargo = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
    renamed = [f"--remap-path-prefix={folder}=" for folder in sorted(cargo.glob("registry/src/*/"))]
    flags = [f"-Lnative={stubs}", f"--remap-path-prefix={copy}=", *map(str, renamed)]
    glibc = ".".join(map(str, portable.GLIBC))
    command = ["cargo-zigbuild", "zigbuild", "--locked", "--profile", "dist", "--target", f"{RUST_TARGET}.{glibc}"]
    run(
        [*command, "-p", "seamalloc-ffi", "-p", "seamalloc-cli"],
        copy,
        RUSTFLAGS=" ".join(flags),
        CARGO_TARGET_DIR=str(target_folder()),
    )
    built = target_folder() / RUST_TARGET / "dist"
    for name in (LIBRARY, COMMAND):
        binary = elf.Library(built / name)
        binary.check_age()
        binary.check_text([ROOT, copy, Path.home(), cargo])
        if not set(binary.needed) <= OF_SYSTEM:
            raise BuildError(f"{built / name} needs {binary.needed}; expected nothing but {sorted(OF_SYSTEM)}")
    library = elf.Library(built / LIBRARY)
    library.check_loading()
    missing = source.declared_functions() - library.defined
    if missing:
        raise BuildError(f"{built / LIBRARY} does not export {', '.join(sorted(missing))} of seamalloc.h")
    return built


def expected_content(copy, prebuilt):
    """The files that the wheel must have, besides those about itself: the package's own, and what is compiled."""
    package = Path("ffi/python/seamalloc")
    own = {str(name.relative_to(package.parent)) for name in source.files(str(package))}
    compiled = {LIBRARY, "seamalloc.h", f"bin/{COMMAND}", *(f"prebuilt/{path.name}" for path in prebuilt.iterdir())}
    return own | {f"seamalloc/{name}" for name in compiled}


def check_content(wheel, expected):
    """Raises BuildError where the wheel lacks a file or has one too many."""
    with zipfile.ZipFile(wheel) as content:
        found = {name for name in content.namelist() if ".dist-info/" not in name}
    if found != expected:
        lacks, extra = sorted(expected - found), sorted(found - expected)
        raise BuildError(
            f"{wheel.name} lacks {lacks or 'nothing'} and has {extra or 'nothing'} beyond the source's files"
        )


def check_platform(wheel):
    """Raises BuildError where auditwheel finds that the wheel runs on fewer machines than its name says."""
    if not wheel.name.endswith(f"-py3-none-{portable.PLATFORM}.whl"):
        raise BuildError(f"the wheel is named {wheel.name}; expected a name for {portable.PLATFORM} and every Python 3")
    # PyTorch's libraries are the user's own, and the package loads the C library. `show` knows no --exclude. With nothing
    # to graft `repair` only checks.
    excluded = [f"--exclude={name}" for name in [*OF_TORCH, prebuilt.SONAME]]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "auditwheel",
            "repair",
            "--plat",
            portable.PLATFORM,
            "--only-plat",
            "-w",
            folder,
            *excluded,
            str(wheel),
        ]
        done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
        grafted = [
            name for path in Path(folder).glob("*.whl") for name in zipfile.ZipFile(path).namelist() if ".libs/" in name
        ]
    if done.returncode != 0 or grafted:
        raise BuildError(
            f"auditwheel does not agree that this is a wheel for {portable.PLATFORM} by itself; "
            f"it would add {grafted or 'nothing'}, and says:\n{done.stderr.strip()}"
        )


def commit_time():
    """Seconds since 1970 of the commit that is built, for the files in the wheel."""
    command = ["git", "-c", "safe.directory=*", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or EPOCH


def build(releases, output):
    """Builds the wheel with shims for `releases`, checks it, and puts it into the folder `output`."""
    scratch = target_folder() / "wheel"
    shutil.rmtree(scratch, ignore_errors=True)
    copy, prebuilt, made = (scratch / name for name in ("source", "prebuilt", "made"))
    copy_source(copy)
    tools = [sys.executable, "-m", "build_tools"]
    versions = [str(release.version) for release in releases]
    # By the copy's own tools, which compile the copy's sources.
    run([*tools, "prebuild", "--torch", *versions, "--", prebuilt], copy, PYTHONPATH=str(copy / "ffi" / "python"))
    binaries = build_binaries(copy, scratch)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    platform = f"--config-settings=--build-option=--plat-name={portable.PLATFORM}"
    run(
        [*pip, "--no-deps", "--no-build-isolation", platform, "--wheel-dir", made, copy / "ffi" / "python"],
        copy,
        SEAMALLOC_BINARIES=str(binaries),
        SEAMALLOC_PREBUILT=str(prebuilt),
        SOURCE_DATE_EPOCH=os.environ.get("SOURCE_DATE_EPOCH") or commit_time(),
    )
    (wheel,) = made.glob("*.whl")
    check_content(wheel, expected_content(copy, prebuilt))
    check_platform(wheel)
    output.mkdir(parents=True, exist_ok=True)
    os.replace(wheel, output / wheel.name)
    print(f"{output / wheel.name}: {(output / wheel.name).stat().st_size / 1e6:.1f} MB, PyTorch {', '.join(versions)}")

"""The C++ shim through which PyTorch uses seamalloc: a shim of the wheel, a shim compiled earlier, or a shim compiled
now."""

from __future__ import annotations

import ctypes
import hashlib
import json
import platform
import re
import tempfile
from _ctypes import dlclose
from functools import partial
from pathlib import Path
from typing import Any

from . import _cache, _interface, _library, _messages, _prebuilt
from ._compiler import PACKAGE, check_headers, compiler, shared_library, toolchain, torch_include, torch_version
from ._unavailable import UnavailableError

SOURCES = PACKAGE / "shim"
# The first version of PyTorch whose copies use the installed host allocator (`at::getHostAllocator`).
PINNED_FROM = (2, 9)
# Compiling takes about 40 s of processor time, on several cores or on one shared core.
DURATION = "20 to 90 s"


def install(torch: Any, pinned: str | None = None) -> None:
    """Makes seamalloc PyTorch's allocator. If `pinned` contains options, seamalloc also becomes the allocator of
    PyTorch's page-locked memory. Raises `UnavailableError`."""
    if pinned is not None and torch_version(torch) < PINNED_FROM:
        raise UnavailableError(
            "version",
            f"PyTorch {torch.__version__} lets nobody allocate its page-locked memory",
            "Install PyTorch 2.9 or newer, or leave out pinned (SEAMALLOC_PINNED) and take seamalloc.pinned()",
        )
    shim = load(torch)
    if pinned is None:
        _ask(torch, shim.seamalloc_install)
    else:
        _ask(torch, shim.seamalloc_install_pinned, pinned.encode())
        try:
            _ask(torch, shim.seamalloc_install)
        except UnavailableError:
            shim.seamalloc_install_pinned(None)
            raise
        _library.pinned_handle = partial(_pinned_handle, shim.seamalloc_pinned)


def _ask(torch: Any, function: Any, *arguments: bytes) -> None:
    why = function(*arguments)
    if why is None:
        return
    text = why.decode(errors="replace")
    if "already initialized" in text:
        raise too_late(text)
    raise UnavailableError(
        "refused", f"PyTorch {torch.__version__} does not take it: {text}", "Please report this, with this text"
    )


def _pinned_handle(function: Any, opens: bool) -> int:
    """Returns the handle of the shim's allocator of page-locked memory."""
    failure = ctypes.c_char_p()
    handle = int(function(opens, ctypes.byref(failure)))
    if failure.value is not None:
        raise RuntimeError(failure.value.decode(errors="replace"))
    return handle


def too_late(why: str) -> UnavailableError:
    """Returns the error for a process in which CUDA is in use already."""
    return UnavailableError(
        "too-late",
        f"it is too late: {why}, and PyTorch's allocator cannot be changed any more",
        "Call seamalloc.enable() before the first tensor on a GPU, or start the program with python -m seamalloc run",
    )


def load(torch: Any) -> Any:
    """Returns the loaded shim."""
    prebuilt = _prebuilt.find(torch)
    note = ""
    if prebuilt is not None:
        try:
            return _loaded(prebuilt)
        except OSError as error:
            note = f"the shim that the package carries, {prebuilt.name}, cannot be loaded: {error}"
    try:
        return _load_compiled(torch, note)
    except UnavailableError as error:
        if note:
            details = "\n".join(filter(None, [note, error.details]))
            raise UnavailableError(error.cause, error.what, error.remedy, details) from error
        raise


def _loaded(path: Path) -> Any:
    """Loads a shim and declares its exported functions. Raises OSError if the shim cannot be loaded."""
    shim = ctypes.CDLL(str(path))
    try:
        shim.seamalloc_install.restype = ctypes.c_char_p
        shim.seamalloc_install_pinned.restype = ctypes.c_char_p
        shim.seamalloc_install_pinned.argtypes = (ctypes.c_char_p,)
        shim.seamalloc_pinned.restype = ctypes.c_uint64
        shim.seamalloc_pinned.argtypes = (ctypes.c_bool, ctypes.POINTER(ctypes.c_char_p))
    except AttributeError as error:
        # Without `dlclose`, a later load of a file with this name would return this library.
        dlclose(shim._handle)
        raise OSError(str(error)) from error
    return shim


def _load_compiled(torch: Any, note: str) -> Any:
    name = _name(torch)
    broken = ""
    found = _find(torch, name)
    if found is not None:
        try:
            return _loaded(found)
        except OSError as error:
            # The copy is incomplete, or a library that it needs is missing. The shim is compiled again.
            broken = str(error)
    # If the sources are missing, the folder does not matter.
    command = compiler()
    check_headers(torch)
    with _cache.locked(name) as folder:
        found = _find(torch, name)
        if found is not None:
            try:
                # Another process may have compiled the shim while this process waited.
                return _loaded(found)
            except OSError:
                found.unlink()
        reason = f" ({note or broken})" if note or broken else ""
        _messages.say(f"compiling for PyTorch {torch.__version__} with {command[0]}, once, {DURATION}{reason}")
        found = _compile(torch, folder, name)
    try:
        return _loaded(found)
    except OSError as error:
        raise UnavailableError(
            "load",
            f"its shim was compiled and cannot be loaded ({error})",
            "Set CXX to the compiler of the C++ library that PyTorch is using",
        ) from error


def _name(torch: Any) -> str:
    """Returns a name made of all that a compiled shim depends on, apart from the compiler and PyTorch's headers."""
    digest = hashlib.sha256()
    machine = platform.machine()
    for part in (
        torch.__version__,
        str(torch.version.cuda),
        str(torch._C._GLIBCXX_USE_CXX11_ABI),
        # Several machines often share the users' folders.
        machine,
        "-".join(platform.libc_ver()),
    ):
        digest.update(part.encode() + b"\0")
    own = [PACKAGE / name for name in ("seamalloc.h", "_interface.py", "_compiler.py")] + sorted(SOURCES.iterdir())
    for path in own:
        digest.update(path.read_bytes() + b"\0")
    version = re.sub(r"[^\w.+-]", "_", torch.__version__)
    return f"shim-torch{version}-{machine}-{digest.hexdigest()[:16]}"


def _of_toolchain(name: str) -> str | None:
    """Returns the name, without the ending, of the file that this machine's compiler makes; None without a compiler."""
    found = toolchain()
    return None if found is None else f"{name}-{hashlib.sha256(found.encode()).hexdigest()[:8]}"


def _find(torch: Any, name: str) -> Path | None:
    """Returns the shim of that name, if it was compiled with PyTorch's present headers."""
    folder = _cache.folder()
    if not _cache.is_trusted(folder):
        return None
    exact = _of_toolchain(name)
    # Without a compiler, a library of any compiler is accepted.
    files = sorted(folder.glob(f"{name}-*.so")) if exact is None else [folder / f"{exact}.so"]
    for path in files:
        if _cache.is_trusted(path) and _is_as_recorded(torch, path):
            return path
    return None


def _is_as_recorded(torch: Any, path: Path) -> bool:
    """Returns whether a compiled shim is complete and PyTorch's headers are those that it was compiled with."""
    try:
        record = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        # Loading an incomplete file may end the process.
        if hashlib.sha256(path.read_bytes()).hexdigest() != record["library"]:
            return False
        include = torch_include(torch)
        # A PyTorch without headers cannot have different headers.
        return not (include / "c10").is_dir() or bool(_interface.digest(include, record["headers"]) == record["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _compile(torch: Any, folder: Path, name: str) -> Path:
    """Compiles the shim. The file appears only when it is complete."""
    final = folder / f"{_of_toolchain(name)}.so"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        library = Path(scratch) / "shim.so"
        headers = shared_library(torch, sorted(SOURCES.glob("*.cpp")), library)
        kept = Path(scratch) / "shim.json"
        record = {
            "library": hashlib.sha256(library.read_bytes()).hexdigest(),
            "headers": headers,
            "digest": _interface.digest(torch_include(torch), headers),
        }
        kept.write_text(json.dumps(record), encoding="utf-8")
        # The record is written before the library, so that no process finds a library without its record.
        _cache.put(kept, final.with_suffix(".json"))
        _cache.put(library, final)
    return final

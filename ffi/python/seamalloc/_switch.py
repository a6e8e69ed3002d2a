"""Makes seamalloc PyTorch's allocator: by the shim, and as a pluggable allocator only where that was asked for."""

from __future__ import annotations

import ctypes
import os
import re
import warnings
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any, Callable

from . import _children, _end, _live, _messages
from ._library import PATH, SIMULATED, FileName, check, library, plugged_devices, read_options, version
from ._library import PINNED as LOCKED
from ._options import join
from ._unavailable import UnavailableError

VARIABLE = "SEAMALLOC_CONF"
FALLBACK = "SEAMALLOC_FALLBACK"
PINNED = "SEAMALLOC_PINNED"
FALLBACKS = ("pytorch", "pluggable")
# PyTorch's variables with options of its own allocator.
OF_PYTORCH = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
MISSING = (
    "torch.OutOfMemoryError (a request that fails ends in an illegal address), torch.cuda.memory_stats, "
    "memory_allocated, max_memory_allocated and snapshots (seamalloc.stats() and seamalloc.snapshot() have them), memory "
    'history, MemPool, torch.compile(mode="reduce-overhead"), cudnn.benchmark, and peer access between GPUs'
)
_enabled: str | None = None
# Whether PyTorch's allocator is still the one that was installed.
_is_current: Callable[[], bool] | None = None
# The settings that the parent process handed down, if it did.
_parent: _children.Parent | None = None
# The hook that enables seamalloc as soon as PyTorch is imported, for the same reason.
_waiting: _children.AfterImport | None = None


def enabled() -> str | None:
    """Returns how seamalloc is PyTorch's allocator: "full", "pluggable", or None if it is not (any more)."""
    return _enabled if _is_current is not None and _is_current() else None


def enable(
    *,
    fallback: str | None = None,
    quiet: bool | None = None,
    pinned: bool | str | Mapping[str, object] | None = None,
    serve: bool | FileName | None = None,
    **options: object,
) -> None:
    """Makes seamalloc PyTorch's CUDA allocator, on every device, until the process ends. Options are those of the
    library (`strategy="stitch"`, `memory_limit="80GiB"`, ...), beside the environment variable SEAMALLOC_CONF.
    Processes that multiprocessing starts from now on, by `spawn` or `forkserver`, have it too, with the same options.

    Call it before anything uses CUDA: an allocator cannot be changed later.

    Where PyTorch's allocator cannot be replaced, it raises `UnavailableError`, whose text has the remedy. With
    `fallback="pytorch"` it warns instead, and the program goes on with PyTorch's own allocator. With
    `fallback="pluggable"` it takes PyTorch's pluggable interface where only the shim is missing, which loses much (a
    warning says what). The environment variable SEAMALLOC_FALLBACK says it where the argument does not.

    With `pinned=True` PyTorch's page-locked memory is seamalloc's too (`pin_memory=True`, `Tensor.pin_memory`, the
    DataLoader's): split, merged and stitched instead of rounded up to powers of two. `pinned="memory_limit:8GiB"`, or a
    dict, has options of its own for it; the environment variable SEAMALLOC_PINNED says it where the argument does not. It
    takes PyTorch 2.9 or newer, and is no part of the pluggable interface: see `seamalloc.pinned` for what is there.

    With `serve=True` other processes of this user may ask what its allocators do, as `seamalloc top` does; `serve="name.sock"` has a
    name of its own for the socket. Processes that this one starts serve too with `serve=True`. The environment variable
    SEAMALLOC_SERVE says it where the argument does not. A socket that cannot be made is an error, once seamalloc is on.

    Lines on standard error say that it is compiling, and that it is on; not with `quiet`, or SEAMALLOC_QUIET=1.

    In a process that has it from its parent a call that asks for the same does nothing; before PyTorch is imported
    there, it may still ask for something else.

    Raises `OptionError` for options that cannot be read, and `RuntimeError` if seamalloc is enabled already.
    """
    global _parent
    fallback = _fallback(fallback)
    _messages.be_quiet(quiet)
    text = join(os.environ.get(VARIABLE), options)
    found = read_options(text)
    locked = _pinned(pinned)
    if _has_as_parent(found, fallback, locked):
        _live.serve_as_asked(serve)
        return
    if _waiting is not None and not _asks_as_parent(found, fallback, locked):
        _waiting.cancel()
    try:
        # The hook may enable it within this import, in this or another thread.
        torch = _torch()
        if _has_as_parent(found, fallback, locked):
            _live.serve_as_asked(serve)
            return
        if _enabled is not None:
            raise RuntimeError(_already())
        _become(torch, text, fallback, locked)
    except UnavailableError as error:
        if fallback != "pytorch":
            raise
        _go_without(error, text, stacklevel=3)
    else:
        # From now on the parent's settings no longer apply.
        _parent = None
        _say_that_it_is_on(torch, found, locked)
        _live.serve_as_asked(serve)


def _pinned(asked: bool | str | Mapping[str, object] | None) -> str | None:
    """The options of page-locked memory; None where it stays PyTorch's."""
    if asked is None:
        asked = os.environ.get(PINNED)
        asked = {"": False, "0": False, "1": True}.get(asked or "", asked)
    if asked is False or asked is None:
        return None
    return read_options("" if asked is True else asked if isinstance(asked, str) else join("", asked))


def _asks_as_parent(options: str, fallback: str | None, pinned: str | None) -> bool:
    """Returns whether the parent process got what is asked for here."""
    if _parent is None:
        return False
    if _parent.kind == "pytorch":
        return fallback == "pytorch"
    is_same = (options, pinned) == (read_options(_parent.conf), _parent.pinned)
    return is_same and _parent.kind in ("full", fallback)


def _has_as_parent(options: str, fallback: str | None, pinned: str | None) -> bool:
    """Returns whether this process has what is asked for already, from its parent."""
    is_settled = _enabled is not None or (_parent is not None and _parent.kind == "pytorch")
    return is_settled and _asks_as_parent(options, fallback, pinned)


def _already() -> str:
    if _parent is None:
        return "seamalloc is PyTorch's allocator already: enable() is called once"
    return (
        f"seamalloc is PyTorch's allocator already, {_enabled}, with the options of the process that started this one "
        f'("{_parent.conf}"). Ask for the same, or call enable() before torch is imported'
    )


def _fallback(asked: str | None) -> str | None:
    where, found = ("fallback", asked) if asked is not None else (FALLBACK, os.environ.get(FALLBACK) or None)
    if found is not None and found not in FALLBACKS:
        raise ValueError(f'{where} is {found!r}; expected "pytorch" (its own allocator) or "pluggable"')
    return found


def _go_without(error: UnavailableError, conf: str, stacklevel: int) -> None:
    """The program goes on with PyTorch's own allocator, as it has asked."""
    warnings.warn(
        f"seamalloc is not PyTorch's allocator, which goes on with its own ({error.what})",
        RuntimeWarning,
        stacklevel=stacklevel,
    )
    # The child processes do not try the shim again, nor warn.
    _children.hand_down(_children.Parent(conf, "pytorch", "pytorch"))


def inherit(conf: str, kind: str, fallback: str | None, pinned: str | None = None) -> None:
    """Enables seamalloc in a process that multiprocessing started, as in its parent, now or when PyTorch is imported.
    Where it cannot be, that is an error, unless the parent asked for PyTorch's own allocator then."""
    global _parent, _waiting
    if _enabled is not None:
        # A module that the fork server imported has enabled it, before this process was forked.
        _parent = _children.Parent(os.environ[VARIABLE], _enabled, fallback, pinned)
        return
    _parent = _children.Parent(conf, kind, fallback, pinned)
    _children.hand_down(_parent)
    if kind == "pytorch":
        return
    # A fork server's environment may be older than the parent's.
    os.environ[VARIABLE] = conf
    _waiting = _children.AfterImport("torch", partial(_follow, _parent))


def _follow(parent: _children.Parent) -> None:
    global _parent
    try:
        if parent.kind == "pluggable":
            # The parent has warned of the missing parts already.
            _become(_torch(), parent.conf, "pluggable", parent.pinned, tries_shim=False)
        else:
            _become(_torch(), parent.conf, parent.fallback, parent.pinned)
        _parent = parent._replace(kind=_enabled or "pytorch")
    except UnavailableError as error:
        what = f"in this process, whose parent has it, {error.what}"
        found = UnavailableError(error.cause, what, error.remedy, error.details)
        if parent.fallback != "pytorch":
            raise found from error
        _parent = parent._replace(kind="pytorch")
        _go_without(found, parent.conf, stacklevel=2)


def _become(torch: Any, conf: str, fallback: str | None, pinned: str | None, tries_shim: bool = True) -> None:
    """Installs seamalloc: as a pluggable allocator where `fallback` says so and the shim cannot be had."""
    global _enabled
    if _messages.is_set("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        raise UnavailableError(
            "no-caching",
            "PYTORCH_NO_CUDA_MEMORY_CACHING is set, which asks for one cudaMalloc for each tensor",
            "Unset it",
        )
    if torch.cuda.is_initialized():
        # Imported here: children that never use it do not need it.
        from ._shim import too_late

        raise too_late("CUDA was used before seamalloc.enable()")
    before = os.environ.get(VARIABLE)
    _check_options(conf, before)
    _end.check_destination()
    # The library reads the variable when a device is first used, and so do child processes.
    os.environ[VARIABLE] = conf
    try:
        kind = _install(torch, fallback, pinned) if tries_shim else _plug(torch)
    except BaseException:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
        raise
    _enabled = kind
    _children.hand_down(_children.Parent(conf, kind, fallback, pinned))
    _end.prepare()


def _check_options(conf: str, before: str | None) -> None:
    """Another library may have the device's allocator already, with the options of before."""
    if read_options(conf) != read_options(before or "") and any(device != LOCKED for device in plugged_devices()):
        raise UnavailableError(
            "too-late",
            "another library uses the device's allocator already, with other options",
            "Call seamalloc.enable() before that library allocates, or set SEAMALLOC_CONF before the program starts",
        )


def _say_that_it_is_on(torch: Any, options: str, pinned: str | None) -> None:
    if not _messages.is_first():
        return
    chosen = f"options {options}" if options else "default options"
    if pinned is not None and _enabled == "full":
        chosen += f", page-locked memory too{f' ({pinned})' if pinned else ''}"
    _messages.say(f"{version()} is the allocator of PyTorch {torch.__version__} ({_enabled}, {chosen})")
    why = _sees_no_gpu()
    if why is not None:
        _messages.say(f"no GPU is visible ({why}), so that no GPU memory will be allocated")
    for name in OF_PYTORCH:
        text = os.environ.get(name, "")
        # PyTorch still reads its options for host memory.
        if any(not key.startswith("pinned_") for key in re.findall(r"([A-Za-z_]\w*)\s*:", text)):
            _messages.say(f"what {name} says of GPU memory has no effect ({text}); {VARIABLE} takes the same syntax")


def _sees_no_gpu() -> str | None:
    """Why certainly no GPU can be used. CUDA itself is not asked: a process that has asked it cannot be forked any more."""
    if os.environ.get(SIMULATED):
        return None
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides all"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "the driver's library libcuda.so.1 is missing"
    return None


def _torch() -> Any:
    try:
        torch: Any = import_module("torch")
    except ImportError as error:
        raise UnavailableError(
            "torch", f"PyTorch cannot be imported ({error})", "Install it: pip install torch"
        ) from error
    if torch.version.cuda is None:
        raise UnavailableError(
            "cpu-build",
            f"PyTorch {torch.__version__} is built without CUDA",
            "Install a build with CUDA (pytorch.org, Get Started)",
        )
    return torch


def _install(torch: Any, fallback: str | None, pinned: str | None) -> str:
    # Imported here: children that never use it do not need it.
    from . import _shim

    global _is_current
    try:
        _shim.install(torch, pinned)
    except UnavailableError as error:
        if fallback != "pluggable" or error.cause == "too-late":
            raise
        kind = _plug(torch)
        warnings.warn(
            f"seamalloc is PyTorch's pluggable allocator ({error.what}). Missing there: {MISSING}"
            f"{', page-locked memory (SEAMALLOC_PINNED)' if pinned is not None else ''}. {error.remedy}.",
            RuntimeWarning,
            stacklevel=4,
        )
        return kind
    _is_current = lambda: torch.cuda.get_allocator_backend() == "seamalloc"
    return "full"


def _plug(torch: Any) -> str:
    global _is_current
    # PyTorch does not say under which stream a pluggable allocator's memory is freed, so streams keep theirs.
    check(library.seam_plugged_defaults(b"sharing:never"))
    allocator = torch.cuda.memory.CUDAPluggableAllocator(str(PATH), "seamalloc_malloc", "seamalloc_free")
    hooks: dict[str, str] = {
        "set_reset_fn": "seamalloc_empty_cache",
        "set_memory_fraction_fn": "seamalloc_set_memory_fraction",
        "set_record_stream_fn": "seamalloc_record_stream",
        "set_begin_allocate_to_pool": "seamalloc_begin_pool",
        "set_end_allocate_to_pool_fn": "seamalloc_end_pool",
        "set_release_pool": "seamalloc_release_pool",
    }
    inner = allocator.allocator()
    for setter, name in hooks.items():
        function = getattr(library, name)
        getattr(inner, setter)(ctypes.cast(function, ctypes.c_void_p).value)
    try:
        torch.cuda.memory.change_current_allocator(allocator)
    except RuntimeError as error:
        from ._shim import too_late

        raise too_late(str(error)) from error
    _is_current = lambda: torch._C._cuda_getAllocator() is inner
    return "pluggable"

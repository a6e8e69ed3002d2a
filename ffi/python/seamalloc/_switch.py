"""Makes seamalloc PyTorch's allocator: through the shim, or as a pluggable allocator if the program asks for it and the
shim fails."""

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
# The environment variables with options of PyTorch's own allocator.
OF_PYTORCH = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
MISSING = (
    "torch.OutOfMemoryError (a request that fails ends in an illegal address), torch.cuda.memory_stats, "
    "memory_allocated, max_memory_allocated and snapshots (seamalloc.stats() and seamalloc.snapshot() have them), memory "
    'history, MemPool, torch.compile(mode="reduce-overhead"), cudnn.benchmark, and peer access between GPUs'
)
_enabled: str | None = None
# Returns whether the installed allocator is still PyTorch's allocator.
_is_current: Callable[[], bool] | None = None
# The settings of the parent process if it passed any on, else None.
_parent: _children.Parent | None = None
# The hook that enables seamalloc in a child process as soon as PyTorch is imported.
_waiting: _children.AfterImport | None = None


def enabled() -> str | None:
    """Returns how seamalloc is PyTorch's allocator: "full", "pluggable", or None if PyTorch has another allocator."""
    return _enabled if _is_current is not None and _is_current() else None


def enable(
    *,
    fallback: str | None = None,
    quiet: bool | None = None,
    pinned: bool | str | Mapping[str, object] | None = None,
    serve: bool | FileName | None = None,
    **options: object,
) -> None:
    """Makes seamalloc PyTorch's CUDA allocator, on every device, until the process ends. The options are those of the
    library (`strategy="stitch"`, `memory_limit="80GiB"`, ...), added to the environment variable SEAMALLOC_CONF.
    Processes that multiprocessing starts from now on, by `spawn` or `forkserver`, get seamalloc with the same options.

    Call this function before anything uses CUDA, since an allocator cannot be changed later.

    If PyTorch's allocator cannot be replaced, `enable` raises `UnavailableError`, whose text names the remedy. With
    `fallback="pytorch"` it warns instead, and the program goes on with PyTorch's own allocator. With
    `fallback="pluggable"` it uses PyTorch's pluggable interface if only the shim is missing. The pluggable interface
    lacks many functions, and a warning lists them. If the argument is None, the environment variable SEAMALLOC_FALLBACK
    applies.

    With `pinned=True` seamalloc also manages PyTorch's page-locked memory (`pin_memory=True`, `Tensor.pin_memory`, the
    DataLoader's). Such memory is split, merged and stitched instead of rounded up to powers of two.
    `pinned="memory_limit:8GiB"`, or a dict, gives options for page-locked memory alone. If the argument is None, the
    environment variable SEAMALLOC_PINNED applies. `pinned` needs PyTorch 2.9 or newer and does not work with the
    pluggable interface. With an older PyTorch, or with the pluggable interface, `seamalloc.pinned` can serve a part of
    a program instead.

    With `serve=True` other processes of this user, such as `seamalloc top`, can read the state of the allocators.
    `serve="name.sock"` sets the name of the socket. With `serve=True` child processes serve too. If the argument is
    None, the environment variable SEAMALLOC_SERVE applies. If the socket cannot be made, `enable` raises an error after
    seamalloc is enabled.

    Lines on standard error report that the shim is compiled and that seamalloc is enabled. `quiet`, or
    SEAMALLOC_QUIET=1, suppresses them.

    In a process that got seamalloc from its parent, a call with the same settings does nothing. Before such a process
    imports PyTorch, a call may still ask for other settings.

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
        # The import hook may enable seamalloc during this import, in this thread or another one.
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
    """Returns the options of page-locked memory, or None if PyTorch keeps its own."""
    if asked is None:
        asked = os.environ.get(PINNED)
        asked = {"": False, "0": False, "1": True}.get(asked or "", asked)
    if asked is False or asked is None:
        return None
    return read_options("" if asked is True else asked if isinstance(asked, str) else join("", asked))


def _asks_as_parent(options: str, fallback: str | None, pinned: str | None) -> bool:
    """Returns whether the parent process got the same settings as this call asks for."""
    if _parent is None:
        return False
    if _parent.kind == "pytorch":
        return fallback == "pytorch"
    is_same = (options, pinned) == (read_options(_parent.conf), _parent.pinned)
    return is_same and _parent.kind in ("full", fallback)


def _has_as_parent(options: str, fallback: str | None, pinned: str | None) -> bool:
    """Returns whether this process already has the settings that this call asks for, from its parent process."""
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
    """Warns, and lets the program go on with PyTorch's own allocator, as `fallback` asks."""
    warnings.warn(
        f"seamalloc is not PyTorch's allocator, which goes on with its own ({error.what})",
        RuntimeWarning,
        stacklevel=stacklevel,
    )
    # Child processes do not try the shim again, and do not warn.
    _children.hand_down(_children.Parent(conf, "pytorch", "pytorch"))


def inherit(conf: str, kind: str, fallback: str | None, pinned: str | None = None) -> None:
    """Applies the parent's settings in a process that multiprocessing started: now, or when PyTorch is imported. If
    seamalloc cannot be enabled then, an error is raised, unless the parent asked for `fallback="pytorch"`."""
    global _parent, _waiting
    if _enabled is not None:
        # A module that the fork server imported has enabled seamalloc before this process was forked.
        _parent = _children.Parent(os.environ[VARIABLE], _enabled, fallback, pinned)
        return
    _parent = _children.Parent(conf, kind, fallback, pinned)
    _children.hand_down(_parent)
    if kind == "pytorch":
        return
    # The environment of a fork server may be older than the parent's settings.
    os.environ[VARIABLE] = conf
    _waiting = _children.AfterImport("torch", partial(_follow, _parent))


def _follow(parent: _children.Parent) -> None:
    global _parent
    try:
        if parent.kind == "pluggable":
            # The parent has already warned of the missing functions.
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
    """Installs seamalloc. If the shim is unavailable and `fallback` is "pluggable", installs the pluggable allocator.
    """
    global _enabled
    if _messages.is_set("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        raise UnavailableError(
            "no-caching",
            "PYTORCH_NO_CUDA_MEMORY_CACHING is set, which asks for one cudaMalloc for each tensor",
            "Unset it",
        )
    if torch.cuda.is_initialized():
        # The import is here because child processes that never use PyTorch do not need it.
        from ._shim import too_late

        raise too_late("CUDA was used before seamalloc.enable()")
    before = os.environ.get(VARIABLE)
    _check_options(conf, before)
    _end.check_destination()
    # The library reads the variable at the first use of a device. Child processes read the variable too.
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
    """Raises `UnavailableError` if another library uses the device's allocator already, with the options that were set
    before."""
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
        # PyTorch still reads its options for page-locked memory.
        if any(not key.startswith("pinned_") for key in re.findall(r"([A-Za-z_]\w*)\s*:", text)):
            _messages.say(f"what {name} says of GPU memory has no effect ({text}); {VARIABLE} takes the same syntax")


def _sees_no_gpu() -> str | None:
    """Returns the reason why no GPU can be used; None if a GPU may be usable. The function does not ask CUDA, since a
    process that has used CUDA cannot be forked any more."""
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
    # The import is here because child processes that never use PyTorch do not need it.
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
    # PyTorch does not tell a pluggable allocator the stream of a free, so streams keep their memory.
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

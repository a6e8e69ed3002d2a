"""How seamalloc becomes PyTorch's allocator: by the shim, or without a compiler as a pluggable allocator."""

import ctypes
import os
import sys
import warnings
from functools import partial

from . import _children, _shim
from ._library import PATH, check, library, read_options
from ._options import join

VARIABLE = "SEAMALLOC_CONF"
_enabled = None
# The options, if it was enabled because it is in the process that started this one.
_inherited = None
# What enables it as soon as PyTorch is imported, for the same reason.
_waiting = None


def enabled():
    """How seamalloc is PyTorch's allocator: "full", "pluggable", or None if it is not."""
    return _enabled


def current_device(device):
    """The number of a device, which is one, a name (`cuda:1`), or a `torch.device`. PyTorch's current device for None,
    and where the number is left out."""
    if isinstance(device, int):
        return device
    if device is not None:
        kind, _, number = str(device).partition(":")
        if kind != "cuda" or not (number.isdigit() or not number):
            raise ValueError(f"{device!r} is no CUDA device; expected a number, or cuda:0")
        if number:
            return int(number)
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_initialized() else 0


def enable(*, shim=None, **options):
    """Makes seamalloc PyTorch's CUDA allocator, on every device, until the process ends. Options are those of the
    library (`strategy="stitch"`, `memory_limit="80GiB"`, ...), beside the environment variable SEAMALLOC_CONF.
    Processes that multiprocessing starts from now on, by `spawn` or `forkserver`, have it too, with the same options.

    Nothing may have used CUDA before: an allocator cannot be changed later. `shim` False uses PyTorch's pluggable
    interface, which needs no compiler and loses much (a warning says what), True raises where the shim cannot be had;
    by default the one stands in for the other.

    In a process that has it from its parent a call that asks for the same does nothing; before PyTorch is imported
    there, it may still ask for something else.

    Raises `OptionError` for options that cannot be read, `RuntimeError` where it is too late, there is no PyTorch with
    CUDA, or seamalloc is enabled already.
    """
    text = join(os.environ.get(VARIABLE), options)
    found = read_options(text)
    if _waiting is not None:
        _waiting.cancel()
    # Another thread that enables it does so within this import.
    torch = _torch()
    if _enabled is not None:
        if _inherited is None:
            raise RuntimeError("seamalloc is PyTorch's allocator already: enable() is called once")
        if found != read_options(_inherited) or shim not in (None, _enabled == "full"):
            raise RuntimeError(
                f"seamalloc is PyTorch's allocator already, {_enabled}, with the options of the process that started "
                f'this one ("{_inherited}"). Ask for the same, or call enable() before torch is imported'
            )
        return
    reason = _become(torch, text, shim)
    if reason is not None:
        warnings.warn(
            f"seamalloc is PyTorch's pluggable allocator ({reason}). Missing there: torch.OutOfMemoryError (a request "
            "that fails ends in an illegal address), torch.cuda.memory_stats, memory_allocated, max_memory_allocated "
            "and snapshots (seamalloc.stats() and seamalloc.snapshot() have them), memory history, MemPool, "
            'torch.compile(mode="reduce-overhead"), cudnn.benchmark, and peer access between GPUs. Install a C++ '
            "compiler for all of it.",
            RuntimeWarning,
            stacklevel=2,
        )


def inherit(conf, shim):
    """In a process that multiprocessing started: enables seamalloc as in the one that started it, now or when PyTorch is
    imported. A failure is a warning."""
    global _inherited, _waiting
    if _enabled is not None:
        # By a module that the fork server imported, before it forked this process.
        _inherited = os.environ[VARIABLE]
        return
    # A fork server's environment may be older than the parent's.
    os.environ[VARIABLE] = conf
    _children.hand_down(conf, shim)
    _waiting = _children.AfterImport("torch", partial(_follow, conf, shim))


def _follow(conf, shim):
    global _inherited
    try:
        # Of what a pluggable allocator lacks, the parent has been warned.
        _become(_torch(), conf, shim)
        _inherited = conf
    except Exception as error:  # noqa: BLE001 - whatever it is, the process can do without
        warnings.warn(
            f"seamalloc is not PyTorch's allocator in this process, though it is in its parent: {error}",
            RuntimeWarning,
            stacklevel=2,
        )


def _become(torch, conf, shim):
    """Installs it. Returns why it is not by the shim, or None."""
    global _enabled
    if torch.cuda.is_initialized():
        raise RuntimeError(
            "too late: CUDA was used before seamalloc.enable(), and PyTorch's allocator cannot be changed any more. "
            "Call it before the first tensor on a GPU, or start the program with python -m seamalloc run"
        )
    before = os.environ.get(VARIABLE)
    # Read by the library when a device is used first, and by child processes.
    os.environ[VARIABLE] = conf
    try:
        reason = _install(torch, shim)
    except BaseException:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
        raise
    _enabled = "full" if reason is None else "pluggable"
    _children.hand_down(conf, _enabled == "full")
    return reason


def _torch():
    try:
        import torch
    except ImportError as error:
        raise RuntimeError(f"seamalloc.enable() needs PyTorch, which cannot be imported: {error}") from error
    if torch.version.cuda is None:
        raise RuntimeError(f"seamalloc.enable() needs PyTorch with CUDA; {torch.__version__} is built without")
    return torch


def _install(torch, shim):
    if shim is False:
        reason = "shim=False"
    else:
        try:
            _shim.install(torch)
            return None
        except _shim.ShimError as error:
            if shim:
                raise RuntimeError(f"seamalloc's shim for PyTorch cannot be had: {error}") from error
            reason = str(error)
    _plug(torch)
    return reason


def _plug(torch):
    # PyTorch does not say under which stream a pluggable allocator's memory is freed, so streams keep theirs.
    check(library.seam_plugged_defaults(b"sharing:never"))
    allocator = torch.cuda.memory.CUDAPluggableAllocator(str(PATH), "seamalloc_malloc", "seamalloc_free")
    hooks = {
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
    torch.cuda.memory.change_current_allocator(allocator)

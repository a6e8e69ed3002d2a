"""Tags: memory that sleeps and wakes at the same addresses.

A tag is a private pool of the device's allocator, with chunks of physical memory of its own. The caller names the tag
when it allocates.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_bool, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from ._devices import Device, current_device
from ._library import FileName, Pool, check, library, path_of, plugged

_HOST, _DISCARD, _FILE, _PINNED = 0, 1, 2, 3
# The names of the `SEAM_SLEEP_*` numbers.
_STAGES = ("before_sleep", "asleep", "before_wake", "awake")

_lock = threading.Lock()
_tags: dict[tuple[int, str], Pool] = {}


class _Notice(ctypes.Structure):
    """The struct `seam_sleep_notice`."""

    _fields_ = [("size", c_size_t), ("stage", c_uint32), ("tag", Pool), ("bytes", c_uint64)]


class _PoolStats(ctypes.Structure):
    """The struct `seam_pool_stats`."""

    _fields_ = [("size", c_size_t)] + [
        (name, c_uint64)
        for name in ("uses", "routed", "captured", "allocations", "allocated_bytes", "active_bytes", "reserved_bytes", "asleep_bytes")
    ]


_CALLBACK = ctypes.CFUNCTYPE(c_bool, POINTER(_Notice), c_void_p)


def _of(name: str, device: Device, make: bool) -> tuple[int, Pool]:
    """Returns the allocator and the pool of a tag."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"{name!r} is no name of a tag; expected a text")
    number = current_device(device)
    with _lock:
        handle = plugged(number)
        pool = _tags.get((number, name))
        if pool is None:
            if not make:
                raise KeyError(f"device {number} has no tag {name!r}: nothing was allocated under seamalloc.tag({name!r})")
            pool = Pool()
            check(library.seam_pool_create_tag(handle, byref(pool)))
            _tags[number, name] = pool
        return handle, pool


def pool_of(name: str, device: int) -> Pool:
    """Returns the pool of a tag, and creates the pool if it does not exist."""
    return _of(name, device, True)[1]


@contextmanager
def tag(name: str, device: Device = None, *, all_threads: bool = False) -> Iterator[None]:
    """Makes a context: memory that this thread allocates in it, on any stream, belongs to the tag of that name, for
    example weights, kv-cache or optimizer. Contexts may be nested; the innermost one counts. Several threads may use
    the same tag at once. With `all_threads` the tag also gets memory that threads without a context of their own
    allocate meanwhile. PyTorch's backward passes allocate in threads of their own."""
    handle, pool = _of(name, device, True)
    if all_threads:
        check(library.seam_pool_begin_other_threads(handle, pool))
    try:
        check(library.seam_pool_begin_thread(handle, pool, 0))
        try:
            yield
        finally:
            check(library.seam_pool_end(handle, pool))
    finally:
        if all_threads:
            check(library.seam_pool_end(handle, pool))


def sleep(
    name: str, device: Device = None, *, discard: bool = False, file: FileName | None = None, pinned: bool = False
) -> int:
    """Waits for the device and gives all physical memory of a tag back to it. Returns the bytes given back. The
    contents of the tag's tensors are kept in host memory. With `pinned` they are kept in page-locked memory and
    copied at the speed of the link, with `file` in a new file of that name, and with `discard` they are lost.
    Addresses, and graphs that contain them, stay valid. Until `wake`, the program must not use the tensors or launch
    such a graph. On an error the tag is unchanged."""
    if discard + pinned + (file is not None) > 1:
        raise ValueError("discard, file and pinned exclude each other")
    handle, pool = _of(name, device, False)
    given = c_uint64()
    kind = _FILE if file is not None else _DISCARD if discard else _PINNED if pinned else _HOST
    check(library.seam_pool_sleep(handle, pool, kind, None if file is None else path_of(file), byref(given)))
    return given.value


def wake(name: str, device: Device = None) -> int:
    """Gives a sleeping tag physical memory again, at the same addresses, and restores the contents of its tensors.
    Returns the bytes taken, 0 if the tag does not sleep. On an error, such as `OutOfMemory`, the tag stays asleep and
    can be woken later."""
    handle, pool = _of(name, device, False)
    taken = c_uint64()
    check(library.seam_pool_wake(handle, pool, byref(taken)))
    return taken.value


def release_backups(device: Device = None) -> int:
    """Gives page-locked memory that was kept for the next sleep back to the host. Returns the bytes given back."""
    released = c_uint64()
    check(library.seam_release_backups(plugged(current_device(device)), byref(released)))
    return released.value


def tags(device: Device = None) -> dict[str, dict[str, int]]:
    """Returns the tags of a device, with the bytes that each holds and the bytes that it needs to wake."""
    number = current_device(device)
    with _lock:
        mine = {name: pool for (of, name), pool in _tags.items() if of == number}
    found = {}
    for name, pool in mine.items():
        stats = _PoolStats(size=ctypes.sizeof(_PoolStats))
        check(library.seam_pool_get_stats(plugged(number), pool, byref(stats)))
        of = ("allocations", "allocated_bytes", "reserved_bytes", "asleep_bytes")
        found[name] = {figure: int(getattr(stats, figure)) for figure in of}
    return found


def on_sleep(callback: Callable[[str, str, int], Any], device: Device = None) -> Callable[[], None]:
    """Has `callback(stage, name, bytes)` called before and after each change of a tag, for libraries such as NCCL that
    have registered the memory. `stage` is "before_sleep", "asleep", "before_wake" or "awake". An exception before a
    change refuses the change. Every callback that agreed is told the resulting state, also if the change failed.
    Returns a function that removes the callback."""
    number = current_device(device)

    def told(notice: Any, user: Any) -> bool:
        found = notice.contents
        with _lock:
            pools = ((of, pool) for (at, of), pool in _tags.items() if at == number)
            same = (of for of, pool in pools if (pool.first, pool.second) == (found.tag.first, found.tag.second))
            name = next(same, f"({found.tag.first}, {found.tag.second})")
        try:
            callback(_STAGES[found.stage], name, int(found.bytes))
        except BaseException:
            # An error in a callback must not hide the error of the change.
            import traceback

            traceback.print_exc()
            return False
        return True

    # The function is kept alive, since the library calls it until it is removed.
    function, handle, added = _CALLBACK(told), plugged(number), c_uint64()
    check(library.seam_on_sleep(handle, function, None, byref(added)))

    def end() -> None:
        if kept.pop("function", None) is not None:
            atexit.unregister(end)
            check(library.seam_remove_sleep_callback(handle, added.value))

    kept = {"function": function}
    atexit.register(end)
    return end

"""Tags: memory that sleeps and wakes under the same addresses.

A tag is a private pool of the device's allocator with chunks of physical memory of its own. Who allocates says which tag it is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_uint64

from ._devices import Device, current_device
from ._library import FileName, Pool, check, library, path_of, plugged

_HOST, _DISCARD, _FILE = 0, 1, 2

_lock = threading.Lock()
_tags: dict[tuple[int, str], Pool] = {}


def _of(name: str, device: Device, make: bool) -> tuple[int, Pool]:
    """The allocator and the pool of a tag."""
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
    """The pool of a tag, which is made if it is not there yet."""
    return _of(name, device, True)[1]


@contextmanager
def tag(name: str, device: Device = None) -> Iterator[None]:
    """What this thread allocates in the context belongs to the tag of that name, whatever the stream: weights, kv-cache,
    optimizer. Contexts of different tags may lie inside of each other, of which the inner one counts; one tag has one context
    at a time. Backward passes of PyTorch allocate in threads of their own, which no context of another thread covers."""
    handle, pool = _of(name, device, True)
    check(library.seam_pool_begin_thread(handle, pool, 0))
    try:
        yield
    finally:
        check(library.seam_pool_end(handle, pool))


def sleep(name: str, device: Device = None, *, discard: bool = False, file: FileName | None = None) -> int:
    """Waits for the device, and gives all physical memory of a tag back to it. Returns the bytes given back. What its tensors
    hold is kept in the host's memory, or in a new file of that name, or lost with `discard`. Addresses stay, and graphs over
    them; until `wake`, nothing may use the tensors, nor launch such a graph. Where it fails, everything is as before."""
    if discard and file is not None:
        raise ValueError("discard and file exclude each other")
    handle, pool = _of(name, device, False)
    given = c_uint64()
    kind = _FILE if file is not None else _DISCARD if discard else _HOST
    check(library.seam_pool_sleep(handle, pool, kind, None if file is None else path_of(file), byref(given)))
    return given.value


def wake(name: str, device: Device = None) -> int:
    """Gives a tag that sleeps its memory again, at the same addresses, and its tensors what they held. Returns the bytes taken,
    0 if it does not sleep. Where it fails, as with `OutOfMemory`, it sleeps on, and can be woken later."""
    handle, pool = _of(name, device, False)
    taken = c_uint64()
    check(library.seam_pool_wake(handle, pool, byref(taken)))
    return taken.value

"""Several tags that sleep and wake together, for libraries with a sleep mode of their own."""

from __future__ import annotations

from collections.abc import Iterable

from . import _tags
from ._devices import Device


def sleep_all(keep: Iterable[str], discard: Iterable[str], device: Device = None) -> int:
    """Lets tags sleep: the tags in `keep` with page-locked backups, the others without backups. Returns the bytes given
    back. If a tag fails, the tags that fell asleep before it are woken again. Only contents of tags without backups may
    be lost."""
    given, slept = 0, []
    before = {name for name, of in _tags.tags(device).items() if of["asleep_bytes"]}
    try:
        for name, lost in [*((name, False) for name in keep), *((name, True) for name in discard)]:
            given += _tags.sleep(name, device, discard=lost, pinned=not lost)
            slept += [] if name in before else [name]
    except BaseException:
        for name in reversed(slept):
            _tags.wake(name, device)
        raise
    return given


def wake_all(names: Iterable[str], device: Device = None) -> int:
    """Wakes tags one after the other. Returns the bytes taken from the device. If a tag fails, the tags before it are
    awake, and the failed tag and the rest can be woken later."""
    return sum(_tags.wake(name, device) for name in names)

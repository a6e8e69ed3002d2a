"""The folder in which compiled shims are kept, between processes and users who must not meddle with each other.

Every process of the user loads files from that folder, so nobody else may write to it.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from . import _messages
from ._unavailable import UnavailableError

VARIABLE = "SEAMALLOC_CACHE"
REMEDY = f"Set {VARIABLE} to a folder of your own that can be written to"


def folder() -> Path:
    """Returns the folder in which compiled shims are kept."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).absolute()
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "seamalloc"
    except RuntimeError as error:
        raise UnavailableError("cache", f"there is no folder for its compiled shim ({error})", REMEDY) from error


def is_trusted(path: Path) -> bool:
    """Returns whether a file or folder is there. Raises an error where somebody else could have written to it."""
    try:
        found = path.stat()
    except OSError:
        return False
    # A file of root's could replace all of this process.
    if found.st_uid not in (os.geteuid(), 0):
        why = f"belongs to another user (uid {found.st_uid})"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        why = "can be written to by others"
    else:
        return True
    raise UnavailableError(
        "cache",
        f"{path} {why}, and what lies there would be loaded into this process",
        f"{REMEDY}, or run chmod 700 on it if it is yours",
    )


@contextmanager
def locked(name: str) -> Iterator[Path]:
    """The folder, made if it is not there, while no other process of the machine compiles. An `UnavailableError` is kept
    for those that are waiting to compile the same, `name`: they raise it too, instead of trying one after the other."""
    where = folder()
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            where.mkdir(mode=0o700)
        if not is_trusted(where):
            raise NotADirectoryError(f"{where} is no folder")
        lock = os.open(where / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritable(where, error) from error
    failure = where / f"{name}.failed"
    try:
        began = _wait(lock, where)
        if began is not None:
            _raise_again(failure, began)
        yield where
        with suppress(FileNotFoundError):
            failure.unlink()
    except UnavailableError as error:
        if error.cause != "cache":
            _keep(failure, error)
        raise
    except OSError as error:
        raise _unwritable(where, error) from error
    finally:
        os.close(lock)


def _unwritable(where: Path, error: OSError) -> UnavailableError:
    return UnavailableError("cache", f"its compiled shim cannot be kept in {where} ({error})", REMEDY)


def _wait(lock: int, where: Path) -> float | None:
    """Takes the lock. Returns since when it had to wait for it, or None."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        began = time.time()
        if _messages.is_first():
            _messages.say(f"waiting for another process, which compiles ({where})")
        fcntl.flock(lock, fcntl.LOCK_EX)
        return began


def _keep(failure: Path, error: UnavailableError) -> None:
    # If the file cannot be written, each process finds out for itself.
    with suppress(OSError):
        failure.write_text(json.dumps([time.time(), *error.args]), encoding="utf-8")


def _raise_again(failure: Path, began: float) -> None:
    """Raises the error of the process that compiled while this one waited, if it failed."""
    try:
        when, *arguments = json.loads(failure.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if when >= began:
        raise UnavailableError(*arguments)


def put(unfinished: Path, final: Path) -> None:
    """Gives a file its name, once it is on the disk: after a crash there is all of it or nothing."""
    unfinished.chmod(0o700)
    _to_disk(unfinished)
    os.replace(unfinished, final)
    _to_disk(final.parent)


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

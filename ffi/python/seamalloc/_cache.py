"""The folder of compiled shims. Processes use it at the same time, and other users must not be able to write to it.

Every process of the user loads files from the folder, so no other user may write to it.
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
    """Returns the folder of compiled shims."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).absolute()
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "seamalloc"
    except RuntimeError as error:
        raise UnavailableError("cache", f"there is no folder for its compiled shim ({error})", REMEDY) from error


def is_trusted(path: Path) -> bool:
    """Returns whether a file or folder exists. Raises an error if another user could have written to it."""
    try:
        found = path.stat()
    except OSError:
        return False
    # Files of root are trusted, since root could replace any file of this process.
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
    """Makes a context that holds the lock of the folder, so that no other process of the machine compiles meanwhile.
    The value is the folder, which is created if it does not exist. If compiling fails, the `UnavailableError` is kept
    for the processes that wait to compile the same `name`. These processes raise the same error and do not compile
    again."""
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
    """Takes the lock. Returns the time at which waiting began, or None if the lock was free."""
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
    # If the file cannot be written, each waiting process compiles and fails by itself.
    with suppress(OSError):
        failure.write_text(json.dumps([time.time(), *error.args]), encoding="utf-8")


def _raise_again(failure: Path, began: float) -> None:
    """Raises the error of the process that compiled while this process waited, if compiling failed."""
    try:
        when, *arguments = json.loads(failure.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if when >= began:
        raise UnavailableError(*arguments)


def put(unfinished: Path, final: Path) -> None:
    """Gives a file its final name after its content is on disk. After a crash the file is complete or does not exist.
    """
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

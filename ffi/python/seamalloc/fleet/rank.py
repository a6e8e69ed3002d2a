"""Analyzes one file of a job. `seamalloc whatif` reads the file in a process of its own, so that a broken file ends no
other analysis."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from dataclasses import dataclass
from typing import Any

from .._outside import printable
from .._program import PROGRAM, missing
from .files import File, in_words

# The exit code of `whatif` if a strategy cannot run a rank. The other strategies still have figures.
OUT_OF_MEMORY = 3
# The error of a snapshot for which `whatif` reports only the layout.
NO_HISTORY = (
    "the snapshot holds no history of allocations, only the layout at one moment, of which `seamalloc whatif` says more; record one "
    "with torch.cuda.memory._record_memory_history"
)
# The largest number of characters of an error that are kept.
MOST_WORDS = 600

Row = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """The settings with which each file is analyzed."""

    # Options of `seamalloc whatif`.
    options: tuple[str, ...] = ()
    # The time limit for a file, in seconds.
    timeout: float | None = None
    # The folder for copies of files that are not local.
    folder: str | None = None


@dataclass(frozen=True)
class Found:
    """The result of a file: the lines of `seamalloc whatif --json`, or an error."""

    url: str
    lines: tuple[Row, ...] = ()
    error: str | None = None


class Ended(Exception):
    """Raised instead of starting a process while the whole command ends."""


class Running:
    """The processes that were started here, which are ended with the command."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[str]] = set()
        self._over = False

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        with self._lock:
            if self._over:
                raise Ended
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
            self._processes.add(process)
            return process

    def forget(self, process: subprocess.Popen[str]) -> None:
        with self._lock:
            self._processes.discard(process)

    def end(self) -> None:
        with self._lock:
            self._over = True
            for process in self._processes:
                process.kill()


def look(file: File, settings: Settings, running: Running | None = None) -> Found:
    """Returns the result of a file. A broken file is a result with `error`, and raises nothing."""
    try:
        with file.here(settings.folder) as path:
            return _judge(file.url, path, settings, running or Running())
    except Ended:
        raise
    except Exception as error:
        # Each file system has errors of its own.
        return Found(file.url, error=in_words(error)[:MOST_WORDS])


def _judge(url: str, path: str, settings: Settings, running: Running) -> Found:
    try:
        process = running.start([str(PROGRAM), "whatif", path, "--json", *settings.options])
    except FileNotFoundError:
        return Found(url, error=missing("fleet"))
    try:
        out, said = process.communicate(timeout=settings.timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Found(url, error=f"it took more than {settings.timeout:g} s (--timeout)")
    finally:
        running.forget(process)
    if process.returncode in (0, OUT_OF_MEMORY):
        # JSON allows other characters that end lines, so the text is split only at `\n`.
        lines = tuple(json.loads(line) for line in out.split("\n") if line)
        if any(line.get("layout") for line in lines):
            return Found(url, error=NO_HISTORY)
        return Found(url, lines)
    if process.returncode < 0:
        return Found(url, error=_by_signal(-process.returncode))
    # The file's own name replaces the path of the copy, which has no meaning for users.
    shown = printable(path.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    said = " ".join(said.split()).removeprefix("seamalloc: ").removeprefix(shown).lstrip(":, ").replace(shown, url)
    return Found(url, error=said[:MOST_WORDS] or f"the command failed with status {process.returncode}")


def _by_signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    more = ", as where this machine runs out of memory: fewer --workers need less" if number == signal.SIGKILL else ""
    return f"the process was ended by {name}{more}"


def cores() -> int:
    """Returns the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0)) or 1
    except AttributeError:
        return os.cpu_count() or 1

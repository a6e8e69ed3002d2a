"""Shows progress on standard error: a bar on a terminal, otherwise a line from time to time."""

from __future__ import annotations

import sys
import time
from types import TracebackType

# Seconds between lines without a terminal.
BETWEEN_LINES = 30.0


class Progress:
    """Counts finished files and shows the count."""

    def __init__(self, total: int, shown: bool = True) -> None:
        self._total, self._done, self._broken = total, 0, 0
        self._began = self._said = time.monotonic()
        self._shown, self._bar, self._task = shown, None, None
        if shown and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("files", total=total)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def count(self, is_broken: bool) -> None:
        """Counts a finished file."""
        self._done += 1
        self._broken += is_broken
        words = f"files, {self._broken} broken" if self._broken else "files"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=1, description=words)
            return
        now = time.monotonic()
        if self._shown and now - self._said >= BETWEEN_LINES and self._done < self._total:
            self._said = now
            left = (now - self._began) / self._done * (self._total - self._done)
            print(
                f"seamalloc: {self._done} of {self._total} {words}; about {_time(left)} left",
                file=sys.stderr,
                flush=True,
            )


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"

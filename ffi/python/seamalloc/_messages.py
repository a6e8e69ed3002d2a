"""Unrequested messages of seamalloc on standard error, one line each, and the setting that suppresses them."""

from __future__ import annotations

import os
import sys

from ._outside import printable_lines

VARIABLE = "SEAMALLOC_QUIET"
# The variables in which launchers pass a process's number on its machine: torchrun, Slurm, Open MPI.
LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
_quiet: bool | None = None


def is_set(name: str) -> bool:
    """Returns whether an environment variable switches something on."""
    return os.environ.get(name, "") not in ("", "0")


def be_quiet(quiet: bool | None) -> None:
    """Suppresses messages from now on, or allows them. None leaves the choice to the environment variable."""
    global _quiet
    _quiet = quiet


def is_first() -> bool:
    """Returns whether this process is the first one of the job on this machine, so that no message is printed twice."""
    ranks = [rank for rank in map(os.environ.get, LOCAL_RANKS) if rank]
    return not ranks or ranks[0] == "0"


def line(text: str) -> None:
    """Prints a line about an error, even if messages are suppressed."""
    # A closed standard error is ignored.
    if sys.stderr is not None:
        print(f"seamalloc: {printable_lines(text)}", file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Prints a line, unless messages are suppressed."""
    if not (is_set(VARIABLE) if _quiet is None else _quiet):
        line(text)


def block(text: str) -> None:
    """Prints requested lines without changes."""
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()

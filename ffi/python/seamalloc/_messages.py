"""Messages of seamalloc on standard error that nobody asked for, a line at a time, and when it is quiet."""

from __future__ import annotations

import os
import sys

from ._outside import printable_lines

VARIABLE = "SEAMALLOC_QUIET"
# The variables of launchers with a process's number on its machine: torchrun, Slurm, Open MPI.
LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
_quiet: bool | None = None


def is_set(name: str) -> bool:
    """Returns whether an environment variable switches something on."""
    return os.environ.get(name, "") not in ("", "0")


def be_quiet(quiet: bool | None) -> None:
    """Says nothing from now on, or does; None leaves it to the environment variable."""
    global _quiet
    _quiet = quiet


def is_first() -> bool:
    """Returns whether no other process of the job on this machine says the same."""
    ranks = [rank for rank in map(os.environ.get, LOCAL_RANKS) if rank]
    return not ranks or ranks[0] == "0"


def line(text: str) -> None:
    """A line, whoever is quiet: of what went wrong."""
    # A closed standard error is ignored.
    if sys.stderr is not None:
        print(f"seamalloc: {printable_lines(text)}", file=sys.stderr, flush=True)


def say(text: str) -> None:
    """A line, unless it should be quiet."""
    if not (is_set(VARIABLE) if _quiet is None else _quiet):
        line(text)


def block(text: str) -> None:
    """Writes requested lines unchanged to standard error."""
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()

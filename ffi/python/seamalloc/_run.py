"""`seamalloc run`: runs a Python program with seamalloc as PyTorch's allocator."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import NoReturn

from ._library import OptionError
from ._outside import printable_lines
from ._record import record_process
from ._switch import FALLBACKS, VARIABLE, enable

USAGE = """\
usage: seamalloc run [--record TRACE] [--fallback KIND] script.py [arguments]
       seamalloc run [--record TRACE] [--fallback KIND] -m module [arguments]

Runs a Python program with seamalloc as PyTorch's CUDA allocator; its exit code is the program's. Options are in the
environment variable SEAMALLOC_CONF, "strategy:stitch,memory_limit:80GiB". `python -m seamalloc run` is the same. With
torchrun: torchrun [its options] -m seamalloc run script.py ...

  --record TRACE   record what each device that the process uses is asked for, to a file .seam, .csv or .csv.gz; {rank}
                   is the process's RANK, {device} the device's number
  --fallback KIND  where seamalloc cannot be had, pytorch: go on with PyTorch's own allocator, with a warning; pluggable:
                   where only the shim is missing, go on by PyTorch's pluggable interface, which loses much. Without it
                   that is an error. The environment variable SEAMALLOC_FALLBACK says the same

With SEAMALLOC_PINNED=1, or options for it, PyTorch's page-locked memory is seamalloc's too; {device} is pinned then."""


def fail(text: object, code: int = 1) -> NoReturn:
    """Ends the command with an error message: exit code 1 for an error, 2 for a wrong command line."""
    name = "" if str(text).startswith("seamalloc ") else "seamalloc: "
    print(printable_lines(f"{name}{text}"), file=sys.stderr)
    sys.exit(code)


def _take(arguments: list[str], option: str, what: str) -> str | None:
    """Removes an option and its value from the head of the arguments. Returns the value, or None if another argument is
    first."""
    name, equals, value = arguments[0].partition("=")
    if name != option:
        return None
    del arguments[0]
    if not equals:
        if not arguments:
            fail(f"{option} needs {what}\n{USAGE}", 2)
        value = arguments.pop(0)
    return value


def run(arguments: list[str]) -> None:
    """Runs the command with the arguments after `run`."""
    trace = fallback = None
    while arguments and arguments[0].startswith("--"):
        found = _take(arguments, "--record", "a file's name")
        if found is not None:
            trace = found
            continue
        fallback = _take(arguments, "--fallback", " or ".join(FALLBACKS))
        if fallback is None:
            fail(f"{arguments[0]} is no option of run\n{USAGE}", 2)
        if fallback not in FALLBACKS:
            fail(f"--fallback is {fallback}; expected {' or '.join(FALLBACKS)}", 2)
    as_module = arguments[:1] == ["-m"]
    if as_module:
        del arguments[:1]
    if not arguments or arguments[0].startswith("-"):
        fail(f"which program?\n{USAGE}", 2)
    if not as_module and not Path(arguments[0]).is_file():
        fail(f"{arguments[0]} is no file")
    _begin(trace, fallback)
    sys.argv = arguments
    # Python adds no folder to the head of the path if its options forbid it.
    has_folder = not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated)
    if as_module:
        # As with `python -m`, the caller's folder comes first.
        if has_folder:
            sys.path[0] = ""
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        if has_folder:
            sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


def _begin(trace: str | None, fallback: str | None) -> None:
    try:
        enable(fallback=fallback)
    except OptionError as error:
        fail(f"{VARIABLE}: {error}")
    except (RuntimeError, ValueError, OSError) as error:
        fail(error)
    if trace is not None:
        try:
            record_process(trace)
        except (ValueError, RuntimeError, OSError) as error:
            fail(f"--record: {error}")

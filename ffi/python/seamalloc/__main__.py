"""The command `seamalloc`, and `python -m seamalloc`. `run`, `fleet` and `--version` are implemented in Python; other
commands go to the bundled program."""

from __future__ import annotations

import os
import sys

from . import __version__
from ._program import PROGRAM, missing
from ._run import USAGE, fail, run
from .fleet import SHORT_USAGE
from .fleet.command import main as fleet


def execute(arguments: list[str]) -> None:
    """Replaces this process by the bundled program, whose exit code becomes the exit code of the command."""
    sys.stdout.flush()
    try:
        os.execv(PROGRAM, ["seamalloc", *arguments])
    except FileNotFoundError:
        fail(missing(" ".join(arguments[:1])))
    except OSError as error:
        fail(f"{PROGRAM} cannot be run: {error}")


def main() -> None:
    """Runs the command."""
    arguments = sys.argv[1:]
    wants_help = arguments[1:2] in (["--help"], ["-h"])
    if arguments[:1] == ["run"] and not wants_help:
        run(arguments[1:])
    elif arguments[:2] in (["run", "--help"], ["run", "-h"], ["help", "run"]):
        print(USAGE)
    elif arguments[:1] == ["fleet"] or arguments == ["help", "fleet"]:
        sys.exit(fleet(arguments[1:] if arguments[0] == "fleet" else ["--help"]))
    elif arguments == ["--version"]:
        print(__version__)
    elif not arguments:
        fail(f"expected a command\n{USAGE}\n\nseamalloc --help has the other commands", 2)
    elif arguments in (["--help"], ["-h"], ["help"]):
        print(f"{USAGE}\n\n{SHORT_USAGE}\n\nAll other commands:\n")
        execute(["--help"])
    else:
        execute(arguments)


if __name__ == "__main__":
    main()

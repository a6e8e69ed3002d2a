"""The command `seamalloc`, and `python -m seamalloc`: `run` is Python's, all else is done by the program that the package
carries."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from . import __version__
from ._run import USAGE, fail, run

PROGRAM = Path(__file__).resolve().parent / "bin" / "seamalloc"


def execute(arguments: list[str]) -> None:
    """Becomes the program, whose exit code is this command's."""
    sys.stdout.flush()
    try:
        os.execv(PROGRAM, ["seamalloc", *arguments])
    except FileNotFoundError:
        fail(
            f"{' '.join(arguments[:1])}: this package was built without the program for all but `run` ({PROGRAM}). Install "
            "a released wheel, or in the repository: cargo install --path cli"
        )
    except OSError as error:
        fail(f"{PROGRAM} cannot be run: {error}")


def main() -> None:
    """The command."""
    arguments = sys.argv[1:]
    wants_help = arguments[1:2] in (["--help"], ["-h"])
    if arguments[:1] == ["run"] and not wants_help:
        run(arguments[1:])
    elif arguments[:2] in (["run", "--help"], ["run", "-h"], ["help", "run"]):
        print(USAGE)
    elif arguments == ["--version"]:
        print(__version__)
    elif not arguments:
        fail(f"expected a command\n{USAGE}\n\nseamalloc --help has the other commands", 2)
    elif arguments in (["--help"], ["-h"], ["help"]):
        print(f"{USAGE}\n\nAll other commands:\n")
        execute(["--help"])
    else:
        execute(arguments)


if __name__ == "__main__":
    main()

"""The command `seamalloc`, and `python -m seamalloc`: `run` and `fleet` are Python's, all else is done by the program that the
package carries."""

from __future__ import annotations

import os
import sys

from . import __version__
from ._program import PROGRAM, missing
from ._run import USAGE, fail, run
from .fleet import SHORT_USAGE
from .fleet.command import main as fleet


def execute(arguments: list[str]) -> None:
    """Becomes the program, whose exit code is this command's."""
    sys.stdout.flush()
    try:
        os.execv(PROGRAM, ["seamalloc", *arguments])
    except FileNotFoundError:
        fail(missing(" ".join(arguments[:1])))
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

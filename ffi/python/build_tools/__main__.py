"""The command line: `headers`, `compile`, `prebuild`, `wheel`, `pytorch`.

Exit codes: 0 success, 1 it failed, 2 wrong command line, 3 the index or the disk has no room for PyTorch.
"""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import compile as compiling
from . import headers, prebuilt, pytorch, wheel
from .source import BuildError

VERSIONS = "versions of PyTorch: 2.11.0; 2.11 (its newest patch); minors (that of each), oldest or newest of these; all"


def fetch(names):
    """The headers of the versions that are named, fetched side by side."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(headers.fetch, headers.choose(names)))


def main():
    parser = argparse.ArgumentParser(
        prog="build_tools", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name, help):
        command = commands.add_parser(name, help=help)
        command.add_argument("--torch", nargs="+", metavar="VERSION", default=["minors"], help=VERSIONS)
        return command

    add("headers", "fetches the headers of PyTorch's versions, and prints where they are")
    add("compile", "compiles the shim against each version's headers, and says what fails")
    prebuild = add("prebuild", "builds the shims that the wheel carries")
    prebuild.set_defaults(torch=["all"])
    prebuild.add_argument("output", type=Path, help="the folder to put them and their manifest into")
    whole = add("wheel", "builds the wheel that is given to users, from a copy of the source alone")
    whole.set_defaults(torch=["all"])
    whole.add_argument("output", type=Path, help="the folder to put the wheel into")
    commands.add_parser("pytorch", help="installs the newest PyTorch for tests into the cache, and prints the folder")
    arguments = parser.parse_args()

    started = time.monotonic()
    try:
        if arguments.command == "pytorch":
            print(pytorch.install())
            return 0
        releases = fetch(arguments.torch)
        if arguments.command == "headers":
            for release in releases:
                print(f"{release.version}\t{release.include}")
        elif arguments.command == "compile":
            if not compiling.compile_all(releases):
                return 1
        elif arguments.command == "prebuild":
            prebuilt.build(releases, arguments.output)
        else:
            wheel.build(releases, arguments.output)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3 if isinstance(error, pytorch.Unavailable) else 1
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""python -m seamalloc run script.py ...: runs a program with seamalloc as PyTorch's allocator."""

import runpy
import sys
from pathlib import Path

from . import OptionError, __version__, enable, record

USAGE = """\
usage: python -m seamalloc run [--record TRACE] script.py [arguments]
       python -m seamalloc run [--record TRACE] -m module [arguments]
       python -m seamalloc --version

Runs a Python program with seamalloc as PyTorch's CUDA allocator. Options are in the environment variable SEAMALLOC_CONF,
"strategy:stitch,memory_limit:80GiB". With torchrun: torchrun [its options] -m seamalloc run script.py ...

  --record TRACE   record what device 0 is asked for, to a file .seam, .csv or .csv.gz; {rank} is the process's RANK"""


def fail(text):
    """Ends the program with what is wrong."""
    sys.exit(f"seamalloc: {text}")


def trace_name(arguments):
    """Takes `--record NAME` off the arguments."""
    if arguments[:1] != ["--record"]:
        return None
    if len(arguments) < 2:
        fail("--record needs a file's name")
    import os

    name = arguments[1].replace("{rank}", os.environ.get("RANK", "0"))
    del arguments[:2]
    return name


def run(arguments):
    """`run`, with what follows it."""
    trace = trace_name(arguments)
    as_module = arguments[:1] == ["-m"]
    if as_module:
        del arguments[:1]
    if not arguments or arguments[0].startswith("-"):
        fail(f"which program?\n{USAGE}")
    if not as_module and not Path(arguments[0]).is_file():
        fail(f"{arguments[0]} is no file")
    try:
        enable()
    except OptionError as error:
        fail(f"SEAMALLOC_CONF: {error}")
    except RuntimeError as error:
        fail(error)
    recording = None
    if trace is not None:
        try:
            recording = record(trace, device=0)
        except (ValueError, RuntimeError) as error:
            fail(error)
    sys.argv = arguments
    try:
        if as_module:
            # As `python -m` does: the folder of the caller comes first.
            sys.path[0] = ""
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(arguments[0]).resolve().parent)
            runpy.run_path(arguments[0], run_name="__main__")
    finally:
        if recording is not None:
            recording.stop()


def main():
    """The command."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["run"] and arguments[1:2] not in (["--help"], ["-h"]):
        run(arguments[1:])
    elif arguments == ["--version"]:
        print(__version__)
    elif arguments[-1:] in (["--help"], ["-h"]):
        print(USAGE)
    else:
        fail(f"expected `run`\n{USAGE}")


if __name__ == "__main__":
    main()

"""The command line of `seamalloc fleet`, and its exit codes."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from .. import __version__
from .._program import PROGRAM, missing
from .._run import fail

DESCRIPTION = """\
Shows what every rank of a job holds, and would hold with each strategy on its device; which rank decides the batch
size; which ranks are unlike the others; and what the job as a whole could save. Needs no GPU."""
EPILOG = """\
Files are PyTorch memory snapshots (.pickle, .pickle.gz), or traces in any format that `seamalloc whatif` reads.
Addresses are those of fsspec, such as s3://bucket/job/rank-*.pickle, whose package is then needed too (s3fs, gcsfs,
adlfs). The number of a rank is taken from the name: rank-12.pickle, rank_12/job.pickle, worker-12.pickle.

Exit codes: 0 success; 1 nothing could be looked at, or bad input; 2 wrong command line; 3 a strategy does not run a
rank on its device; 4 some files are broken, and the rest was done; 130 interrupted.
Needs `pip install 'seamalloc[fleet]'`; for --engine ray also 'seamalloc[ray]'."""
# The largest number of rows of ranks that are printed.
ROWS = 32
BROKEN, SOME_BROKEN, OUT_OF_MEMORY, INTERRUPTED = 1, 4, 3, 130


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="seamalloc fleet",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("patterns", nargs="+", metavar="PATTERN", help="files, or quoted patterns of files")
    add(
        "--engine",
        choices=("processes", "ray"),
        default="processes",
        help="processes of this machine (default), or Ray",
    )
    add(
        "--workers",
        type=_positive,
        metavar="N",
        help="files at a time [default: one for each core, of Ray's machines with --engine ray]",
    )
    add(
        "--ray-address",
        metavar="ADDRESS",
        help="a Ray that runs: its address, or auto [default: RAY_ADDRESS; else one is started here]",
    )
    add(
        "--strategy",
        metavar="NAMES",
        help="strategies beside PyTorch's two, separated by commas, or main, classic, all [default: main]",
    )
    add("--conf", metavar="OPTIONS", help="allocator options in PyTorch's syntax")
    add(
        "--device",
        metavar="DEVICE",
        help="the device of all ranks, sim:h200,capacity=80GiB [default: that of each snapshot]",
    )
    add(
        "--quick",
        action="store_true",
        help="do not seek the largest step, which takes two to ten replays for each strategy",
    )
    add("--timeout", type=_seconds, metavar="SECONDS", help="give up a file after this time")
    add("--temporary", metavar="FOLDER", help="where files that are not local are copied to, one for each worker")
    add("--json", action="store_true", help="print one JSON object instead of tables")
    add("-o", "--output", metavar="FILE", help="write a page for looking, HTML that needs no other file")
    add(
        "--rows",
        type=_count,
        default=ROWS,
        metavar="N",
        help=f"how many ranks the table shows, the most telling first; 0: all [default: {ROWS}]",
    )
    return made


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError(text)
    return number


# argparse prints these names for invalid values.
_count.__name__, _positive.__name__, _seconds.__name__ = "whole number", "number from 1 on", "number of seconds"


def main(arguments: Sequence[str]) -> int:
    """Runs the command with the arguments after `fleet`. Returns its exit code."""
    args = parser().parse_args(arguments)
    if args.engine != "ray" and args.ray_address is not None:
        fail("fleet: --ray-address is for --engine ray", 2)
    _check_packages()
    _check_options(args)
    _check_output(args.output)
    try:
        # A signal that ends the command also ends its child processes.
        signal.signal(signal.SIGTERM, _terminated)
        judged = _judged(args)
    except KeyboardInterrupt:
        print("seamalloc: fleet: interrupted", file=sys.stderr)
        return INTERRUPTED
    # Results may have taken hours, so they are printed before any other step can fail. The page is written even if
    # printing fails.
    try:
        _print(judged, args)
    finally:
        if args.output is not None:
            _write_page(judged, args.output)
    return _code(judged)


def _print(judged: dict[str, Any], args: argparse.Namespace) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # If a locale lacks a character, the other characters are still printed.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if args.json:
            print(json.dumps(judged))
        else:
            from .table import show

            show(judged, args.rows)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the output. Without this line Python would report an error at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminated(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _check_packages() -> None:
    try:
        import fsspec  # noqa: F401
        import rich  # noqa: F401
    except ImportError as error:
        fail(f"fleet needs packages that seamalloc itself does not ({error}): pip install 'seamalloc[fleet]'")
    if not PROGRAM.is_file():
        fail(missing("fleet"))


def _options(args: argparse.Namespace) -> tuple[str, ...]:
    """Returns the options of `seamalloc whatif`, each as one word, so that no value is taken for another option."""
    named = {"--strategy": args.strategy, "--conf": args.conf, "--device": args.device}
    given = [f"{name}={value}" for name, value in named.items() if value is not None]
    return (*given, "--color=never", *(["--quick"] if args.quick else []))


def _check_options(args: argparse.Namespace) -> None:
    """Lets the bundled program check the options before it reads any file, so that a wrong option is not reported for
    each file."""
    with tempfile.TemporaryDirectory(prefix="seamalloc-fleet-") as folder:
        trace = Path(folder) / "options.csv"
        trace.write_text("a,1,512,0\n")
        command = [str(PROGRAM), "whatif", str(trace), "--json", *_options(args)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode not in (0, OUT_OF_MEMORY):
        text = done.stderr.strip().removeprefix("error: ").removeprefix("seamalloc: ")
        fail(f"fleet: {text.replace('seamalloc whatif', 'seamalloc fleet')}", 2)
    if args.temporary is not None and not Path(args.temporary).is_dir():
        fail(f"fleet: --temporary {args.temporary} is no folder", 2)


def _check_output(output: str | None) -> None:
    """Reports at once an output that could not be written after hours of work."""
    if output is None:
        return
    path = Path(output)
    where = path if path.exists() else path.parent
    if path.is_dir() or not where.exists() or not os.access(where, os.W_OK):
        fail(f"fleet: {output} cannot be written")


def _judged(args: argparse.Namespace) -> dict[str, Any]:
    from .engines import Engine, EngineError, Processes, Ray, run
    from .files import PatternError, find
    from .job import judge
    from .progress import Progress
    from .rank import Settings, cores

    try:
        files = find(args.patterns)
        settings = Settings(_options(args), args.timeout, args.temporary)
        engine: Engine
        if args.engine == "ray":
            address = args.ray_address or os.environ.get("RAY_ADDRESS")
            engine = Ray(settings, args.workers or (None if address else cores()), address)
        else:
            engine = Processes(settings, args.workers or cores())
    except (PatternError, EngineError) as error:
        fail(f"fleet: {error}")
    found = []
    with Progress(len(files)) as progress:
        for one in run(engine, files):
            found.append(one)
            progress.count(one.error is not None)
    return judge(found, __version__)


def _write_page(judged: dict[str, Any], output: str) -> None:
    """Lets the bundled program make the page, since it contains the styles and scripts of all pages."""
    with tempfile.TemporaryDirectory(prefix="seamalloc-fleet-") as folder:
        path = Path(folder) / "fleet.json"
        path.write_text(json.dumps(judged))
        command = [str(PROGRAM), "report", f"--fleet={path}", f"--output={output}"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        fail(f"fleet: {done.stderr.strip().removeprefix('seamalloc: ')}")
    print(done.stdout.strip(), file=sys.stderr)


def _code(judged: dict[str, Any]) -> int:
    """Returns the exit code. The worst result decides."""
    if not judged["ranks"]:
        return BROKEN
    if judged["broken"]:
        return SOME_BROKEN
    return 0 if all(row["verdict"]["runs"] for row in judged["ranks"]) else OUT_OF_MEMORY

"""Runs suites of PyTorch's own tests under several allocators: python pytorch_tests.py FOLDER --json FILE [...].

FOLDER is `test` of a PyTorch checkout, of about the version that is installed. Needs a GPU (for some suites two), PyTorch,
what its tests import (expecttest, hypothesis, psutil), a C++ compiler, and seamalloc.

FILE gets a line of JSON for each test under each allocator as it ends, so that a run that is cut off says what it reached.
pytorch_tests_table.py makes tables of such files. Which suites there are, and which of their tests are taken, is in
pytorch_tests_choice.py.

Each process has one test file and one allocator, and takes the next test of those that are left, so that all allocators get
on alike; after a failure, a crash or a hang another goes on. Tests measure the memory of their own process, so several
processes run side by side (`--at-once`); those that look at the whole device run alone, afterwards. At the end, tests that
native passed and seamalloc did not, or the other way round, are run again under both, each in a process of its own.
"""

import argparse
import gzip
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytorch_tests_choice as choice
from pytorch_tests_processes import Ended, Process

COMPARED = ("native", "seamalloc")
# Of the whole time: when tests that must be alone begin at the latest, and those that are run again.
ALONE_AT, AGAIN_AT = 0.72, 0.86
AGAIN_AT_ONCE = 6
POLL_S = 0.2
# How many processes of a file and an allocator may fail to start.
STARTS = 2


class File:
    """A test file, and which tests of it are taken, once a process has said so."""

    def __init__(self, suite, path):
        self.suite, self.path = suite, path
        self.name = Path(path).name
        self.tests = None


class Line:
    """The tests of a file that one allocator still has before it."""

    def __init__(self, file, allocator):
        self.file, self.allocator = file, allocator
        self.waiting = None
        self.processes = 0
        # Processes that did not start.
        self.failed = 0

    def left_s(self):
        """About how long the rest takes."""
        return len(self.waiting) * choice.SUITES[self.file.suite].usual_s


def pick(lines):
    """The line that the next process is for: one of whose file nothing is known yet, else the one with most left for each
    process that it has. None if no line needs one."""
    for line in lines:
        same = [other for other in lines if other.file is line.file]
        if line.waiting is None and line.failed < STARTS and not any(other.processes for other in same):
            return line
    wanting = [line for line in lines if line.waiting and line.failed < STARTS and len(line.waiting) > line.processes]
    return max(wanting, key=lambda line: line.left_s() / (1 + line.processes), default=None)


class Run:
    """A run of several suites under several allocators."""

    def __init__(self, options, out):
        self.options, self.out = options, out
        self.lock = threading.Lock()
        self.start = time.monotonic()
        self.files = [File(suite, path) for suite in options.suites for path in choice.SUITES[suite].modules]
        # (test, allocator): outcome of the first round.
        self.outcomes = {}
        self.served = {}

    def at(self, share):
        """Returns the moment at a share of the time."""
        return self.start + share * self.options.seconds

    def write(self, **line):
        """Writes a line to the file."""
        with self.lock:
            self.out.write(json.dumps(line) + "\n")
            self.out.flush()

    def record(self, file, allocator, turn, report):
        """Records the outcome of a test, and writes its line."""
        test = f"{file.name}.{report['test']}"
        if turn == 1:
            self.outcomes[test, allocator] = report["outcome"]
        self.served[allocator] = self.served.get(allocator, 0) + report.pop("new", 0)
        self.write(**{**report, "suite": file.suite, "test": test, "allocator": allocator, "round": turn})
        if report["outcome"] in ("failed", "crashed", "hung"):
            print(file.suite, test, allocator, report["outcome"], report["message"][:300], sep="\t", flush=True)

    def learn(self, file, first):
        """Takes over from a process which tests a file has."""
        wanted = self.options.only
        file.tests = [test for test in first["tests"] if not wanted or wanted in f"{file.name}.{test['test']}"]
        file.tests = [test for test in file.tests if f"{file.name}.{test['test']}" not in self.options.done]
        self.write(file=file.name, suite=file.suite, versions=first["versions"], tests=len(file.tests))
        gpus = first["versions"]["gpus"]
        for test in [test for test in file.tests if test["gpus"] > gpus]:
            file.tests.remove(test)
            for allocator in self.options.allocators:
                message = f"wants {test['gpus']} GPUs; there are {gpus}"
                skipped = {"test": test["test"], "outcome": "skipped", "message": message, "seconds": 0.0}
                self.record(file, allocator, 1, skipped)

    def begin(self, file, allocator, deadline):
        """A process, which has its tests imported. None where it has not the allocator that it should, or does not start."""
        process = Process(file.suite, self.options.folder, file.path, allocator, self.options.caches)
        try:
            first = process.first_report(deadline)
            wanted = "seamalloc" if allocator.startswith("seamalloc") else "native"
            if first["allocator"] != wanted:
                raise Ended("crashed", f"its allocator is {first['allocator']}, not {wanted}", "")
        except Ended as ended:
            process.end()
            if time.monotonic() < deadline:
                self.write(
                    file=file.name, suite=file.suite, allocator=allocator, error=ended.message, trace=ended.trace
                )
                print(file.suite, file.name, allocator, "does not start", ended.message, sep="\t", flush=True)
            return None
        with self.lock:
            unknown = file.tests is None
            if unknown:
                file.tests = []
        if unknown:
            self.learn(file, first)
        return process

    def feed(self, process, file, allocator, take, turn, deadline):
        """Has a process run tests until there are none, one fails, or the time is over."""
        served, limit_s = 0, choice.SUITES[file.suite].limit_s
        while time.monotonic() < deadline:
            test = take()
            if test is None:
                break
            began = time.monotonic()
            try:
                report = process.run(test, limit_s, deadline)
            except Ended as ended:
                if ended.outcome == "hung" and time.monotonic() >= deadline:
                    # Cut off by the end of the run, which says nothing of the test.
                    break
                seconds = round(time.monotonic() - began, 2)
                report = {"test": test, "outcome": ended.outcome, "message": ended.message, "seconds": seconds}
                self.record(file, allocator, turn, {**report, "trace": ended.trace})
                break
            report["new"], served = max(0, report["served"] - served), max(served, report["served"])
            self.record(file, allocator, turn, report)
            if report["outcome"] == "failed":
                break
        process.end()

    def listen(self, process, file, allocator):
        """Writes down what the allocators of a process that has ended, and of those that it started, complained of."""
        complaints = process.complaints()
        if complaints:
            self.write(file=file.name, suite=file.suite, allocator=allocator, complaints=complaints)
            for complaint, times in complaints.items():
                print(file.suite, file.name, allocator, f"{times} times", complaint, sep="\t", flush=True)

    def slot(self, lines, deadline):
        """Runs one process after another for the lines that need it."""
        while time.monotonic() < deadline:
            with self.lock:
                line = pick(lines)
                if line is not None:
                    line.processes += 1
                elif not any(line.processes for line in lines):
                    return
            if line is None:
                time.sleep(POLL_S)
                continue

            def take(line=line):
                with self.lock:
                    return line.waiting.pop(0) if line.waiting else None

            process = self.begin(line.file, line.allocator, deadline)
            if process is not None:
                with self.lock:
                    for other in lines:
                        if other.file is line.file and other.waiting is None:
                            other.waiting = [test["test"] for test in line.file.tests if not test["alone"]]
                self.feed(process, line.file, line.allocator, take, 1, deadline)
                self.listen(process, line.file, line.allocator)
            with self.lock:
                line.processes -= 1
                line.failed += process is None

    def together(self, lines, at_once, deadline):
        """Runs the tests of several lines side by side."""
        slots = [threading.Thread(target=self.slot, args=(lines, deadline)) for _ in range(at_once)]
        for slot in slots:
            slot.start()
        for slot in slots:
            slot.join()

    def lines_of(self, keep):
        """Lines of those tests of each file that `keep` says."""
        lines = []
        for file in self.files:
            for allocator in self.options.allocators_of(file.suite):
                line = Line(file, allocator)
                line.waiting = [test["test"] for test in file.tests or [] if keep(file, test)]
                lines.append(line)
        return lines

    def again(self, deadline):
        """Runs tests again that differ, each in a process of its own."""
        jobs = []
        for file in self.files:
            for test in file.tests or []:
                native, ours = (self.outcomes.get((f"{file.name}.{test['test']}", one)) for one in COMPARED)
                if native and ours and native != ours and not choice.why_known(test["test"].split(".")[1]):
                    jobs += [(file, allocator, test["test"]) for allocator in COMPARED]

        def slot():
            while time.monotonic() < deadline:
                with self.lock:
                    if not jobs:
                        return
                    file, allocator, test = jobs.pop(0)
                process = self.begin(file, allocator, deadline)
                if process is not None:
                    one = [test]
                    self.feed(process, file, allocator, lambda one=one: one.pop() if one else None, 2, deadline)
                    self.listen(process, file, allocator)

        slots = [threading.Thread(target=slot) for _ in range(min(AGAIN_AT_ONCE, self.options.at_once))]
        for each in slots:
            each.start()
        for each in slots:
            each.join()

    def run(self):
        """Runs all tests. Returns whether every file could be run under every allocator."""
        lines = [Line(file, allocator) for file in self.files for allocator in self.options.allocators_of(file.suite)]
        self.together(lines, self.options.at_once, self.at(ALONE_AT))
        started = all(line.failed < STARTS for line in lines)
        self.together(self.lines_of(lambda file, test: test["alone"]), 1, self.at(AGAIN_AT))
        # What there was no time for, while the tests of the whole device were run.
        self.together(
            self.lines_of(lambda file, test: not test["alone"] and not self.reached(file, test)),
            self.options.at_once,
            self.at(AGAIN_AT),
        )
        self.again(self.at(1))
        for file in self.files:
            if file.tests is None:
                # A start can take a minute and a half, where many processes import Inductor.
                error = f"in {self.options.seconds:.0f} s no process of it had started; give more --seconds"
                self.write(file=file.name, suite=file.suite, error=error)
                print(f"{file.name}: {error}", file=sys.stderr)
                started = False
            for test in file.tests or []:
                for allocator in self.options.allocators_of(file.suite):
                    if (f"{file.name}.{test['test']}", allocator) not in self.outcomes:
                        missing = {"test": test["test"], "outcome": "not reached", "message": "", "seconds": 0.0}
                        self.record(file, allocator, 1, missing)
        self.write(seconds=round(time.monotonic() - self.start, 1), served=self.served)
        return started

    def reached(self, file, test):
        """Returns whether all allocators have run a test."""
        name = f"{file.name}.{test['test']}"
        return all((name, allocator) in self.outcomes for allocator in self.options.allocators_of(file.suite))


def reached_in(paths):
    """The tests that every allocator that is compared has run in earlier runs, as FILE.CLASS.TEST."""
    reached = {}
    for path in paths:
        opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path)
        with opened as lines:
            for line in map(json.loads, lines):
                if line.get("outcome", "not reached") != "not reached":
                    reached.setdefault(line["test"], set()).add(line["allocator"])
    return {test for test, allocators in reached.items() if allocators.issuperset(COMPARED)}


def read_arguments():
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="PyTorch's tests")
    parser.add_argument(
        "--json", type=Path, required=True, help="gets a line for each test; is added to if it is there"
    )
    names = lambda text: text.split(",")
    parser.add_argument("--suites", type=names, default=["cuda"], help=f"of {', '.join(choice.SUITES)}")
    parser.add_argument(
        "--allocators",
        type=names,
        default=list(COMPARED),
        help="of native, expandable, seamalloc, and seamalloc:OPTIONS",
    )
    parser.add_argument("--expandable", type=names, default=[], help="suites that run under expandable segments too")
    parser.add_argument(
        "--done",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="of earlier runs: tests that native and seamalloc have both reached there are left out",
    )
    parser.add_argument("--only", default="", help="tests whose FILE.CLASS.TEST contains this")
    parser.add_argument("--at-once", type=int, default=4, help="processes side by side")
    parser.add_argument("--seconds", type=float, default=3600, help="after which it ends, whatever it has reached")
    options = parser.parse_args()
    for suite in options.suites:
        if suite not in choice.SUITES:
            parser.error(f"{suite} is no suite; expected some of {', '.join(choice.SUITES)}")
        for path in choice.SUITES[suite].modules:
            if not (options.folder / f"{path}.py").is_file():
                parser.error(f"{options.folder / path}.py is missing; the suite {suite} needs it")
    options.folder = options.folder.resolve()
    options.done = reached_in(options.done)
    options.allocators_of = lambda suite: options.allocators + (["expandable"] if suite in options.expandable else [])
    return options


def main():
    """The command."""
    options = read_arguments()
    options.json.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pytorch-tests-caches-") as caches, open(options.json, "a") as out:
        options.caches = Path(caches)
        run = Run(options, out)
        started = run.run()
    counts = {}
    for (_, allocator), outcome in run.outcomes.items():
        of = counts.setdefault(allocator, {})
        of[outcome] = of.get(outcome, 0) + 1
    print(json.dumps(counts))
    print(json.dumps({"served": run.served, "seconds": round(time.monotonic() - run.start)}))
    sys.exit(0 if started else 1)


if __name__ == "__main__":
    main()

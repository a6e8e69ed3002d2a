"""Runs PyTorch's own allocator tests under several allocators: python pytorch_tests.py FOLDER [--json FILE] [...].

FOLDER is `test` of a PyTorch checkout, of about the version that is installed. Needs a GPU, PyTorch, what its tests import
(expecttest, hypothesis, psutil; `--site` names a folder that has them), a C++ compiler, and seamalloc.

Prints a line for each test that one allocator fails, and a summary; `--json` gets every test under every allocator, with
the last line of its error. Exits with 1 where a test that PyTorch's own allocator passes fails under seamalloc, and is not
known to. Which tests are run, which of them cannot apply to an external allocator, which seamalloc is known to fail, and why,
is in pytorch_tests_choice.py.

A class of tests is a process; after a failure, a crash or a hang the rest of it goes on in another. Tests measure the
memory of their own process, so several processes run side by side (`--at-once`); those that look at the whole device run
alone, afterwards.
"""

import argparse
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytorch_tests_choice as choice

WORKER = Path(__file__).resolve().with_name("pytorch_tests_worker.py")
ALLOCATORS = ("native", "expandable", "seamalloc")
# A test, the start of a process, and a class, whatever becomes of its processes.
LIMIT_S = 100
START_S = 120
CLASS_LIMIT_S = 240


def environment(allocator, options):
    """What an allocator's processes run in."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "SEAMALLOC_CONF"))}
    env["PYTORCH_TESTS_ALLOCATOR"] = allocator
    if options.site:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), str(options.site)]))
        env["PATH"] = os.pathsep.join([str(options.site / "bin"), env["PATH"]])
    if allocator == "expandable":
        env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    elif allocator != "native":
        # The tests ask this variable whether segments grow, and count them accordingly. It means nothing to seamalloc.
        env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        env["SEAMALLOC_CONF"] = allocator.removeprefix("seamalloc").removeprefix(":")
    return env


class Process:
    """A process that runs tests of one class, one after another, and reports on each as it goes."""

    def __init__(self, options, allocator, group, tests, deadline):
        # Its errors; read when it has ended.
        self.output = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(WORKER), str(options.folder), group, *tests],
            env=environment(allocator, options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.output,
            text=True,
            start_new_session=True,
        )
        self.deadline = time.monotonic() + START_S
        self.last_deadline = deadline
        self.late = False
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        while self.process.poll() is None:
            if time.monotonic() > min(self.deadline, self.last_deadline):
                self.late = True
                self.end()
            time.sleep(0.2)
        # Children that a test left behind would keep the pipe open.
        self.end()

    def end(self):
        """Ends it, and what it started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def reports(self):
        """What it says of its tests."""
        for line in self.process.stdout:
            if line.startswith("{"):
                self.deadline = time.monotonic() + LIMIT_S
                yield json.loads(line)
        self.process.wait()

    def last_words(self):
        """Why it ended."""
        if self.late:
            return "took too long"
        self.output.seek(0)
        lines = [line for line in self.output.read().decode(errors="replace").splitlines() if line.strip()]
        return f"exit status {self.process.returncode}: {lines[-1] if lines else ''}"


def run_group(options, allocator, group, tests):
    """The results of a class's tests."""
    results, left, deadline = {}, list(tests), time.monotonic() + CLASS_LIMIT_S
    while left and time.monotonic() < deadline:
        process, current = Process(options, allocator, group, left, deadline), None
        for report in process.reports():
            if report["outcome"] == "started":
                current = report["test"]
                continue
            results[report.pop("test")] = report
            current = None
        if current is not None:
            outcome = "hung" if process.late else "crashed"
            results[current] = {"outcome": outcome, "error": process.last_words(), "seconds": 0.0}
        before, left = left, [test for test in left if test not in results]
        if len(left) == len(before):
            break
    if left:
        why = process.last_words()
        results.update({test: {"outcome": "not run", "error": why, "seconds": 0.0} for test in left})
    return results


def collect(options):
    """The chosen tests by class. Asked of a process of its own, since it imports PyTorch."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(WORKER), str(options.folder)],
        env=environment("native", options),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(f"PyTorch's tests cannot be imported:\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    wanted = re.compile(options.only)
    return {
        group: [test for test in tests if wanted.search(f"{group}.{test}")] for group, tests in found["groups"].items()
    }, found["versions"]


def run_all(options, groups, write):
    """Every chosen test under every allocator: {group.test: {allocator: result}}. `write` gets what there is so far."""
    side_by_side, alone = [], []
    for allocator in options.allocators:
        for group, tests in groups.items():
            applicable = [test for test in tests if options.all or choice.why_not(test) is None]
            for jobs, part in (
                (side_by_side, [test for test in applicable if not choice.is_of_whole_device(test)]),
                (alone, [test for test in applicable if choice.is_of_whole_device(test)]),
            ):
                if part:
                    jobs.append((options, allocator, group, part))
    # The longest first.
    side_by_side.sort(key=lambda job: -choice.CLASSES[job[2]] * len(job[3]))
    results = {}
    for jobs, at_once in ((side_by_side, options.at_once), (alone, 1)):
        with concurrent.futures.ThreadPoolExecutor(at_once) as workers:
            running = {workers.submit(run_group, *job): job for job in jobs}
            for done in concurrent.futures.as_completed(running):
                _, allocator, group, _ = running[done]
                for test, result in done.result().items():
                    results.setdefault(f"{group}.{test}", {})[allocator] = result
                    if result["outcome"] not in ("passed", "skipped"):
                        known = allocator.startswith("seamalloc") and choice.why_different(test)
                        outcome = f"{result['outcome']}, as known: {known}" if known else result["outcome"]
                        print(f"{group}.{test}", allocator, outcome, result["error"], sep="\t", flush=True)
                write(results)
    return results


def verdict(test, of):
    """What the results of a test under all allocators say of seamalloc."""
    native, ours = of.get("native", {}).get("outcome"), of.get("seamalloc", {}).get("outcome")
    if ours is None or native is None:
        return "not compared"
    if "skipped" in (native, ours):
        return "skipped" if native == ours else "skipped by one"
    if native != "passed":
        return "fails under native too" if ours != "passed" else "passes under seamalloc only"
    if ours == "passed":
        return "passes"
    return "differs, as known" if choice.why_different(test.rsplit(".")[-1]) else "fails"


def read_arguments():
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="PyTorch's tests")
    parser.add_argument("--site", type=Path, help="a folder of Python packages that the tests need")
    parser.add_argument(
        "--allocators",
        type=lambda text: text.split(","),
        default=ALLOCATORS,
        help="of native, expandable, seamalloc, and seamalloc:OPTIONS",
    )
    parser.add_argument("--only", default="", help="tests whose MODULE.CLASS.TEST has this pattern")
    parser.add_argument("--at-once", type=int, default=4, help="processes side by side")
    parser.add_argument("--all", action="store_true", help="those that cannot apply too")
    parser.add_argument("--list", action="store_true", help="name the chosen tests, and run none")
    parser.add_argument("--json", type=Path, help="gets all results")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    options.site = options.site and options.site.resolve()
    return options


def main():
    """The command."""
    options, start = read_arguments(), time.monotonic()
    groups, versions = collect(options)
    tests = [(f"{group}.{test}", choice.why_not(test)) for group, tests in groups.items() for test in tests]
    if options.list:
        for test, why in tests:
            known = choice.why_different(test.rsplit(".")[-1])
            print(test, why or (known and f"known to differ: {known}") or "", sep="\t")
        return

    def write(results):
        if options.json:
            found = {
                "versions": versions,
                "inapplicable": {test: why for test, why in tests if why},
                "known_to_differ": choice.DIFFERS,
                "verdicts": {test: verdict(test, of) for test, of in sorted(results.items())},
                "results": dict(sorted(results.items())),
            }
            options.json.write_text(json.dumps(found, indent=1))

    results = run_all(options, groups, write)
    for allocator in options.allocators:
        outcomes = [of[allocator]["outcome"] for of in results.values() if allocator in of]
        print(allocator, {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))})
    verdicts = [verdict(test, of) for test, of in results.items()]
    print("seamalloc beside native", {kind: verdicts.count(kind) for kind in sorted(set(verdicts))})
    print(f"{sum(1 for _, why in tests if why)} cannot apply; {time.monotonic() - start:.0f} s")
    sys.exit(1 if "fails" in verdicts else 0)


if __name__ == "__main__":
    main()

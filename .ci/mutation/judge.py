"""Finds the tests that notice a mutant. One program of tests has all mutants, so a judgement is some runs of programs.

First every test runs once without a mutant: how long it takes, and which functions with mutants it reaches. A mutant is then
judged by the tests that reach its function, the fastest first, up to the first that fails.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import resource
import signal
import struct
import subprocess
import tempfile
import threading
import time

from .schemata import CHOSEN, REACHED

# Tests that take less than this are run together, by program; slower ones come afterwards, one by one.
FAST_S = 0.1
# What a test takes of which nothing is known yet.
ORDINARY_S = 60
# A run may take so many times its ordinary CPU time, and at least so many seconds. A loop without end meets it.
TIMES, AT_LEAST_S = 10, 10
# Threads that wait for each other take no CPU time.
WALL_TIMES, WALL_AT_LEAST_S = 20, 30
# A loop without end that fills a list would take all host memory.
MEMORY = 4 << 30


@dataclasses.dataclass(frozen=True)
class Test:
    program: str
    name: str
    cpu_s: float
    reaches: frozenset

    def __str__(self):
        return f"{self.program}::{self.name}"


@dataclasses.dataclass(frozen=True)
class Run:
    failed: str | None
    """The test that failed, or `the program` if it ended otherwise."""
    timed_out: bool
    cpu_s: float


def run(program, names, variables, ordinary_s):
    """Runs some tests of a program, up to the first that fails."""
    limit = int(max(AT_LEAST_S, TIMES * ordinary_s)) + 1
    wall = max(WALL_AT_LEAST_S, WALL_TIMES * ordinary_s)

    def limits():
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 2))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    process = subprocess.Popen(
        [program.path, "--exact", "--test-threads=1", *names],
        cwd=program.folder,
        env={**os.environ, "RUST_BACKTRACE": "0", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=limits,
    )
    late = threading.Event()

    def end():
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def end_late():
        late.set()
        end()

    timer = threading.Timer(wall, end_late)
    timer.start()
    failed = running = None
    for line in process.stdout:
        if line.startswith("test ") and " ... " in line:
            running = line.split(" ", 2)[1]
        if line.rstrip().endswith("... FAILED"):
            failed = running
            end()
            break
    process.stdout.close()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    timer.cancel()
    # Processes that a test has started.
    end()
    timed_out = failed is None and (late.is_set() or process.returncode in (-signal.SIGXCPU, -signal.SIGKILL))
    if failed is None and process.returncode != 0 and not timed_out:
        failed = running or "the program"
    return Run(failed, timed_out, used.ru_utime + used.ru_stime)


def tests_of(program):
    listed = subprocess.run(
        [program.path, "--list", "--format", "terse"], cwd=program.folder, capture_output=True, text=True, check=True
    )
    return [line.removesuffix(": test") for line in listed.stdout.splitlines() if line.endswith(": test")]


def survey(programs, store, jobs, say):
    """Runs every test by itself, without a mutant. Returns those that pass. `store` is a file that keeps what is found, for
    programs that do not change."""
    known = json.loads(store.read_text()) if store.exists() else {}
    digests = {program.name: hashlib.sha256(open(program.path, "rb").read()).hexdigest() for program in programs}
    known = {name: of for name, of in known.items() if of["digest"] == digests.get(name)}
    asked = [(program, name) for program in programs if program.name not in known for name in tests_of(program)]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        done = list(pool.map(lambda of: alone(*of), asked))
    for (program, name), found in zip(asked, done):
        of = known.setdefault(program.name, {"digest": digests[program.name], "tests": []})
        if found is None:
            say(f"{program.name}::{name} fails without a mutant, and judges none")
        else:
            of["tests"].append([name, *found])
    store.write_text(json.dumps(known))
    return [
        Test(program, name, cpu_s, frozenset(reaches))
        for program, of in known.items()
        for name, cpu_s, reaches in of["tests"]
    ]


def alone(program, name):
    """Runs one test. Returns its time and the functions that it reaches, or None if it fails."""
    with tempfile.NamedTemporaryFile() as reached:
        done = run(program, [name], {REACHED: reached.name}, ORDINARY_S)
        functions = [number for (number,) in struct.iter_unpack("<I", reached.read())]
    return None if done.failed or done.timed_out else (done.cpu_s, functions)


def order(tests):
    """Returns runs of tests, by program: fast ones together, then the slow ones, each by itself."""
    fast, slow = {}, []
    for test in sorted(tests, key=lambda test: test.cpu_s):
        if test.cpu_s < FAST_S:
            fast.setdefault(test.program, []).append(test)
        else:
            slow.append([test])
    return sorted(fast.values(), key=total) + slow


def total(tests):
    return sum(test.cpu_s for test in tests)


def judge(programs, tests, number):
    """Returns the outcome for a mutant, by tests that may notice it. `programs` returns one by its name. The number is 0 where the
    programs have no other mutant."""
    used = 0.0
    for group in order(tests):
        names = [test.name for test in group]
        done = run(programs(group[0].program), names, {CHOSEN: str(number)}, total(group))
        used += done.cpu_s
        if done.failed or done.timed_out:
            outcome = "timed out" if done.timed_out else "caught"
            by = f"{group[0].program}::{done.failed}" if done.failed else group[0].program
            return {"outcome": outcome, "by": by, "cpu_s": round(used, 2)}
    return {"outcome": "missed", "tests": len(tests), "cpu_s": round(used, 2)}

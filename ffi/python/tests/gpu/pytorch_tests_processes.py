"""A process that runs PyTorch's tests, seen from outside: what it runs in, its time limits, and why it ended."""

import os
import queue
import re
import signal
import tempfile
import time
from pathlib import Path

import pytorch_tests_choice as choice
from json_process import JsonProcess, seamalloc_options

WORKER = Path(__file__).resolve().with_name("pytorch_tests_worker.py")
# To import PyTorch, Inductor and a test file, on a machine where a dozen do.
START_S = 150
# Between the signal by which a process writes its stack, and the one that ends it.
LAST_WORDS_S = 2
MESSAGE_CHARACTERS = 400
TRACE_CHARACTERS = 3000
ALL_CHARACTERS = 50_000_000
# A warning or an error of seamalloc's, or of PyTorch's allocator; what differs from one to the next of a kind.
COMPLAINT = re.compile(r"\b(WARN|ERROR) seamalloc|\bcu[A-Z]\w+ failed|CUDA warning:")
NUMBER = re.compile(r"0x[0-9a-f]+|[0-9]+")


class Ended(Exception):
    """A process that answers no more. `outcome` is "crashed" or "hung"."""

    def __init__(self, outcome, message, trace):
        super().__init__(message)
        self.outcome, self.message, self.trace = outcome, message, trace


def environment(suite, allocator, children, caches):
    """Returns a process's environment. Each allocator has its own files of Inductor and Triton."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "SEAMALLOC_CONF"))}
    env.update(choice.SUITES[suite].environment)
    env["PYTORCH_TESTS_ALLOCATOR"] = allocator
    env["PYTORCH_TESTS_CHILDREN"] = str(children)
    env["TORCHINDUCTOR_CACHE_DIR"] = str(caches / allocator)
    env["TRITON_CACHE_DIR"] = str(caches / allocator / "triton")
    # A pool of compiling processes for each process of tests would be all that the machine does.
    env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    # It writes its stacks where it crashes, and where it is ended by SIGABRT.
    env["PYTHONFAULTHANDLER"] = "1"
    if (conf := seamalloc_options(allocator)) is not None:
        env["SEAMALLOC_CONF"] = conf
        env["SEAMALLOC_LOG"] = "warn"
    if allocator == "expandable" or (allocator != "native" and choice.SUITES[suite].counts_segments):
        # It means nothing to seamalloc; the tests read it.
        env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return env


def what_was_wrong(errors):
    """The line of a process's last words that names an error; without one, the last."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "")


class Process(JsonProcess):
    """Runs tests of one file under one allocator, one after another, in the order in which they are asked for."""

    def __init__(self, suite, folder, path, allocator, caches):
        self.children = tempfile.TemporaryDirectory(prefix="pytorch-tests-children-")
        env = environment(suite, allocator, self.children.name, caches)
        super().__init__(WORKER, [suite, str(folder), path], env)

    def _report(self, limit_s, deadline):
        """Returns the process's next report. Raises Ended."""
        wait = max(0.0, min(limit_s, deadline - time.monotonic()))
        try:
            report = self.answer(wait)
        except queue.Empty:
            self.signal(signal.SIGABRT)
            time.sleep(LAST_WORDS_S)
            self.end()
            raise Ended("hung", f"took more than {wait:.0f} s", self.errors(TRACE_CHARACTERS)) from None
        if report is None:
            self.end()
            errors = self.errors(TRACE_CHARACTERS)
            message = f"exit status {self.process.returncode}: {what_was_wrong(errors)}"
            raise Ended("crashed", message[:MESSAGE_CHARACTERS], errors)
        return report

    def first_report(self, deadline):
        """Returns the first report: the process's allocator and its tests. Raises Ended."""
        return self._report(START_S, deadline)

    def run(self, test, limit_s, deadline):
        """Runs one test. Returns the report on it. Raises Ended."""
        self.say(test)
        return self._report(limit_s, deadline)

    def complaints(self):
        """Returns how often each line of an allocator is on standard error, without its numbers. The process has ended."""
        found = {}
        for line in self.errors(ALL_CHARACTERS).splitlines():
            if COMPLAINT.search(line):
                line = NUMBER.sub("N", line[:MESSAGE_CHARACTERS])
                found[line] = found.get(line, 0) + 1
        return found

    def end(self):
        """Kills the process and its children."""
        super().end()
        self.children.cleanup()

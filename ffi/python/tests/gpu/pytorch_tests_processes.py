"""A process that runs PyTorch's tests, seen from outside: what it runs in, its time limits, and why it ended."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytorch_tests_choice as choice

WORKER = Path(__file__).resolve().with_name("pytorch_tests_worker.py")
# To import PyTorch, Inductor and a test file, on a machine where a dozen do.
START_S = 150
# Between the signal by which a process writes its stack, and the one that ends it.
LAST_WORDS_S = 2
MESSAGE_CHARACTERS = 400
TRACE_CHARACTERS = 3000


class Ended(Exception):
    """A process that answers no more. `outcome` is "crashed" or "hung"."""

    def __init__(self, outcome, message, trace):
        super().__init__(message)
        self.outcome, self.message, self.trace = outcome, message, trace


def environment(suite, allocator, children, caches):
    """What a process runs in. Files of Inductor and Triton are those of its allocator."""
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
    if allocator.startswith("seamalloc"):
        env["SEAMALLOC_CONF"] = allocator[len("seamalloc") :].lstrip(":")
    if allocator == "expandable" or (allocator != "native" and choice.SUITES[suite].counts_segments):
        # It means nothing to seamalloc; the tests read it.
        env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return env


def what_was_wrong(errors):
    """The line of a process's last words that names an error; without one, the last."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "")


class Process:
    """Runs tests of one file under one allocator, one after another, in the order in which they are asked for."""

    def __init__(self, suite, folder, path, allocator, caches):
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - read when the process has ended
        self.children = tempfile.TemporaryDirectory(prefix="pytorch-tests-children-")
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(WORKER), suite, str(folder), path],
            env=environment(suite, allocator, self.children.name, caches),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.output,
            text=True,
            start_new_session=True,
        )
        self.lines = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.put(line)
        self.process.wait()
        self.lines.put(None)

    def _answer(self, limit_s, deadline):
        """Its next report. Raises Ended."""
        wait = max(0.0, min(limit_s, deadline - time.monotonic()))
        try:
            line = self.lines.get(timeout=wait)
        except queue.Empty:
            self._signal(signal.SIGABRT, self.process.pid)
            time.sleep(LAST_WORDS_S)
            self.end()
            raise Ended("hung", f"took more than {wait:.0f} s", self._errors()) from None
        if line is None:
            self.end()
            errors = self._errors()
            message = f"exit status {self.process.returncode}: {what_was_wrong(errors)}"
            raise Ended("crashed", message[:MESSAGE_CHARACTERS], errors)
        return json.loads(line)

    def first_report(self, deadline):
        """Which allocator it has, and which tests there are. Raises Ended."""
        return self._answer(START_S, deadline)

    def run(self, test, limit_s, deadline):
        """The report on one test. Raises Ended."""
        with contextlib.suppress(OSError):
            # Where it has ended, its last words are on the way.
            self.process.stdin.write(test + "\n")
            self.process.stdin.flush()
        return self._answer(limit_s, deadline)

    def _errors(self):
        self.output.seek(0)
        return self.output.read().decode(errors="replace")[-TRACE_CHARACTERS:]

    @staticmethod
    def _signal(number, pid, group=False):
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(pid, number)

    def end(self):
        """Ends it, and what it started."""
        self._signal(signal.SIGKILL, self.process.pid, group=True)
        self.process.wait()
        with contextlib.suppress(OSError):
            # What it had not read.
            self.process.stdin.close()
        self.children.cleanup()

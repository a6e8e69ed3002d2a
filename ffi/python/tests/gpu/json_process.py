"""A process that is told what to do by lines, and answers with lines of JSON, seen from outside."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading


def seamalloc_options(allocator):
    """The options in the name of an allocator, `seamalloc` or `seamalloc:OPTIONS`, in which + is a comma; None for others."""
    name, _, options = allocator.partition(":")
    return options.replace("+", ",") if name == "seamalloc" else None


class JsonProcess:
    """Python running a program, in a process group of its own. What it prints beside its answers is left out."""

    def __init__(self, program, arguments, env):
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - read when the process has ended
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(program), *arguments],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.output,
            text=True,
            start_new_session=True,
        )
        self.answers = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                answer = json.loads(line)
                if isinstance(answer, dict):
                    self.answers.put(answer)
        self.process.wait()
        self.answers.put(None)

    def say(self, line):
        """Tells it what to do. Where it has ended, its last words are on the way."""
        with contextlib.suppress(OSError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def answer(self, limit_s):
        """Its next answer; None where it has ended. Raises queue.Empty where it says nothing in time."""
        return self.answers.get(timeout=max(0.0, limit_s))

    def errors(self, characters):
        """The end of what it wrote to standard error."""
        self.output.seek(0)
        return self.output.read().decode(errors="replace")[-characters:]

    def signal(self, number):
        """Sends it a signal, and not what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def end(self):
        """Ends it, and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with contextlib.suppress(OSError):
            # What it had not read.
            self.process.stdin.close()

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
        """Sends the process a line. A process that has ended gets none; its last output is still read."""
        with contextlib.suppress(OSError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def answer(self, limit_s):
        """Returns the process's next answer; None once it has ended. Raises queue.Empty if no answer comes in time."""
        return self.answers.get(timeout=max(0.0, limit_s))

    def errors(self, characters):
        """Returns the end of what the process wrote to standard error."""
        self.output.seek(0)
        return self.output.read().decode(errors="replace")[-characters:]

    def signal(self, number):
        """Sends a signal to the process, and not to its children."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def end(self):
        """Kills the process and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with contextlib.suppress(OSError):
            # What it had not read.
            self.process.stdin.close()

"""Engines that analyze many files at a time, at most one per worker. The workers are processes of this machine, or
tasks of Ray.

Both engines call `rank.look`, and the results are sorted afterwards. So the results do not depend on the engine.
"""

from __future__ import annotations

import logging
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Protocol

from .files import File, in_words
from .rank import Found, Running, Settings, look

# A Ray that is started here passes only rows, so a small store is enough. The default store is 30% of host memory. The
# size is in bytes.
ALONE: dict[str, Any] = {"include_dashboard": False, "object_store_memory": 128 << 20}
# The seconds within which a running Ray answers.
REACHED_WITHIN = 10.0
# The seconds between two checks whether the command must end while Ray waits.
BETWEEN_LOOKS = 0.5


class EngineError(Exception):
    """Raised if an engine is unavailable, with the remedy."""


class Engine(Protocol):
    """The interface of an engine. A task is the engine's own handle of a file."""

    # The number of files that are analysed at a time.
    workers: int

    def submit(self, file: File) -> Any: ...

    def first(self, tasks: list[Any]) -> list[Any]:
        """Waits for results. Returns finished tasks. The list is empty if `wake` or a time limit ended the wait."""
        ...

    def wake(self) -> None:
        """Makes `first` return. The handler of a signal calls this method."""
        ...

    def result(self, task: Any, file: File) -> Found: ...

    def close(self) -> None:
        """Ends all running tasks."""
        ...


class Signals:
    """Notes the signals that end the command. An exception raised directly by a signal could interrupt the steps by
    which threads hand over results: a lock would stay locked, and the command would never end."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake, self._number, self._before = wake, 0, dict[int, Any]()
        self._heeded = False

    def __enter__(self) -> Signals:
        # In other threads the signal handlers belong to the program.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.getsignal(number)
                # A command started in the background may ignore SIGINT. None means that the handler is not Python's.
                if before not in (signal.SIG_IGN, None):
                    self._before[number] = before
                    signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        # The signal came after the last check.
        if self._number:
            signal.raise_signal(self._number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._heeded:
            # A second signal, while child processes are ended, ends the command at once.
            signal.signal(number, self._before[number])
            signal.raise_signal(number)
            return
        self._number = number
        self._wake()

    def check(self) -> None:
        """Raises the exception that ends the command, if a signal came."""
        number, self._number = self._number, 0
        self._heeded = self._heeded or number != 0
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if number:
            raise SystemExit(128 + number)


def run(engine: Engine, files: Iterable[File]) -> Iterator[Found]:
    """Yields the result of each file as soon as it is known. At most one file per worker is processed at a time, so
    that only the results grow with the number of files. SIGINT and SIGTERM end the generator and its processes."""
    with Signals(engine.wake) as signals:
        yield from _found(engine, files, signals)


def _found(engine: Engine, files: Iterable[File], signals: Signals) -> Iterator[Found]:
    waiting, running = iter(files), dict[Any, File]()
    try:
        while True:
            signals.check()
            while len(running) < engine.workers:
                file = next(waiting, None)
                if file is None:
                    break
                running[engine.submit(file)] = file
            if not running:
                return
            for task in engine.first(list(running)):
                yield engine.result(task, running.pop(task))
    finally:
        engine.close()


class Processes:
    """Processes of this machine. One thread waits for each process and does no other work."""

    def __init__(self, settings: Settings, workers: int) -> None:
        self.workers = workers
        self._settings, self._running = settings, Running()
        self._threads = ThreadPoolExecutor(workers, "fleet")
        # Finished futures. None wakes the waiting thread. Signal handlers may put into a SimpleQueue.
        self._done: SimpleQueue[Future[Found] | None] = SimpleQueue()

    def submit(self, file: File) -> Any:
        task = self._threads.submit(look, file, self._settings, self._running)
        task.add_done_callback(self._done.put)
        return task

    def first(self, tasks: list[Future[Found]]) -> list[Any]:
        done = self._done.get()
        return [] if done is None else [done]

    def wake(self) -> None:
        self._done.put(None)

    def result(self, task: Future[Found], file: File) -> Found:
        return task.result()

    def close(self) -> None:
        self._running.end()
        self._threads.shutdown(wait=True, cancel_futures=True)


def _reach(address: str | None) -> None:
    """Raises OSError if no server listens at an address with a port. Ray itself would retry for minutes."""
    named = re.fullmatch(r"(?:ray://)?([^/]+):(\d+)", address or "")
    if named:
        socket.create_connection((named[1].strip("[]"), int(named[2])), REACHED_WITHIN).close()


class Ray:
    """Tasks of Ray, on one machine or many. Each machine must have this package and be able to read the files."""

    def __init__(self, settings: Settings, workers: int | None, address: str | None) -> None:
        try:
            import ray
        except ImportError as error:
            raise EngineError(f"--engine ray needs Ray ({error}): pip install 'seamalloc[ray]'") from error
        self._ray, self._settings = ray, settings
        try:
            _reach(address)
            # An address belongs to a running Ray. Without an address a Ray is started here, and ends with the command.
            started: dict[str, Any] = {"address": address} if address else {"num_cpus": workers, **ALONE}
            ray.init(**started, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
            self.workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        except Exception as error:
            raise EngineError(f"Ray cannot be had{f' at {address}' if address else ''}: {in_words(error)}") from error
        self._look = ray.remote(num_cpus=1)(look)
        self._shared = ray.put(settings)

    def submit(self, file: File) -> Any:
        return self._look.remote(file, self._shared)

    def first(self, tasks: list[Any]) -> list[Any]:
        done, _ = self._ray.wait(tasks, num_returns=1, timeout=BETWEEN_LOOKS)
        return list(done)

    def wake(self) -> None:
        # `first` waits for at most BETWEEN_LOOKS seconds, so there is no longer wait to end.
        return

    def result(self, task: Any, file: File) -> Found:
        try:
            found: Found = self._ray.get(task)
            return found
        except self._ray.exceptions.RayError as error:
            # The worker or its machine has failed more often than Ray retries.
            return Found(file.url, error=f"Ray: {in_words(error)}"[:600])

    def close(self) -> None:
        self._ray.shutdown()

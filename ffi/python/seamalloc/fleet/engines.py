"""Many files at a time, never more than there are workers: processes of this machine, or tasks of Ray.

Both call `rank.look`, and what they find is sorted afterwards: results do not depend on the engine.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

from .files import File, in_words
from .rank import Found, Running, Settings, look

# A Ray that is started here passes nothing but rows. Its store, in bytes, is 30% of the machine's memory by default.
ALONE: dict[str, Any] = {"include_dashboard": False, "object_store_memory": 128 << 20}
# Seconds within which a Ray that runs answers.
REACHED_WITHIN = 10.0


class EngineError(Exception):
    """An engine that cannot be had, with the remedy."""


class Engine(Protocol):
    """What looks at files. A task is whatever the engine knows one by."""

    # How many files are looked at, at a time.
    workers: int

    def submit(self, file: File) -> Any: ...

    def first(self, tasks: list[Any]) -> tuple[list[Any], list[Any]]:
        """Waits. Returns the tasks that are done, and the others."""
        ...

    def result(self, task: Any, file: File) -> Found: ...

    def close(self) -> None:
        """Ends what still runs."""
        ...


def run(engine: Engine, files: Iterable[File]) -> Iterator[Found]:
    """What each file says, in the order in which that becomes known. At most as many files as there are workers are
    under way, so that nothing but results grows with their number."""
    waiting, running = iter(files), dict[Any, File]()
    try:
        while True:
            while len(running) < engine.workers:
                file = next(waiting, None)
                if file is None:
                    break
                running[engine.submit(file)] = file
            if not running:
                return
            done, _ = engine.first(list(running))
            for task in done:
                yield engine.result(task, running.pop(task))
    finally:
        engine.close()


class Processes:
    """Processes of this machine. A thread waits for each, and does nothing else."""

    def __init__(self, settings: Settings, workers: int) -> None:
        self.workers = workers
        self._settings, self._running = settings, Running()
        self._threads = ThreadPoolExecutor(workers, "fleet")

    def submit(self, file: File) -> Any:
        return self._threads.submit(look, file, self._settings, self._running)

    def first(self, tasks: list[Future[Found]]) -> tuple[list[Any], list[Any]]:
        done, others = wait(tasks, return_when=FIRST_COMPLETED)
        return list(done), list(others)

    def result(self, task: Future[Found], file: File) -> Found:
        return task.result()

    def close(self) -> None:
        self._running.end()
        self._threads.shutdown(wait=True, cancel_futures=True)


def _reach(address: str | None) -> None:
    """Raises OSError where nobody listens at an address with a port: Ray itself would try for minutes."""
    named = re.fullmatch(r"(?:ray://)?([^/]+):(\d+)", address or "")
    if named:
        socket.create_connection((named[1].strip("[]"), int(named[2])), REACHED_WITHIN).close()


class Ray:
    """Tasks of Ray, on one machine or many: each must have this package, and reach the files."""

    def __init__(self, settings: Settings, workers: int | None, address: str | None) -> None:
        try:
            import ray
        except ImportError as error:
            raise EngineError(f"--engine ray needs Ray ({error}): pip install 'seamalloc[ray]'") from error
        self._ray, self._settings = ray, settings
        try:
            _reach(address)
            # An address is one of a running Ray; without one a Ray is started here, which ends with the command.
            started: dict[str, Any] = {"address": address} if address else {"num_cpus": workers, **ALONE}
            ray.init(**started, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
            self.workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        except Exception as error:
            raise EngineError(f"Ray cannot be had{f' at {address}' if address else ''}: {in_words(error)}") from error
        self._look = ray.remote(num_cpus=1)(look)
        self._shared = ray.put(settings)

    def submit(self, file: File) -> Any:
        return self._look.remote(file, self._shared)

    def first(self, tasks: list[Any]) -> tuple[list[Any], list[Any]]:
        done, others = self._ray.wait(tasks, num_returns=1)
        return done, others

    def result(self, task: Any, file: File) -> Found:
        try:
            found: Found = self._ray.get(task)
            return found
        except self._ray.exceptions.RayError as error:
            # The worker is gone, or its machine, more often than Ray tries again.
            return Found(file.url, error=f"Ray: {in_words(error)}"[:600])

    def close(self) -> None:
        self._ray.shutdown()

"""A plugin for pytest: puts a library over seamalloc where OVER=ours, writes the outcome of each test to OUTCOMES, a line each
as soon as it is known, and runs no more tests when the time is over (SECONDS_AT_MOST). OUTCOMES.left has their number."""

import json
import os
import time

import pytest

LIBRARY = os.environ.get("LIBRARY", "")
OURS = os.environ.get("OVER") == "ours"
SECONDS_AT_MOST = float(os.environ.get("SECONDS_AT_MOST", "inf"))
_started = time.monotonic()
_left = 0


def _rmm():
    """RMM's tests make CudaMemoryResource, for itself and below others, and put it back after each test."""
    import rmm
    from rmm.pylibrmm import memory_resource as inner

    import seamalloc.rmm

    seamalloc.rmm.enable()
    memory, handle = seamalloc._memory.Streams(0), seamalloc.rmm._handle
    # One pair for all: RMM's C++ side keeps a resource's functions longer than its Python object, and does not count them.
    functions = (
        lambda size, stream: memory.allocate(size, handle(stream)),
        lambda address, size, stream: memory.free(address, handle(stream)),
    )

    class Ours(rmm.mr.CallbackMemoryResource):
        kept = functions

        def __init__(self):
            super().__init__(*functions)

    # Tests are named after the classes that they are given.
    Ours.__name__ = "CudaMemoryResource"
    rmm.mr.CudaMemoryResource = Ours
    inner.CudaMemoryResource = Ours
    # What the C++ side makes by itself at first is the driver's.
    rmm.mr.set_current_device_resource(Ours())
    return Ours


def pytest_configure(config):
    # Workers alone run tests; where there are none, this process does.
    if not OURS or (getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput")):
        return
    if LIBRARY == "cupy":
        import seamalloc.cupy

        seamalloc.cupy.enable()
    elif LIBRARY == "rmm":
        config._ours = _rmm()
    # Numba reads NUMBA_CUDA_MEMORY_MANAGER; the tests of cuda.core enable it.


@pytest.fixture(autouse=True)
def over_seamalloc(request):
    ours = getattr(request.config, "_ours", None)
    if ours is not None:
        import rmm

        rmm.mr.set_current_device_resource(ours())
    yield


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request):
    """numba-cuda's wheel has its tests, which ask for this, but not the conftest.py of its repository."""
    request.cls._dump_failed_filechecks = False


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    # Not shouldstop: workers would still run what they were given, and be killed with what they know.
    global _left
    if time.monotonic() - _started <= SECONDS_AT_MOST:
        return None
    _left += 1
    return True


class Outcomes:
    def __init__(self, path):
        self.file = open(path, "w", encoding="utf-8")
        self.told = {}

    def pytest_runtest_logreport(self, report):
        before = self.told.get(report.nodeid)
        if report.outcome == "passed" and report.when != "call":
            pass
        elif before not in ("failed", "error"):
            outcome = report.outcome
            if outcome == "failed" and report.when != "call":
                outcome = "error"
            text = str(report.longrepr)[-900:] if outcome in ("failed", "error") else ""
            if outcome == "skipped" and isinstance(report.longrepr, tuple):
                text = str(report.longrepr[2])[:200]
            self.told[report.nodeid] = outcome
            self.file.write(json.dumps({"test": report.nodeid, "outcome": outcome, "text": text}) + "\n")
            self.file.flush()


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session):
    if not hasattr(session.config, "workerinput") and "OUTCOMES" in os.environ:
        session.config.pluginmanager.register(Outcomes(os.environ["OUTCOMES"]), "outcomes-of-suites")


def pytest_sessionfinish(session):
    is_worker = hasattr(session.config, "workerinput")
    if not is_worker and getattr(session.config.option, "numprocesses", None):
        return
    known = {"left": _left, "used": _used() if OURS else {}}
    if is_worker:
        session.config.workeroutput["known"] = known
    else:
        _note(known)


def _used():
    try:
        import seamalloc

        devices = seamalloc._library.plugged_devices()
        return {str(device): seamalloc.stats(device)["allocation"]["all"]["allocated"] for device in devices}
    except Exception as error:
        return repr(error)


def _note(known):
    if "OUTCOMES" not in os.environ:
        return
    for name, what in known.items():
        if what or name == "left":
            with open(f"{os.environ['OUTCOMES']}.{name}", "a", encoding="utf-8") as file:
                file.write(json.dumps(what) + "\n")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    known = getattr(node, "workeroutput", {}).get("known")
    if known is not None:
        _note(known)

"""For pytest: puts a library over seamalloc where OVER=ours, writes what becomes of each test to OUTCOMES, a line each as soon
as it is known, and ends the run in time (SECONDS)."""

import json
import os
import time

import pytest

LIBRARY = os.environ.get("LIBRARY", "")
OURS = os.environ.get("OVER") == "ours"
_started = time.monotonic()


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


class Outcomes:
    def __init__(self, path):
        self.file = open(path, "w", encoding="utf-8")
        self.told = {}
        self.session = None

    def pytest_sessionstart(self, session):
        self.session = session

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
        if time.monotonic() - _started > float(os.environ.get("SECONDS_AT_MOST", "1e9")):
            # pytest-xdist runs the tests where there are workers.
            (self.session.config.pluginmanager.getplugin("dsession") or self.session).shouldstop = "the time is over"


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session):
    if not hasattr(session.config, "workerinput") and "OUTCOMES" in os.environ:
        plugin = Outcomes(os.environ["OUTCOMES"])
        plugin.session = session
        session.config.pluginmanager.register(plugin, "outcomes-of-suites")


def pytest_sessionfinish(session):
    if not OURS:
        return
    try:
        import seamalloc

        devices = seamalloc._library.plugged_devices()
        used = {str(device): seamalloc.stats(device)["allocation"]["all"]["allocated"] for device in devices}
    except Exception as error:
        used = repr(error)
    if hasattr(session.config, "workerinput"):
        session.config.workeroutput["used"] = used
    elif used and not getattr(session.config.option, "numprocesses", None):
        _note_used(used)


def _note_used(used):
    with open(os.environ["OUTCOMES"] + ".used", "a", encoding="utf-8") as file:
        file.write(json.dumps(used) + "\n")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    used = getattr(node, "workeroutput", {}).get("used")
    if used is not None and "OUTCOMES" in os.environ:
        _note_used(used)

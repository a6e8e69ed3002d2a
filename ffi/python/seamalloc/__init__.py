"""seamalloc: a GPU memory allocator for PyTorch that stitches physical memory into contiguous addresses.

    import seamalloc
    seamalloc.enable(memory_limit="80GiB")    # before anything uses CUDA
    ...
    print(seamalloc.report())

or, with nothing changed in the program, `SEAMALLOC_CONF=... python -m seamalloc run train.py`.

Sizes are bytes. `device` is a CUDA device's number; without it, that of PyTorch's current device, or 0.
"""

import atexit
import os
from ctypes import byref, c_uint64

from ._library import Error, OptionError, OutOfMemory, check, library, path_of, plugged, read_json, version
from ._options import join
from ._report import text_of
from ._switch import current_device, enable, enabled

__all__ = [
    "Error",
    "OptionError",
    "OutOfMemory",
    "Recording",
    "enable",
    "enabled",
    "fragmentation",
    "record",
    "report",
    "snapshot",
    "stats",
    "trim",
    "whatif",
]
# Those of the library, as `strategy` takes them.
STRATEGIES = ("caching", "expandable", "gmlake", "stitch")
__version__ = version()


def stats(device=None):
    """What the device's allocator has done and holds: a dict, with the names of `torch.cuda.memory_stats` nested, and
    those of `seam_stats`."""
    return read_json(library.seam_stats_json, plugged(current_device(device)))


def fragmentation(device=None):
    """How the memory is divided up now: what is free for whom, and how much of it one request could have."""
    return read_json(library.seam_fragmentation_json, plugged(current_device(device)))


def report(device=None):
    """The figures that matter, as text."""
    device = current_device(device)
    return text_of(device, stats(device), fragmentation(device))


def snapshot(path, device=None):
    """Writes what the allocator holds, and what was recorded, as a pickle that PyTorch's viewer opens
    (pytorch.org/memory_viz)."""
    check(library.seam_snapshot(plugged(current_device(device)), path_of(path)))


def trim(size=None, device=None):
    """Gives `size` bytes of free memory back to the device, or all that can be. Returns the bytes given back."""
    given = c_uint64()
    handle = plugged(current_device(device))
    if size is None:
        check(library.seam_empty_cache(handle, byref(given)))
    else:
        check(library.seam_trim(handle, size, byref(given)))
    return given.value


def whatif(path, device="sim:h200", **options):
    """What each strategy would have made of a job: of a snapshot that `torch.cuda.memory._dump_snapshot` wrote with its
    history, or of a trace. A list of dicts, one for each job of the file and each strategy, or for the one of
    `strategy=...`: `peak_reserved` is what it would have held, `recorded_reserved` what PyTorch held, `largest_step` how
    many times as large all that the job frees again could be on the simulated device, `sim:h200,capacity=80GiB` for
    another. Touches no GPU; takes seconds, of a long job a minute."""
    if not isinstance(device, str):
        raise TypeError(f"device is {device!r}; expected a simulated one, such as \"sim:h200\"")
    kinds = [options.pop("strategy")] if "strategy" in options else STRATEGIES
    found = []
    for kind in kinds:
        text = join("", {"strategy": kind, **options})
        found += read_json(library.seam_whatif_json, path_of(path), device.encode(), text.encode())
    return found


class Recording:
    """A recording of one device's allocations; `record` starts it. A context manager."""

    def __init__(self, path, device, max_entries):
        self.path = path
        self._handle = plugged(device)
        check(library.seam_record_start(self._handle, max_entries))
        self._running = True
        atexit.register(self.stop)

    def stop(self):
        """Writes the file and ends the recording. A second call does nothing."""
        if not self._running:
            return
        self._running = False
        atexit.unregister(self.stop)
        try:
            check(library.seam_record_write(self._handle, path_of(self.path)))
        finally:
            check(library.seam_record_stop(self._handle))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.stop()


def record(path, device=None, max_entries=2_000_000):
    """Records every allocation and free from now on, until `stop()` of what is returned, or the end of the process. The
    file (`.seam`, `.csv`, `.csv.gz`) is a trace that the command `seamalloc replay` reads: sizes, order and streams, and
    nothing of the program or its data. Of more than `max_entries` events (56 bytes each) the last are kept."""
    if not os.fspath(path).endswith((".seam", ".csv", ".csv.gz")):
        raise ValueError(f"{path}: a trace is named .seam, .csv or .csv.gz")
    return Recording(path, current_device(device), max_entries)

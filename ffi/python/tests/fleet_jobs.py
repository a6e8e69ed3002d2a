"""Jobs of a few ranks, as files, for the tests of `seamalloc fleet`."""

import gzip
import importlib.util
import pickle
from pathlib import Path

import seamalloc

SNAPSHOTS = Path(__file__).resolve().parents[3] / "crates" / "trace" / "tests" / "data" / "snapshots"
PROGRAM = Path(seamalloc.__file__).resolve().parent / "bin" / "seamalloc"
MIB = 1 << 20


def lacks(*packages):
    """Why a test of the command cannot run here, if it cannot."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed"
    return None if PROGRAM.is_file() else "the package was built without the program"


def trace(folder, name, weights, step):
    """A rank with weights that stay, and a step that is freed, in MiB."""
    path = folder / name
    path.write_text(f"a,1,{weights * MIB},0\na,2,{step * MIB},0\nr,2\nf,2\n")
    return path


def snapshot(folder, name, available=None):
    """A rank with a real snapshot. `available` is what PyTorch could have of its device, in bytes, when it ran out."""
    content = pickle.loads(gzip.decompress((SNAPSHOTS / "prefetch-2s.snapshot.pickle.gz").read_bytes()))
    if available is not None:
        held = max(_held(content["device_traces"][0]))
        free = available - held
        refused = {"action": "oom", "device_free": free, "size": free + 1, "stream": 0, "time_us": 1}
        content["device_traces"][0].append(refused)
    path = folder / name
    path.write_bytes(pickle.dumps(content))
    return path


def _held(history):
    held = 0
    for entry in history:
        held += {"segment_alloc": entry["size"], "segment_free": -entry["size"]}.get(entry["action"], 0)
        yield held


def broken(folder, name):
    """A snapshot of which the end is missing."""
    path = folder / name
    path.write_bytes(gzip.decompress((SNAPSHOTS / "prefetch-2s.snapshot.pickle.gz").read_bytes())[:1000])
    return path


def line(trace="rank-0", strategy="stitch", reserved=100, step=2.0, **others):
    """A line of `seamalloc whatif --json`."""
    made = {
        "trace": trace,
        "strategy": strategy,
        "device": "sim:h200,capacity=1KiB",
        "device_from": "noted",
        "capacity": 1024,
        "peak_live": 90,
        "peak_reserved": reserved,
        "recorded_reserved": 200,
        "reserved_before": 0,
        "grows": True,
        "sought": True,
        "largest_step": step,
        "native_reserved": 150,
        "native_step": 1.5,
        "expandable_reserved": 120,
        "expandable_step": 1.8,
    }
    return {**made, **others}

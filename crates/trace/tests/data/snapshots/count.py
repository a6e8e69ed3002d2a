"""Counts by itself what PyTorch memory snapshots hold at their peak: python3 count.py FILE... writes FILE's NAME.count.json.

Of each device with a history of allocations: the bytes that are live at the peak, by the innermost line of the user's own code, and
the memory that stays. A test compares seamalloc's figures with these. The way is another one than seamalloc's: the segments say what
was live at the end, and the history is undone from there, event by event, back to its beginning. Needs Python alone.
"""

import collections
import gzip
import json
import pickle
import re
import sys

NOT_OWN = re.compile(
    r"/(site|dist)-packages/|/lib(64)?/python[0-9]|(^|/)torch/(_|amp|autograd|cuda|distributed|fx|func|jit|nn|ops|optim|sparse|utils)"
    r"|/torchinductor_|^<(?!ipython-input|stdin>)"
)
NOT_PACKAGE = re.compile(r"/(site|dist)-packages/torch/|/lib(64)?/python[0-9.]+/(?!(site|dist)-packages/)|^<")
PLUMBING = re.compile(r"^(torch::unwind|torch::CapturedTraceback|c10::|at::detail::)|gather_with_cpp|^\?\?$")


def line_of(frames):
    """The file, line and function that stand for a stack; nothing in them where it is empty."""
    python = [f for f in frames if f["filename"].endswith(".py") or f["filename"].startswith("<")]
    native = [f for f in frames if f not in python]
    ways = (
        [f for f in python if not NOT_OWN.search(f["filename"])],
        [f for f in python if not NOT_PACKAGE.search(f["filename"])],
        python,
        [f for f in native if f["name"].startswith("torch::autograd::") and "::apply(" in f["name"]],
        [f for f in native if not PLUMBING.search(f["name"])],
        native,
    )
    for way in ways:
        if way:
            return way[0]["filename"], way[0]["line"], way[0]["name"]
    return None, None, None


def live_at_end(segments, device):
    """Blocks that the program had not freed when the snapshot was taken: address to bytes and stack."""
    live = {}
    for segment in segments:
        if segment.get("device", 0) != device:
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            at = block.get("address", address)
            if block["state"] == "active_allocated":
                live[at] = (block.get("requested_size") or block["size"], block.get("frames") or None)
            address += block["size"]
    return live


def undone(events, live):
    """The sizes of live blocks after each event, from the last to before the first: position, address to bytes."""
    sizes = {address: size for address, (size, _) in live.items()}
    yield len(events) - 1, None, sizes
    for position in range(len(events) - 1, -1, -1):
        event = events[position]
        if event["action"] == "alloc":
            sizes.pop(event["addr"], None)
        elif event["action"] == "free_requested":
            sizes[event["addr"]] = event["size"]
        yield position - 1, event, sizes


def count(events, end):
    # The first position of those with the most bytes.
    sums, live = {}, sum(size for size, _ in end.values())
    sums[len(events) - 1] = live
    for position, event, _ in undone(events, end):
        if event is not None:
            live += {"alloc": -event["size"], "free_requested": event["size"]}.get(event["action"], 0)
            sums[position] = live
    most = max(sums.values())
    peak = min(position for position, live in sums.items() if live == most)

    freed_later = {e["addr"] for e in events[peak + 1 :] if e["action"] == "free_requested"}
    asked = {e["addr"]: e.get("frames") for e in events[: peak + 1] if e["action"] == "alloc"}
    held = next(dict(sizes) for position, _, sizes in undone(events, end) if position == peak)
    rows, unknown = collections.defaultdict(lambda: [0, 0]), [0, 0]
    for address, size in held.items():
        # The segments know the stack of a block from before the history if it was never freed.
        frames = asked[address] if address in asked else None if address in freed_later else end[address][1]
        row = unknown if frames is None else rows[line_of(frames)]
        row[0] += size
        row[1] += 1
    assert sum(held.values()) == most

    before = next(dict(sizes) for position, _, sizes in undone(events, end) if position == -1)
    freed = {e["addr"] for e in events if e["action"] == "free_requested"}
    return {
        "live": most,
        "peak_event": peak,
        "not_recorded": unknown,
        "rows": sorted(([*line, *row] for line, row in rows.items()), key=lambda row: (-row[3], str(row))),
        # Live before the first event; and still live after the last one.
        "before": sum(before.values()),
        "throughout": sum(size for address, size in before.items() if address not in freed),
        "middle": middle(events, end),
    }


def middle(events, end):
    """Bytes of blocks that live all through the middle half of the history, however it begins and ends."""
    first, last = len(events) // 4, len(events) * 3 // 4
    there = next(dict(sizes) for position, _, sizes in undone(events, end) if position == first - 1)
    for event in events[first:last]:
        if event["action"] == "free_requested":
            there.pop(event["addr"], None)
    return sum(there.values())


def main(paths):
    for path in paths:
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
            snapshot = pickle.load(file)
        devices = {}
        for device, events in enumerate(snapshot["device_traces"]):
            if any(e["action"] in ("alloc", "free_requested", "free_completed") for e in events):
                devices[device] = count(events, live_at_end(snapshot["segments"], device))
        with open(re.sub(r"(\.snapshot)?\.pickle(\.gz)?$", "", path) + ".count.json", "w") as file:
            json.dump(devices, file, indent=1)
            file.write("\n")


main(sys.argv[1:])

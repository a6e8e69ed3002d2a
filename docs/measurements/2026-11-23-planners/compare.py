"""Runs planners in turns over the same instances, checks each plan, and prints a line of JSON a run.

    python3 compare.py capacity --rounds 3 A.1048576.csv … > capacity.jsonl
    python3 compare.py least --rounds 3 FILE.csv … > least.jsonl

`capacity`: a plan of at most so many bytes as the file's name says. `least`: the least peak that is found in the time.
The commands are named by SEAMALLOC, MINIMALLOC, IDEALLOC and OMNIMALLOC (a Python that has omnimalloc); those that are not
named are left out. Seconds are what each says of its search itself, without the start of a process and reading the file.
"""

import argparse
import bisect
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent


def read(path):
    """(lower, upper, size) by id."""
    with open(path, newline="") as file:
        return {row["id"]: (int(row["lower"]), int(row["upper"]), int(row["size"])) for row in csv.DictReader(file)}


def load(buffers):
    """The peak load: no plan needs less."""
    points = sorted([(lower, 1, size) for lower, _, size in buffers] + [(upper, 0, -size) for _, upper, size in buffers])
    most = now = 0
    for _, _, change in points:
        now += change
        most = max(most, now)
    return most


def peak_of(buffers, offsets):
    """The highest end, once no two that are live together share a byte. Knows nothing of any planner."""
    assert buffers.keys() == offsets.keys(), "other buffers"
    points = [(lower, 1, name) for name, (lower, _, _) in buffers.items()]
    points += [(upper, 0, name) for name, (_, upper, _) in buffers.items()]
    live = []
    for _, begins, name in sorted(points):
        low = offsets[name]
        high = low + buffers[name][2]
        at = bisect.bisect_left(live, (low, high))
        if not begins:
            assert live.pop(at) == (low, high)
            continue
        assert at == 0 or live[at - 1][1] <= low, f"{name} lies in what is below"
        assert at == len(live) or high <= live[at][0], f"{name} lies in what is above"
        live.insert(at, (low, high))
    return max(offsets[name] + size for name, (_, _, size) in buffers.items())


def offsets_in(path):
    with open(path, newline="") as file:
        return {row["id"]: int(row["offset"]) for row in csv.DictReader(file)}


def run(command, seconds):
    """What it prints on both, the exit code; None: it was ended."""
    start = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        return done.stdout + done.stderr, done.returncode, time.monotonic() - start
    except subprocess.TimeoutExpired as late:
        out = b"".join(part for part in (late.stdout, late.stderr) if part)
        return out.decode(), None, time.monotonic() - start


class Seamalloc:
    def __init__(self, method):
        self.name = f"seamalloc {method}"
        self.command = [os.environ.get("SEAMALLOC"), "plan", "--method", method]

    def __call__(self, path, capacity, limit, out):
        most = [] if capacity is None else ["--capacity", str(capacity)]
        text, code, _ = run([*self.command, path, "--json", "--time-limit", str(limit), "-o", out, *most], 3 * limit)
        line = next((json.loads(line) for line in text.splitlines() if line.startswith("{")), None)
        if line is None:
            return {"failed": text.strip()[-200:], "code": code}
        return {"seconds": line["seconds"], "optimal": line["optimal"], "offsets": offsets_in(out)}


class Minimalloc:
    """Without a capacity: `--minimize_capacity`, halving from the peak of the largest first (--above)."""

    name = "minimalloc"
    command = [os.environ.get("MINIMALLOC")]

    def __init__(self, above=None):
        self.above = above

    def __call__(self, path, capacity, limit, out):
        if capacity is None:
            capacity = self.above(path)
            least = ["--minimize_capacity"]
        else:
            least = []
        options = [f"--capacity={capacity}", f"--input={path}", f"--output={out}", f"--timeout={limit}s", *least]
        text, code, wall = run([*self.command, *options], 3 * limit)
        took = re.search(r"Elapsed time ([\d.]+)s", text)
        seconds = float(took.group(1)) if took else wall
        if code != 0:
            return {"failed": text.strip()[-200:], "code": code, "seconds": seconds}
        return {"seconds": seconds, "offsets": offsets_in(out)}


class Idealloc:
    """Says its peak and not its offsets, so that nothing is checked. As many lives as about fit into the time."""

    name = "idealloc"
    command = [os.environ.get("IDEALLOC")]

    def once(self, path, lives, frag, seconds):
        text, code, wall = run([*self.command, "-i", path, "-l", str(lives), "-f", f"{frag:.9f}", "ex-csv"], seconds)
        took = re.search(r"Total allocation time: (\d+)", text)
        peak = re.search(r"Makespan:\s*(\d+)", text)
        bound = re.search(r"LOAD:\s*(\d+)", text)
        if not (took and peak and bound):
            return {"failed": text.strip()[-200:], "code": code, "seconds": wall, "lives": lives}
        own = {"seconds": int(took.group(1)) / 1e6, "peak": int(peak.group(1)), "load": int(bound.group(1))}
        return {**own, "lives": lives}

    def __call__(self, path, capacity, limit, out):
        bound = load(list(read(path).values()))
        frag = 1.0 if capacity is None else capacity / bound
        start = time.monotonic()
        none, few = self.once(path, 1, frag, limit), None
        best = none
        if "peak" in none:
            few = self.once(path, 20, frag, limit)
        if few and "peak" in few:
            best = min(best, few, key=lambda one: one["peak"])
            each = max(few["seconds"] - none["seconds"], 1e-6) / 19
            lives = int(0.8 * limit / each)
            if few["peak"] > frag * bound and lives > 20:
                many = self.once(path, lives, frag, limit)
                if "peak" in many:
                    best = min(best, many, key=lambda one: one["peak"])
        return {**best, "all": time.monotonic() - start}


class Omnimalloc:
    def __init__(self, allocator, options):
        self.name = f"omnimalloc {allocator}" + "".join(f" {name}={value}" for name, value in options.items())
        self.command = [os.environ.get("OMNIMALLOC"), str(HERE / "omnimalloc_run.py"), allocator, json.dumps(options)]

    def __call__(self, path, capacity, limit, out):
        text, code, wall = run([*self.command, path, str(capacity or 0), str(limit), out], 3 * limit)
        line = next((json.loads(line) for line in text.splitlines() if line.startswith("{")), None)
        if code != 0 or line is None:
            return {"failed": text.strip()[-200:], "code": code, "seconds": wall}
        return {**line, "offsets": offsets_in(out)} if line.pop("found") else {**line, "failed": "none found"}


def planners(what):
    if what == "capacity":
        return [
            Seamalloc("portfolio"),
            Seamalloc("exact"),
            Minimalloc(),
            Omnimalloc("bounded", {"num_threads": 3}),
            Omnimalloc("supermalloc", {"num_threads": 12}),
            Idealloc(),
        ]
    largest_first = Seamalloc("decreasing-size")

    def above(path):
        with tempfile.NamedTemporaryFile() as out:
            return peak_of(read(path), largest_first(path, None, 10, out.name)["offsets"])

    return [
        Seamalloc("portfolio"),
        Minimalloc(above),
        Omnimalloc("supermalloc", {"num_threads": 2}),
        Omnimalloc("supermalloc", {"num_threads": 12}),
        Omnimalloc("omni", {}),
        Omnimalloc("tabu_search", {"max_iterations": 1_000_000_000}),
        Omnimalloc("hill_climb", {"max_iterations": 1_000_000_000}),
        Omnimalloc("telamalloc", {"max_backtracks": 1_000_000_000}),
        Idealloc(),
    ]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("what", choices=["capacity", "least"])
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--limit", type=float, default=10)
    arguments.add_argument("--only", default="", help="planners whose names contain one of these, by commas")
    arguments.add_argument("files", nargs="+")
    given = arguments.parse_args()
    own = [planner for planner in planners(given.what) if planner.command[0]]
    own = [one for one in own if any(part in one.name for part in given.only.split(","))]
    for number in range(given.rounds):
        for path in given.files:
            buffers = read(path)
            bound = load(list(buffers.values()))
            capacity = int(Path(path).name.split(".")[1]) if given.what == "capacity" else None
            for planner in own:
                line = {"what": given.what, "round": number, "input": Path(path).stem, "buffers": len(buffers)}
                line |= {"planner": planner.name, "bound": bound, "busy": os.getloadavg()[0]}
                with tempfile.NamedTemporaryFile(suffix=".csv") as out:
                    try:
                        result = planner(path, capacity, given.limit, out.name)
                        if "offsets" in result:
                            result["peak"] = peak_of(buffers, result.pop("offsets"))
                    except (AssertionError, KeyError, ValueError) as error:
                        result = {"failed": f"{type(error).__name__}: {error}"}
                if capacity is not None:
                    line["solved"] = result.get("peak", capacity + 1) <= capacity
                print(json.dumps(line | result), flush=True)


if __name__ == "__main__":
    sys.exit(main())

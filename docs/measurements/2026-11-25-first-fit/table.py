"""Prints the tables of README.md from the files beside it: python3 table.py."""

import json
from pathlib import Path
from statistics import median


def runs(name, method):
    """The runs of a file by input and method."""
    found = {}
    for line in Path(__file__).with_name(name).read_text().splitlines():
        run = json.loads(line)
        found.setdefault((run["input"].removesuffix(".1048576"), run[method]), []).append(run)
    return found


def above(of):
    """Of all rounds, in percent: one figure where they are equal."""
    figures = sorted({f"{(run['peak'] / run['bound'] - 1) * 100:.3f}" for run in of if "peak" in run}, key=float)
    return " to ".join(figures[:: max(len(figures) - 1, 1)]) if figures else "no plan"


def seconds(of):
    took = [run["seconds"] for run in of]
    return f"{median(took):.2f} ({min(took):.2f} to {max(took):.2f})"


def table(before, after, method):
    two = [runs(before, method), runs(after, method)]
    for key in sorted(two[1], key=lambda key: (key[0].lower(), key[1])):
        cells = [" ".join(key)]
        for found in two:
            of = found.get(key)
            cells += [above(of), seconds(of)] if of else ["", ""]
        print("| " + " | ".join(cells) + " |")
    busy = [run["busy"] for found in two for of in found.values() for run in of if "busy" in run]
    if busy:
        print(f"Load {min(busy):.1f} to {max(busy):.1f}, {median(busy):.1f} in the middle.")
    print()


def main():
    for before, after, planner in [
        ("passes-before.jsonl", "passes.jsonl", "method"),
        ("large-before.jsonl", "large.jsonl", "planner"),
        ("capacity-before.jsonl", "capacity.jsonl", "planner"),
        ("least-before.jsonl", "least.jsonl", "planner"),
        ("jobs-before.jsonl", "jobs.jsonl", "method"),
    ]:
        print(f"{before}: above the peak load, seconds; {after}: the same")
        table(before, after, planner)


if __name__ == "__main__":
    main()

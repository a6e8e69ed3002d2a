"""Prints the tables of README.md from the files beside it: python3 table.py."""

import json
from pathlib import Path
from statistics import median

NAMES = {
    "seamalloc portfolio": "`portfolio`",
    "seamalloc exact": "`exact`",
    "minimalloc": "MiniMalloc",
    "omnimalloc bounded num_threads=3": "omnimalloc, with the bound",
    "omnimalloc supermalloc num_threads=12": "omnimalloc, `supermalloc`, 12 threads",
    "omnimalloc supermalloc num_threads=2": "`supermalloc`, 2 threads",
    "omnimalloc omni": "`omni`",
    "omnimalloc tabu_search max_iterations=1000000000": "`tabu_search`",
    "omnimalloc hill_climb max_iterations=1000000000": "`hill_climb`",
    "omnimalloc telamalloc max_backtracks=1000000000": "`telamalloc`",
    "idealloc": "idealloc",
}


def runs(name):
    """The runs of a file, by input and planner."""
    found = {}
    for line in Path(__file__).with_name(name).read_text().splitlines():
        run = json.loads(line)
        found.setdefault(run["input"].removesuffix(".1048576"), {}).setdefault(run["planner"], []).append(run)
    return found


def above(run):
    return f"{(run['peak'] / run['bound'] - 1) * 100:.2f}"


def at_capacity(of):
    if not any(run["solved"] for run in of):
        best = min((run["peak"] for run in of if "peak" in run), default=None)
        return "no" if best is None else f"no; {(best / of[0]['bound'] - 1) * 100:.0f}% above the load"
    seconds = [run["seconds"] for run in of]
    solved = sum(run["solved"] for run in of)
    some = "" if solved == len(of) else f", {solved} of {len(of)} solved"
    return f"{median(seconds):.2f} ({max(seconds):.2f}{some})"


def least(of):
    run = of[0]
    return f"{above(run)} in {run['seconds']:.1f} s" if "peak" in run else "no plan"


def table(found, cell):
    planners = list(next(iter(found.values())))
    print("| instance | buffers | " + " | ".join(NAMES[planner] for planner in planners) + " |")
    print("|---|---:|" + "---:|" * len(planners))
    for name, by_planner in sorted(found.items()):
        count = f"{by_planner[planners[0]][0]['buffers']:,}"
        print(f"| {name} | {count} | " + " | ".join(cell(by_planner[planner]) for planner in planners) + " |")
    busy = [run["busy"] for by_planner in found.values() for of in by_planner.values() for run in of]
    print(f"\nLoad {min(busy):.1f} to {max(busy):.1f}, {median(busy):.1f} in the middle.\n")


def main():
    for name, cell in [("capacity.jsonl", at_capacity), ("capacity-again.jsonl", at_capacity)]:
        print(f"{name}\n")
        table(runs(name), cell)
    both = runs("least.jsonl")
    print("least.jsonl, the challenging ones\n")
    table({name: of for name, of in both.items() if len(name) == 1}, least)
    print("least.jsonl, the large ones\n")
    table({name: of for name, of in both.items() if len(name) > 1}, least)
    print("large.jsonl\n")
    table(runs("large.jsonl"), least)


if __name__ == "__main__":
    main()

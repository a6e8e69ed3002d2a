"""Prints the tables of README.md from the files beside it: python3 table.py. With `--rows-of-the-page`: those of docs/eviction.md that
are of DTR's logs, over the logs on which every row ends."""

import gzip
import json
import math
import sys
from pathlib import Path

BUDGETS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def table(runs, graphs):
    """Means of overhead, by row and budget, over the graphs on which at least half of the rows end."""
    rows = sorted({(scheme, strategy, conf) for _, scheme, strategy, conf, _ in runs})
    print("| scheme over allocator | " + " | ".join(map(str, BUDGETS)) + " |")
    print("|---|" + "---|" * len(BUDGETS))
    cells = {row: [] for row in rows}
    for budget in BUDGETS:
        ends = {row: [graph for graph in graphs if runs[graph, *row, budget] is not None] for row in rows}
        # With those on which every row ends nothing would be left at small budgets.
        common = [graph for graph in graphs if sum(graph in ends[row] for row in rows) >= len(rows) / 2]
        for row in rows:
            mine = [graph for graph in common if graph in ends[row]]
            mean = math.exp(sum(math.log(runs[graph, *row, budget]) for graph in mine) / len(mine)) if mine else None
            left = len(graphs) - len(ends[row])
            text = f"{mean:.3f}" if len(mine) == len(common) and mine else "–"
            cells[row].append(text + (f" ({left})" if left else ""))
    for scheme, strategy, conf in rows:
        name = f"{scheme} over {strategy}" + (f", `{conf}`" if conf else "")
        print(f"| {name} | " + " | ".join(cells[scheme, strategy, conf]) + " |")


def rows_of_the_page(runs, graphs):
    """Means over the graphs on which each of these rows ends, and how many of all a row does not end."""
    pairs = ["dtr counted", "dtr-eq caching", "msps caching", "dte caching", "coop arena", "dtr-eq stitch", "msps stitch"]
    pairs += ["dte stitch", "coop stitch", "stitched stitch"]
    rows = [(*pair.split(), "") for pair in pairs] + [("stitched", "stitch", "chunk_size_mb:2")]
    for row in rows:
        cells = []
        for budget in BUDGETS:
            common = [graph for graph in graphs if all(runs[graph, *other, budget] is not None for other in rows)]
            mean = math.exp(sum(math.log(runs[graph, *row, budget]) for graph in common) / len(common))
            left = sum(runs[graph, *row, budget] is None for graph in graphs)
            cells.append(f"{mean:.3f}" + (f" ({left})" if left else ""))
        print(f"| {' over '.join(row[:2])} {row[2]} | " + " | ".join(cells) + " |")


def read(name):
    runs = {}
    with gzip.open(Path(__file__).with_name(name), "rt") as lines:
        for line in map(json.loads, lines):
            key = line["graph"], line["scheme"], line["strategy"], line["conf"], line["budget"]
            runs[key] = None if line["failed"] else line["overhead"]
    return runs


def main():
    if sys.argv[1:] == ["--rows-of-the-page"]:
        runs = read("dtr_logs.jsonl.gz")
        rows_of_the_page(runs, sorted({graph for graph, *_ in runs} - {"treelstm"}))
        return
    for name in ("generated.jsonl.gz", "dtr_logs.jsonl.gz"):
        runs = read(name)
        print(f"{name}\n")
        table(runs, sorted({graph for graph, *_ in runs} - {"treelstm"}))
        print()
        table(runs, ["treelstm"])
        print()


if __name__ == "__main__":
    main()

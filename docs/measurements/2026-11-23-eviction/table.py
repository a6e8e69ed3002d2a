"""Prints the tables of README.md from generated.jsonl.gz, which lies beside it: python3 table.py."""

import gzip
import json
import math
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


def main():
    runs = {}
    with gzip.open(Path(__file__).with_name("generated.jsonl.gz"), "rt") as lines:
        for line in map(json.loads, lines):
            key = line["graph"], line["scheme"], line["strategy"], line["conf"], line["budget"]
            runs[key] = None if line["failed"] else line["overhead"]
    graphs = sorted({graph for graph, *_ in runs})
    table(runs, [graph for graph in graphs if graph != "treelstm"])
    print()
    table(runs, ["treelstm"])


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The tables of this page, from orders.jsonl.gz: `python3 table.py`."""

import gzip
import json
import pathlib

FILE = pathlib.Path(__file__).with_name("orders.jsonl.gz")
rows = [json.loads(line) for line in gzip.open(FILE, "rt")]
by = {(row["graph"], row["method"]): row for row in rows}
graphs = list(dict.fromkeys(row["graph"] for row in rows))
methods = list(dict.fromkeys(row["method"] for row in rows))
MIB = 1 << 20


def saved(row, what="peak", base=0):
    program = by[row["graph"], "program"]
    return 100 * (1 - (row[what] - base) / (program[what] - base))


def bound(graph):
    return max(by[graph, method]["bound"] for method in methods)


print("| graph | operators | persistent | program: peak, layout | best peak | bound | gap | saved | without persistent | layout | saved |")
print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
sums = {}
for graph in graphs:
    best = min((by[graph, method] for method in methods), key=lambda row: (row["peak"], row["layout"] is None, row["layout"] or 0))
    program, held, least = by[graph, "program"], best["persistent"], bound(graph)
    gap = 100 * (best["peak"] / least - 1)
    figures = (saved(best), saved(best, base=held), saved(best, "layout"))
    # The most that any order could save.
    most = 100 * (1 - least / program["peak"])
    kind = graph.split("-")[1], "1" if graph.endswith("-1") else "larger"
    sums.setdefault(kind, []).append((*figures, most))
    print(
        f"| {graph} | {best['operators']} | {held / MIB:.1f} | {program['peak'] / MIB:.1f}, {program['layout'] / MIB:.1f} "
        f"| {best['peak'] / MIB:.1f} | {least / MIB:.1f} | {gap:.2f}% | {figures[0]:.2f}% | {figures[1]:.2f}% "
        f"| {best['layout'] / MIB:.1f} | {figures[2]:.2f}% |"
    )
print()
print("| optimizer, batch | graphs | mean saved, by order | without persistent | after layout | no order could save more than |")
print("|---|---:|---:|---:|---:|---:|")
for kind, found in [*sums.items(), (("all", ""), [row for rows in sums.values() for row in rows])]:
    means = [sum(column) / len(found) for column in zip(*found)]
    print(f"| {', '.join(part for part in kind if part)} | {len(found)} | " + " | ".join(f"{mean:.2f}%" for mean in means) + " |")
print()
print("| method | graphs | mean saved | best of all methods on | proven best by itself on | seconds: median | most |")
print("|---|---:|---:|---:|---:|---:|---:|")
for method in methods:
    own = [by[graph, method] for graph in graphs if (graph, method) in by]
    times = sorted(row["seconds"] for row in own)
    least = [min(by[row["graph"], other]["peak"] for other in methods) for row in own]
    wins = sum(row["peak"] == peak for row, peak in zip(own, least))
    mean = sum(saved(row) for row in own) / len(own)
    print(
        f"| `{method}` | {len(own)} | {mean:.2f}% | {wins} | {sum(row['optimal'] for row in own)} "
        f"| {times[len(times) // 2]:.3f} | {times[-1]:.2f} |"
    )

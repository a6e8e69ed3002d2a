#!/usr/bin/env python3
"""The table "Pass by pass" of this folder's README, in Markdown, from compare.jsonl.gz beside it."""

import gzip
import json
import pathlib

JOBS = ["gpt2xl-N", "resnet-multi", "moe-R", "opt1.3b-R", "opt13b-LR", "llama1b-ppo", "llama8b-fsdp2"]
PASSES = range(1, 8)
NATIVE, EXPANDABLE, OURS = "torch-native", "torch-expandable", "stitch"

with gzip.open(pathlib.Path(__file__).parent / "compare.jsonl.gz", "rt") as lines:
    rows = [json.loads(line) for line in lines]
runs = {(row["trace"], row["candidate"], row["pass"]): row for row in rows if "pass" in row}


def ratios(job, other):
    """Our time for an operation by the other's: each pass, and all seven together."""
    ours, theirs = ([runs[job, name, number] for number in PASSES] for name in (OURS, other))
    each = [f"{a['ns_per_op'] / b['ns_per_op']:.2f}" for a, b in zip(ours, theirs)]
    whole = sum(row["ns_per_op"] * row["ops"] for row in ours) / sum(row["ns_per_op"] * row["ops"] for row in theirs)
    return [f"{whole:.2f}", ", ".join(each)]


def longest(job, name):
    """The longest allocation of passes 2 to 4, in microseconds."""
    return f"{max(runs[job, name, number]['allocations']['max'] for number in (2, 3, 4)) / 1e3:,.0f}"


print("| job | all seven, of native | pass by pass | all seven, of expandable | pass by pass"
      " | longest allocation of passes 2-4, us: native, expandable, `stitch` |")
print("|---|---:|---|---:|---|---|")
for job in JOBS:
    most = ", ".join(longest(job, name) for name in (NATIVE, EXPANDABLE, OURS))
    cells = [job, *ratios(job, NATIVE), *ratios(job, EXPANDABLE), most]
    print("| " + " | ".join(cells) + " |")

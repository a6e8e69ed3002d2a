"""Raw files of a results folder, and tables in Markdown: what the folders' scripts tables.py share."""

import json
import pathlib
import sys

# Of the raw files: the script's first argument, or where the script lies.
FOLDER = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(sys.argv[0]).parent
# The recorded jobs, in the order of the tables.
JOBS = ["gpt2xl-N", "resnet-multi", "moe-R", "opt1.3b-R", "opt13b-LR", "llama1b-ppo", "llama8b-fsdp2"]


def rows(name, *keys):
    """The lines of a raw file, by the values of these keys."""
    lines = (json.loads(line) for line in (FOLDER / f"{name}.jsonl").open())
    return {tuple(line[key] for key in keys): line for line in lines}


def percent(part):
    return f"{100 * part:.2f}%"


def table(head, alignment, lines):
    """Prints a table; `alignment` has a letter for each column: l, or r for figures."""
    print("|" + "|".join(f" {name} " for name in head) + "|")
    print("|" + "|".join("---:" if side == "r" else "---" for side in alignment) + "|")
    for line in lines:
        print("|" + "|".join(f" {cell} " for cell in line) + "|")
    print()

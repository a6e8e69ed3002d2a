"""Makes tables, in Markdown, of what hello.py, one_memory.py and suites.py printed: python libraries_table.py FILE [FILE ...].

Exits with 1 where a test fails over seamalloc alone, a suite's process was ended, or one_memory found a wrong word or a refusal over
seamalloc.
"""

import gzip
import json
import sys
from pathlib import Path

NAMES = {"cupy": "CuPy", "rmm": "RMM", "numba": "Numba", "cuda_core": "cuda.core"}
OUTCOMES = ("passed", "failed", "skipped", "error")


def lines(paths):
    for path in map(Path, paths):
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8", errors="replace") as file:
            yield from file


def results(paths):
    """Returns the lines of JSON by their subject: {"hello": [line], "suite": [entry], "differ": [entry], "memory": [entry]}."""
    found = {"hello": [], "suite": [], "differ": [], "memory": []}
    for line in lines(paths):
        if line.startswith("hello "):
            found["hello"].append(line.strip())
        if not line.startswith("{"):
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if "wrong_words" in entry:
            found["memory"].append(entry)
        elif "suite" in entry and "tests" in entry:
            found["suite"].append(entry)
        elif "suite" in entry and "ours" in entry:
            found["differ"].append(entry)
    return found


def row(*cells):
    print("| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")


def table(*head):
    print()
    row(*head)
    row(*("---" for _ in head))


def counted(outcomes):
    return ", ".join(str(outcomes.get(name, 0)) for name in OUTCOMES)


def not_run(entry):
    """Returns how many tests there was no time for, with the library's own memory and with seamalloc's; "?" if no process
    counted them."""
    left = entry.get("left", {})
    return ", ".join("?" if count is None else str(count) for count in map(left.get, ("own", "ours")))


def memory(entry):
    served = [
        f"{name} {'yes' if entry['last_turns'][name] and entry['first_turns'][name] else 'NO'}"
        for name in entry["last_turns"]
    ]
    mode = "seamalloc" if entry["mode"] == "ours" else "their own"
    refusals = sum(refused["times"] for refused in entry["refused"].values())
    row(
        mode + (", only the limit free" if entry["only_limit"] else ""),
        entry["limit_gib"],
        entry["most_held_gib"],
        ", ".join(served),
        entry["requests"],
        refusals,
        sum(entry["wrong_words"].values()),
        entry.get("seconds", ""),
    )
    return entry["mode"] == "ours" and (refusals > 0 or any(entry["wrong_words"].values()))


def main(paths):
    found = results(paths)
    is_wrong = False
    for line in found["hello"]:
        print("-", line)
        is_wrong |= "WRONG" in line
    table(
        "suite",
        "tests reached by both",
        "own: " + ", ".join(OUTCOMES),
        "seamalloc",
        "differ",
        "reached by own alone",
        "by seamalloc alone",
        "no time for: own, seamalloc",
    )
    for entry in found["suite"]:
        row(
            NAMES[entry["suite"]],
            entry["tests"],
            counted(entry["own"]),
            counted(entry["ours"]),
            entry["differ"],
            entry["only_own"],
            entry["only_ours"],
            not_run(entry),
        )
        is_wrong |= entry["codes"]["ours"] < 0
    table("suite", "differing test", "own", "seamalloc", "")
    for entry in found["differ"]:
        row(
            NAMES[entry["suite"]],
            "`" + entry["test"].split("/")[-1] + "`",
            entry["own"],
            entry["ours"],
            entry["text"][-160:].strip(),
        )
        is_wrong |= entry["own"] == "passed" and entry["ours"] in ("failed", "error")
    table(
        "over",
        "limit, GiB",
        "held at most, GiB",
        "each alone gets most of it",
        "requests mixed",
        "refused",
        "wrong words",
        "seconds",
    )
    for entry in found["memory"]:
        is_wrong |= memory(entry)
    return 1 if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

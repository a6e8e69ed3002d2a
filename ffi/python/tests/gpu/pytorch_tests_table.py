"""Makes tables, in Markdown, of what pytorch_tests.py wrote: python pytorch_tests_table.py FILE [FILE ...].

How many tests of each suite passed, failed and were skipped under each allocator; each test that native and seamalloc do
not agree on, with its message; and those that fail under both. Exits with 1 where a test that native passes fails under
seamalloc each time that it was run, and is not known to.
"""

import argparse
import gzip
import json
import sys
from pathlib import Path

import pytorch_tests_choice as choice

ALLOCATORS = ("native", "expandable", "seamalloc")
BAD = ("failed", "crashed", "hung")
MESSAGE_CHARACTERS = 260
SHORT_CHARACTERS = 110


def lines_of(path):
    """The lines of a file of results, which may be compressed."""
    content = Path(path).read_bytes()
    return (gzip.decompress(content) if str(path).endswith(".gz") else content).decode().splitlines()


def read(paths):
    """The lines of several files. The last of a file that was cut off may be incomplete, and is left out."""
    found = []
    for path in paths:
        lines = lines_of(path)
        for number, line in enumerate(lines, 1):
            try:
                found.append(json.loads(line))
            except ValueError as error:
                if number < len(lines):
                    raise SystemExit(f"{path}:{number}: not a line of JSON ({error})") from error
    return found


def by_test(lines):
    """{suite: {test: {allocator: [report of each round]}}}"""
    suites = {}
    for line in lines:
        if "test" in line:
            of = suites.setdefault(line["suite"], {}).setdefault(line["test"], {})
            rounds = of.setdefault(line["allocator"], [])
            rounds.append(line)
            rounds.sort(key=lambda report: report["round"])
    for tests in suites.values():
        for of in tests.values():
            for allocator, rounds in of.items():
                # A later run that ended before the test says nothing of it.
                reached = [report for report in rounds if report["outcome"] != "not reached"]
                of[allocator] = reached or rounds[:1]
    return suites


def ended(rounds):
    """Returns how a test's rounds ended, in a word: its outcome, or "unsteady" where it passed in one and failed in another."""
    outcomes = [report["outcome"] for report in rounds]
    if len(set(outcomes)) == 1:
        return outcomes[0]
    if any(outcome in BAD for outcome in outcomes) and any(outcome not in BAD for outcome in outcomes):
        return "unsteady"
    return outcomes[-1]


def verdict(test, of):
    """Returns the verdict of a test on seamalloc beside native."""
    if "native" not in of or "seamalloc" not in of:
        return "not compared"
    native, ours = ended(of["native"]), ended(of["seamalloc"])
    if "not reached" in (native, ours):
        return "not compared"
    if native in BAD and ours in BAD:
        return "fails under both"
    if "unsteady" in (native, ours):
        return "unsteady"
    if ours in BAD and native == "passed":
        return "as known" if choice.why_known(test.rsplit(".", 1)[-1]) else "fails"
    return "same" if native == ours else "differs"


def count(tests, allocator):
    """Passed, failed, skipped and unreached tests under one allocator; an unsteady one counts as it ended first."""
    outcomes = [of[allocator][0]["outcome"] for of in tests.values() if allocator in of]
    return {
        "passed": outcomes.count("passed"),
        "failed": sum(outcome in BAD for outcome in outcomes),
        "skipped": outcomes.count("skipped"),
        "not reached": outcomes.count("not reached"),
        "all": len(outcomes),
    }


def cell(text, characters):
    """Text in a cell of a table."""
    text = " ".join(text.split()).replace("|", "\\|")
    return text if len(text) <= characters else text[: characters - 1] + "…"


def table(head, rows):
    """A table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(value) for value in row) + " |" for row in rows])


def summary(suites):
    """The table of all suites."""
    used = [
        allocator
        for allocator in ALLOCATORS
        if any(allocator in of for tests in suites.values() for of in tests.values())
    ]
    rows = []
    for suite, tests in suites.items():
        row = [suite, len(tests)]
        for allocator in used:
            found = count(tests, allocator)
            text = f"{found['passed']} / {found['failed']} / {found['skipped']}" if found["all"] else ""
            row.append(text + (f", {found['not reached']} not reached" if found["not reached"] else ""))
        verdicts = [verdict(test, of) for test, of in tests.items()]
        rows.append([*row, *(verdicts.count(kind) for kind in ("fails", "as known", "unsteady", "differs"))])
    passed = [f"{allocator}: passed / failed / skipped" for allocator in used]
    return table(
        ["suite", "tests", *passed, "fails under seamalloc alone", "of these known", "unsteady", "differs otherwise"],
        rows,
    )


def outcomes(rounds):
    """A test's outcomes, round by round."""
    return ", ".join(report["outcome"] for report in rounds)


def message(rounds):
    """The first message of a round that failed; else of any."""
    bad = [report for report in rounds if report["outcome"] in BAD]
    return next((report.get("message", "") for report in bad or rounds), "")


def differences(suites):
    """The table of the tests that native and seamalloc do not agree on."""
    rows = []
    for suite, tests in suites.items():
        for test, of in sorted(tests.items()):
            kind = verdict(test, of)
            if kind in ("fails", "as known", "unsteady", "differs"):
                known = choice.why_known(test.rsplit(".", 1)[-1])
                worse = "seamalloc" if ended(of["seamalloc"]) != "passed" else "native"
                why = known or f"{worse}: {message(of[worse])}"
                rows.append(
                    [
                        suite,
                        f"`{test}`",
                        outcomes(of["native"]),
                        outcomes(of["seamalloc"]),
                        cell(why, MESSAGE_CHARACTERS),
                    ]
                )
    return table(["suite", "test", "native", "seamalloc", "why"], rows) if rows else "None."


def failures_of_both(suites):
    """The table of the tests that fail under native too."""
    rows = [
        [suite, f"`{test}`", cell(message(of["native"]), SHORT_CHARACTERS)]
        for suite, tests in suites.items()
        for test, of in sorted(tests.items())
        if verdict(test, of) == "fails under both"
    ]
    return table(["suite", "test", "under native"], rows) if rows else "None."


def proof(lines):
    """Returns the processes' reports on their allocators."""
    allocations, children = {}, {}
    for line in lines:
        for allocator, number in line.get("served", {}).items() if isinstance(line.get("served"), dict) else ():
            allocations[allocator] = allocations.get(allocator, 0) + number
        found = line.get("children", {})
        if found.get("started"):
            of = children.setdefault(line["allocator"], {"started": 0, "served": 0, "allocators": set()})
            of["started"] += found["started"]
            of["served"] += found["served"]
            of["allocators"] |= set(found["allocators"])
    rows = [
        [
            allocator,
            f"{allocations.get(allocator, 0):,}",
            f"{children.get(allocator, {}).get('started', 0):,}",
            ", ".join(sorted(children.get(allocator, {}).get("allocators", ()))),
            f"{children.get(allocator, {}).get('served', 0):,}",
        ]
        for allocator in ALLOCATORS
        if allocator in allocations or allocator in children
    ]
    head = [
        "allocator",
        "allocations in test processes",
        "processes that tests started",
        "these had",
        "allocations there",
    ]
    return table(head, rows)


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="of pytorch_tests.py --json")
    lines = read(parser.parse_args().files)
    suites = by_test(lines)
    if not suites:
        sys.exit("no tests in these files")
    for line in lines:
        if "error" in line:
            print(f"{line['suite']}, {line['file']}: did not start under {line['allocator']}: {line['error']}\n")
    versions = {json.dumps(line["versions"]): line["versions"] for line in lines if "versions" in line}
    for version in versions.values():
        print(f"PyTorch {version['torch']}, CUDA {version['cuda']}, {version['gpus']} × {version['device']}.\n")
    print(summary(suites), "### Where native and seamalloc differ", differences(suites), sep="\n\n")
    print("\n### Failures of both", failures_of_both(suites), "### Who served", proof(lines), sep="\n\n")
    failed = [test for tests in suites.values() for test, of in tests.items() if verdict(test, of) == "fails"]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

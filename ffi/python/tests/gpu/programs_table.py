"""Makes a table, in Markdown, of what programs.py wrote: python programs_table.py FILE [FILE ...].

Each figure is the median of the rounds, with the least and the most where they differ. Seconds: the sum of all steps but the
first quarter, of the slowest rank; beside native its ratio to native's in the same round. Longest: the worst of these steps,
and in how many of all rounds a step took half as long again as the median. Live and held: the most of the rank that had most.
Retries are of all steps: native's after a release of everything, ours of driver calls. Stalls are ours: the longest, and
all together. Losses: the largest difference to native's of the same round, over all steps and ranks. Failures: in how many
rounds a program did not end, which count for nothing else. Exits with 1 where seamalloc's losses are not native's although
those of expandable segments are, or where a program did not end.
"""

import json
import math
import statistics
import sys

from pytorch_tests_table import cell, lines_of, table

ALLOCATORS = ("native", "expandable", "seamalloc")
# A step is late where it takes so many times the median.
LATE = 1.5
# Of the steps: what warms up.
LEFT_OUT = 0.25
GIB = 2**30
ERROR_CHARACTERS = 300


def read(paths):
    """{(program, GPUs): {allocator: {round: {"steps": {(rank, step): line}, "ends": [line], "error": text}}}}"""
    programs = {}
    for path in paths:
        lines = lines_of(path)
        for number, text in enumerate(lines, 1):
            try:
                line = json.loads(text)
            except ValueError as error:
                # The last line of a run that was cut off.
                if number < len(lines):
                    raise SystemExit(f"{path}:{number}: not a line of JSON ({error})") from error
                continue
            rounds = programs.setdefault((line["program"], line["gpus"]), {}).setdefault(line["allocator"], {})
            of = rounds.setdefault(line["round"], {"steps": {}, "ends": [], "error": None})
            if "step" in line:
                of["steps"][line["rank"], line["step"]] = line
            elif "end" in line:
                of["ends"].append(line)
            else:
                of["error"] = line["error"]
    return programs


def ended(rounds):
    """The rounds in which all ranks came to their end."""
    return {number: of for number, of in rounds.items() if of["ends"] and len(of["ends"]) == of["ends"][0]["gpus"]}


def seconds(of):
    """Returns the seconds of a round's steps in the slowest rank, without those that warm up."""
    steps = {}
    for (_, step), line in of["steps"].items():
        steps[step] = max(steps.get(step, 0.0), line["seconds"])
    return [steps[step] for step in sorted(steps)[int(LEFT_OUT * len(steps)) :]]


def spread(values, form):
    """The median and, where they differ, the least and the most."""
    if not values:
        return ""
    middle, least, most = (form.format(of(values)) for of in (statistics.median, min, max))
    return middle if least == most else f"{middle} ({least} to {most})"


def ratios(rounds, native):
    """The ratios of the sums to native's, round by round."""
    return [sum(seconds(of)) / sum(seconds(native[number])) for number, of in rounds.items() if number in native]


def longest(rounds):
    """The longest steps in ms, and how many steps of all rounds are late."""
    steps = [seconds(of) for of in rounds.values()]
    late = sum(one > LATE * statistics.median(of) for of in steps for one in of)
    return spread([max(of) * 1000 for of in steps], "{:.1f}") + (f", {late} late" if late else "")


def peaks(rounds, name):
    """The most that a rank had in each round."""
    return [max(end.get(name, 0) for end in of["ends"]) for of in rounds.values()]


def stalls(rounds):
    """The longest stalls in ms, and all together, where the allocator tells of them."""
    worst, total = ([ns / 1e6 for ns in peaks(rounds, f"stall_{name}_ns")] for name in ("worst", "total"))
    return f"{spread(worst, '{:.1f}')} of {spread(total, '{:.0f}')}" if any(worst) else ""


def gap(mine, theirs):
    """Returns the difference of two losses. NaN equals NaN, and is infinitely far from a number."""
    if math.isnan(mine) or math.isnan(theirs):
        return 0.0 if math.isnan(mine) and math.isnan(theirs) else math.inf
    return 0.0 if mine == theirs else abs(mine - theirs)


def furthest(rounds, native):
    """The largest difference between losses and native's, and of how many; None without one to compare."""
    pairs = [
        (line["loss"], native[number]["steps"][key]["loss"])
        for number, of in rounds.items()
        for key, line in of["steps"].items()
        if line["loss"] is not None and key in native.get(number, {"steps": ()})["steps"]
    ]
    gaps = [gap(mine, theirs) for mine, theirs in pairs]
    return max(gaps, default=None), len(pairs)


def losses(rounds, native):
    """Returns how losses compare, in words."""
    apart, count = furthest(rounds, native)
    if apart is None:
        return ""
    return f"all {count} equal" if apart == 0.0 else f"up to {apart:.1e} apart, of {count}"


def failures(rounds):
    """Returns in how many rounds a program failed, and the first error."""
    errors = [of["error"] for of in rounds.values() if of["error"]]
    return f"{len(errors)} of {len(rounds)}: {cell(errors[0], ERROR_CHARACTERS)}" if errors else ""


def rows(programs):
    """The table's rows."""
    found = []
    for (program, gpus), allocators in programs.items():
        native = ended(allocators.get("native", {}))
        for allocator in sorted(allocators, key=lambda name: (*ALLOCATORS, name).index(name)):
            rounds = ended(allocators[allocator])
            live, held = peaks(rounds, "allocated"), peaks(rounds, "reserved")
            found.append(
                [
                    program,
                    gpus,
                    allocator,
                    spread([sum(seconds(of)) for of in rounds.values()], "{:.2f}"),
                    spread(ratios(rounds, native), "{:.3f}") if allocator != "native" else "",
                    longest(rounds),
                    spread([one / GIB for one in live], "{:.2f}"),
                    spread([one / GIB for one in held], "{:.2f}"),
                    spread([(of / one - 1) * 100 for one, of in zip(live, held) if one], "{:.1f}%"),
                    spread(peaks(rounds, "retries"), "{:.0f}"),
                    stalls(rounds),
                    losses(rounds, native) if allocator != "native" else "",
                    failures(allocators[allocator]),
                ]
            )
    return found


def wrong(programs):
    """Returns the failures: programs that did not end, losses that differ under seamalloc alone."""
    found = []
    for (program, _), allocators in programs.items():
        for allocator, rounds in allocators.items():
            if any(of["error"] for of in rounds.values()):
                found.append(f"{program} failed under {allocator}")
        native, control, ours = (ended(allocators.get(allocator, {})) for allocator in ALLOCATORS)
        if any(end.get("enabled", "full") != "full" for of in ours.values() for end in of["ends"]):
            found.append(f"{program} was not served by seamalloc")
        if furthest(control, native)[0] == 0.0 and furthest(ours, native)[0] not in (0.0, None):
            found.append(f"{program}: losses under seamalloc are not native's, those under expandable segments are")
    return found


def main():
    """The command."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    programs = read(sys.argv[1:])
    if not programs:
        sys.exit("no programs in these files")
    head = [
        "program",
        "GPUs",
        "allocator",
        "seconds",
        "beside native",
        "longest, ms",
        "GiB live",
        "GiB held",
        "above live",
        "retries",
        "stalls, ms",
        "losses",
        "failures",
    ]
    print(table(head, rows(programs)))
    bad = wrong(programs)
    for line in bad:
        print(f"\n{line}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()

"""Makes a table, in Markdown, of what programs.py wrote: python programs_table.py FILE [FILE ...].

Seconds a step: the median of all but the first quarter, the longest of them and how many took half as long again as the median;
beside native the median of the ratios step by step, since the allocators take turns. Retries and stalls are of all
steps: native's retries after a release of everything, ours the calls of the driver, the longest and all together. Memory: the most that was live and that was held, of the rank that held most. Losses: the largest
difference to native's, over all steps and ranks. Exits with 1 where seamalloc's losses are not native's although those of
expandable segments are, or where a program did not end.
"""

import json
import math
import statistics
import sys

from pytorch_tests_table import cell, lines_of, table

# Of fewer steps no quartiles are told.
FEW = 4
ALLOCATORS = ("native", "expandable", "seamalloc")
# A step is late where it takes so many times the median.
LATE = 1.5
# Of the steps: what warms up.
LEFT_OUT = 0.25
GIB = 2**30
ERROR_CHARACTERS = 300


def read(paths):
    """{(program, GPUs): {allocator: {"steps": {(rank, step): line}, "ends": {rank: line}, "error": text}}}"""
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
            if "allocator" not in line:
                continue
            allocators = programs.setdefault((line["program"], line["gpus"]), {})
            of = allocators.setdefault(line["allocator"], {"steps": {}, "ends": {}, "error": None})
            if "step" in line:
                of["steps"][line["rank"], line["step"]] = line
            elif "end" in line:
                of["ends"][line["rank"]] = line
            elif "error" in line:
                of["error"] = line["error"]
    return programs


def late(of):
    """{step: seconds} of the slowest rank, without the steps that warm up."""
    steps = {}
    for (_, step), line in of["steps"].items():
        steps[step] = max(steps.get(step, 0.0), line["seconds"])
    first = math.ceil(LEFT_OUT * (max(steps, default=-1) + 1))
    return {step: seconds for step, seconds in steps.items() if step >= first}


def ratios(of, native):
    """The ratios to native, step by step."""
    mine, theirs = late(of), late(native)
    return [mine[step] / theirs[step] for step in mine if theirs.get(step)]


def ratio(of, native):
    """The median of the ratios to native; None without a common step."""
    found = ratios(of, native)
    return statistics.median(found) if found else None


def spread(of, native):
    """The median of the ratios to native, and between what half of them lie."""
    middle, found = ratio(of, native), ratios(of, native)
    if middle is None:
        return ""
    if len(found) < FEW:
        return f"{middle:.3f}"
    low, _, high = statistics.quantiles(found, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def longest(seconds):
    """The longest step in ms, and how many are late."""
    if not seconds:
        return ""
    middle = statistics.median(seconds.values())
    late_ones = sum(one > LATE * middle for one in seconds.values())
    return f"{max(seconds.values()) * 1000:.1f}" + (f", {late_ones} late" if late_ones else "")


def stalls(of):
    """Retries, and where the allocator tells of them the stalls: the longest and all, of the rank that had most."""
    parts = []
    if retries := most(of, "retries"):
        parts.append(f"{retries} retries")
    if longest_ns := most(of, "stall_worst_ns"):
        parts.append(f"{longest_ns / 1e6:.1f} of {most(of, 'stall_total_ns') / 1e6:.0f} ms")
    return ", ".join(parts)


def gap(mine, theirs):
    """How far two losses are apart. What is not a number is equal to another such, and endlessly far from a number."""
    if math.isnan(mine) or math.isnan(theirs):
        return 0.0 if math.isnan(mine) and math.isnan(theirs) else math.inf
    return 0.0 if mine == theirs else abs(mine - theirs)


def furthest(of, native):
    """The largest difference between losses and native's, and of how many; None without one to compare."""
    pairs = [
        (line["loss"], native["steps"][key]["loss"])
        for key, line in of["steps"].items()
        if key in native["steps"] and line["loss"] is not None
    ]
    gaps = [gap(mine, theirs) for mine, theirs in pairs]
    return max(gaps, default=None), len(pairs)


def most(of, name):
    """The most that a rank had, in bytes."""
    return max((end.get(name, 0) for end in of["ends"].values()), default=0)


def losses(of, native):
    """How losses compare, in words."""
    apart, count = furthest(of, native)
    if apart is None:
        return ""
    return f"all {count} equal" if apart == 0.0 else f"up to {apart:.1e} apart, of {count}"


def rows(programs):
    """The table's rows."""
    found = []
    for (program, gpus), allocators in programs.items():
        native = allocators.get("native")
        for allocator in [*ALLOCATORS, *(name for name in allocators if name not in ALLOCATORS)]:
            of = allocators.get(allocator)
            if of is None:
                continue
            if of["error"]:
                found.append([program, gpus, allocator, cell(of["error"], ERROR_CHARACTERS), "", "", "", "", "", "", ""])
                continue
            seconds = late(of)
            live, held = most(of, "allocated"), most(of, "reserved")
            found.append(
                [
                    program,
                    gpus,
                    allocator,
                    f"{statistics.median(seconds.values()) * 1000:.1f}" if seconds else "",
                    longest(seconds),
                    stalls(of),
                    spread(of, native) if native else "",
                    f"{live / GIB:.2f}",
                    f"{held / GIB:.2f}",
                    f"{(held / live - 1) * 100:.1f}%" if live else "",
                    losses(of, native) if native and of is not native else "",
                ]
            )
    return found


def wrong(programs):
    """What must not be: programs that did not end, losses that only seamalloc's differ in."""
    found = []
    for (program, _), allocators in programs.items():
        for allocator, of in allocators.items():
            if of["error"]:
                found.append(f"{program} failed under {allocator}")
        native, control, ours = (allocators.get(allocator) for allocator in ALLOCATORS)
        if ours and ours["ends"] and any(end.get("enabled", "full") != "full" for end in ours["ends"].values()):
            found.append(f"{program} was not served by seamalloc")
        if (
            native
            and control
            and ours
            and furthest(control, native)[0] == 0.0
            and furthest(ours, native)[0] not in (0.0, None)
        ):
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
        "ms a step",
        "longest",
        "retries, stalls",
        "beside native",
        "GiB live",
        "GiB held",
        "above live",
        "losses",
    ]
    print(table(head, rows(programs)))
    bad = wrong(programs)
    for line in bad:
        print(f"\n{line}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()

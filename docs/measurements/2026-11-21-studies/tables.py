#!/usr/bin/env python3
"""The tables of this folder's README, in Markdown, from the raw files: tables.py [FOLDER of the raw files]."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from tabulation import JOBS, rows, table

# They lie far below the others of the default set at each size, and would hide what the sizes do in a mean.
OUTSIDE = ["dtr-tree", "prefetch", "comb"]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def number(value):
    """With one digit behind the point, from 10 on with none."""
    return f"{value:.1f}" if round(value, 1) < 10 else f"{value:.0f}"


def ms(us):
    return number(us / 1e3)


def percents(*parts):
    return ", ".join(f"{100 * part:.2f}" for part in parts) + "%"


def named(size):
    return "default" if size is None else f"{size} MiB"


def titled(title, *of_table):
    print(f"## {title}\n")
    table(*of_table)


def sizes_of(runs):
    return sorted({size for size, _ in runs}, key=lambda size: size or 1 << 60)


def chunks(title, name, default):
    runs = rows(name, "chunk_size_mb", "trace")

    def cell(size, job):
        run = runs[size, job]
        return f"{percents(run['utilization_third'])}, {ms(run['driver_us_per_gib'])}, {ms(run['worst_stall_us'])}"

    sizes = [size for size in sizes_of(runs) if default or size is not None]
    lines = [[named(size) if size else "**default**", *(cell(size, job) for job in JOBS)] for size in sizes]
    titled(title, ["at most", *JOBS], "l" * 8, lines)


def rule():
    runs = rows("chunks-rule", "largest_chunk_mb", "most_chunks", "trace")
    unbounded = {**rows("chunks", "chunk_size_mb", "trace"), **rows("chunks-more-sizes", "chunk_size_mb", "trace")}

    def cell(of):
        worst = max(run["worst_stall_us"] for run in of)
        return (f"{percents(mean(run['utilization_third'] for run in of))}, "
                f"{ms(mean(run['driver_us_per_gib'] for run in of))}, {ms(worst)}")

    mosts = sorted({most for _, most, _ in runs}, reverse=True)
    lines = []
    for size in sorted({size for size, _, _ in runs}):
        bounded = (cell([runs[size, most, job] for job in JOBS]) for most in mosts)
        lines.append([f"{size} MiB", cell([unbounded[size, job] for job in JOBS]), *bounded])
    head = ["at most", "no bound", *(f"{most} chunks" for most in mosts)]
    titled("Chunk sizes: the default", head, "l" * len(head), lines)


def default_set():
    runs = rows("chunks-default-set", "chunk_size_mb", "trace")
    settings = {named(size): {trace: run for (at, trace), run in runs.items() if at == size} for size in sizes_of(runs)}
    settings["28 MiB, 100 chunks"] = {trace: run for (trace,), run in rows("chunks-rule-default-set", "trace").items()}
    lines = []
    for name, of in settings.items():
        inside = {trace: run for trace, run in of.items() if trace not in OUTSIDE}
        least = min(inside.values(), key=lambda run: run["utilization_third"])
        worst = max(of.values(), key=lambda run: run["worst_stall_us"])
        lines.append([
            name,
            percents(mean(run["utilization_third"] for run in inside.values())),
            f"{percents(least['utilization_third'])} ({least['trace']})",
            f"{mean(run['driver_us_per_gib'] for run in inside.values()) / 1e3:.1f}",
            f"{worst['worst_stall_us'] / 1e3:.1f} ({worst['trace']})",
        ])
    titled("The default set", ["at most", f"utilization, mean of {len(inside)}", "least", "driver ms per GiB, mean",
                               "worst stall, ms"], "lrlrr", lines)
    print("Left out:", "; ".join(
        f"{trace} {percents(*(runs[size, trace]['utilization_third'] for size in sizes_of(runs)))}" for trace in OUTSIDE))
    dear = sorted((runs[None, trace]["driver_us_per_gib"] / 1e3, trace) for _, trace in runs if (None, trace) in runs)
    print("Dearest, ms per GiB:", ", ".join(f"{trace} {time:.1f}" for time, trace in sorted(set(dear))[:-6:-1]), "\n")


def chunks_ahead():
    runs = rows("chunks-lag-1500", "chunk_size_mb", "trace")
    lines = [[
        named(size),
        percents(run["utilization_first"], run["utilization_third"]),
        f"{run['driver_us_per_gib'] / 1e3:.1f}",
        f"{run['driver_time_us_third'] / 1e3:.0f}",
        f"{run['worst_stall_us'] / 1e3:.1f}",
    ] for size in sizes_of(runs) for run in [runs[size, JOBS[-1]]]]
    titled("Chunk sizes while the program runs ahead", [
        "at most", "utilization, pass 1, pass 3", "driver ms per GiB, pass 1", "driver ms, pass 3", "worst stall, ms",
    ], "lrrrr", lines)


def run_ahead():
    runs = rows("lag", "lag", "sharing")

    def whole(value):
        return "-" if value is None else f"{value:,.0f}"

    lines = []
    for lag in sorted({lag for lag, _ in runs}):
        wait = runs[lag, "wait"]
        lines.append([
            f"{lag:,}",
            *(percents(runs[lag, policy]["utilization_first"], runs[lag, policy]["utilization_third"])
              for policy in ("never", "completed", "wait")),
            f"{wait['stream_waits_first']}, {wait['stream_waits_third']}",
            f"{whole(wait['wait_age_ops_mean_first'])}, {whole(wait['wait_age_ops_mean_third'])}",
            ", ".join(f"{us / 1e3:.1f}" if us < 1e4 else f"{us / 1e3:.0f}"
                      for us in (wait["driver_time_us_first"], wait["driver_time_us_third"])),
        ])
    titled("Run-ahead", ["lag", "never", "completed", "wait", "waits, pass 1, pass 3",
                         "age of the event, pass 1, pass 3", "driver ms, pass 1, pass 3"], "r" * 7, lines)


def forty_passes():
    runs = rows("passes-40", "sharing", "lag", "pass")
    lines = []
    for sharing, lag in dict.fromkeys((sharing, lag) for sharing, lag, _ in runs):
        run = [runs[sharing, lag, number] for number in range(1, 41)]
        first, third, twentieth, last = (run[at] for at in (0, 2, 19, 39))
        dropped = [one["pass"] for one in run if one["views_dropped"]]
        lines.append([
            sharing,
            f"{lag:,}",
            percents(*(one["utilization"] for one in (first, third, twentieth, last))),
            percents(twentieth["peak_reserved"] / first["peak_reserved"] - 1),
            f"{third['views_built']}, {last['views_built']}",
            ", ".join(ms(one["driver_time_us"]) for one in (first, third, twentieth, last)),
            f"{max(one['worst_stall_us'] for one in run) / 1e3:.1f}",
            dropped[0] if dropped else "none",
        ])
    titled("Forty passes", [
        "sharing", "lag", "utilization, passes 1, 3, 20, 40", "reserved above pass 1, pass 20", "views built, passes 3, 40",
        "driver ms, passes 1, 3, 20, 40", "worst stall, ms", "views dropped from pass"], "lrlrrlrl", lines)


chunks("Chunk sizes", "chunks", default=True)
rule()
run_ahead()
chunks("More sizes", "chunks-more-sizes", default=False)
default_set()
chunks_ahead()
forty_passes()

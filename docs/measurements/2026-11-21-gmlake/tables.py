#!/usr/bin/env python3
"""The tables of this folder's README, in Markdown, from the raw files: tables.py [FOLDER of the raw files]."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from tabulation import JOBS, percent, rows, table

GIB = 1 << 30
FRAG_LIMITS = {2: "2 MiB (default)", 20: "20 MiB", 64: "64 MiB", 128: "128 MiB", 256: "256 MiB (tutorial)",
               512: "512 MiB (release)", 1024: "1 GiB (its README)"}


def ms(us):
    """With one digit behind the point, from 100 on with none."""
    value = us / 1e3
    return f"{value:.0f}" if value >= 100 or value == 0 else f"{value:.1f}"


def whole_ms(us):
    return f"{us / 1e3:.0f}"


def recorded_jobs():
    passes, fit = rows("passes-3", "trace", "pass"), rows("fit", "trace")
    lines = []
    for job in JOBS:
        run = [passes[job, number] for number in (1, 2, 3)]
        live = run[0]["peak_live"]
        lines.append([
            job,
            percent(run[0]["utilization"]),
            ", ".join(ms(one["driver_time_us"]) for one in run),
            f"{run[0]['driver_time_us'] / 1e3 / (live / GIB):.1f}",
            ", ".join(ms(one["worst_stall_us"]) for one in run),
            ", ".join(str(one["views_built"]) for one in run),
            ", ".join(str(one["views_reused"]) for one in run),
            f"{run[2]['mappings']:,}",
            f"+{fit[job,]['capacity'] / live - 1:.2%}",
        ])
    table(["job", "utilization", "driver ms, passes 1, 2, 3", "ms per GiB, pass 1", "worst stall, ms, passes 1, 2, 3",
           "sBlocks built", "reused", "mappings at the end", "smallest device, above live"], "lrlrlllrr", lines)


def frag_limit():
    runs = rows("frag-limit", "trace", "fragLimit", "pass")

    def cell(job, mib):
        first, third = (runs[job, mib << 20, number] for number in (1, 3))
        return (f"{100 * first['utilization']:.2f}, {100 * third['utilization']:.2f}; "
                f"{whole_ms(first['driver_time_us'])}, {whole_ms(third['driver_time_us'])}")

    table(["job", *FRAG_LIMITS.values()], "l" * 8, ([job, *(cell(job, mib) for mib in FRAG_LIMITS)] for job in JOBS))


def generated():
    runs = rows("stress", "trace", "pass")
    lines = []
    for trace in dict.fromkeys(trace for trace, _ in runs if trace not in JOBS):
        run = [runs[trace, number] for number in (1, 2, 3)]
        times = ", ".join(whole_ms(one["driver_time_us"]) for one in run)
        lines.append([trace, percent(run[0]["utilization"]), times, f"{run[0]['worst_stall_us'] / 1e3:.1f}"])
    table(["workload", "utilization", "driver ms, passes 1, 2, 3", "worst stall, ms, pass 1"], "lrlr", lines)


recorded_jobs()
frag_limit()
generated()

#!/usr/bin/env python3
"""The tables of this folder's README, in Markdown, from the raw files: tables.py [FOLDER of the raw files].

Parts of the first table also stand in the project's README.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from tabulation import percent, rows, table

GIB = 1 << 30
# Peak reserved bytes that PyTorch 2.11 was seen to need on an H200, native and with expandable segments.
MEASURED = {
    "gpt2xl-N": (70223134720, 52378468352),
    "resnet-multi": (23156752384, 15873343488),
    "moe-R": (64445480960, 46529511424),
    "opt1.3b-R": (36159094784, 33397145600),
    "opt13b-LR": (56528732160, 52871299072),
    "llama1b-ppo": (32151437312, 25633488896),
    "llama8b-fsdp2": (62918754304, 55203332096),
}


def ms(us):
    return f"{us / 1e3:.1f}"


def recorded_jobs():
    passes, fit = rows("passes-20", "trace", "pass"), rows("fit", "trace", "strategy")
    lines = []
    for job, measured in MEASURED.items():
        run = [passes[job, number] for number in range(1, 21)]
        live, first = run[0]["peak_live"], run[0]["driver_time_us"]
        above = {strategy: fit[job, strategy]["capacity"] / live - 1 for strategy in ("stitch", "expandable", "gmlake")}
        lines.append([
            job,
            *(percent(live / reserved) for reserved in measured),
            *(percent(run[at]["utilization"]) for at in (0, 2, 19)),
            ", ".join(ms(run[at]["driver_time_us"]) for at in (0, 1, 2, 19)),
            f"{first / 1e3 / (live / GIB):.2f}",
            ms(max(one["worst_stall_us"] for one in run)),
            "+{stitch:.2%} (+{expandable:.2%}, +{gmlake:.2%})".format(**above),
        ])
    table(
        ["job", "native, H200", "expandable, H200", "stitch, pass 1", "pass 3", "pass 20", "driver ms, passes 1, 2, 3, 20",
         "ms per GiB", "worst stall, ms", "smallest device, above live: stitch (expandable, gmlake)"],
        "lrrrrrlrrr", lines)


def run_ahead():
    lag = rows("lag", "lag", "policy", "pass")
    lines = []
    for n in sorted({key[0] for key in lag}):
        first, third = lag[n, "wait", 1], lag[n, "wait", 3]
        age = " ({wait_age_ops_mean:.0f}, {wait_age_ops_max})".format(**first) if first["stream_waits"] else ""
        by_policy = (percent(lag[n, policy, 1]["utilization"]) for policy in ("never", "completed", "wait"))
        lines.append([f"{n:,}", *by_policy, f"{first['stream_waits']}{age}", third["stream_waits"]])
    table(
        ["lag", "never", "completed", "wait", "waits, pass 1 (of each: operations since its event, mean, most)",
         "waits, pass 3"], "rrrrlr", lines)


def default_set():
    stress = rows("stress", "trace", "strategy")
    lines = []
    for job in dict.fromkeys(trace for trace, _ in stress):
        by = {strategy: stress[job, strategy] for strategy in ("caching", "expandable", "gmlake", "stitch")}
        times = (ms(by[strategy]["driver_time_us"]) for strategy in ("expandable", "gmlake", "stitch"))
        lines.append([job, *(percent(one["utilization"]) for one in by.values()), ", ".join(times)])
    table(
        ["workload", "caching", "expandable", "gmlake", "stitch", "driver ms: expandable, gmlake, stitch"],
        "lrrrrl", lines)


recorded_jobs()
run_ahead()
default_set()

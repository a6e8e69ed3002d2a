"""The tables of what each strategy makes of the recorded jobs and of all workloads."""

from .markdown import above, gib, ms, percent, table
from .runs import AHEAD, CASES, JOBS, NEARLY, STRATEGIES, STREAMS

GIB = 1 << 30


def named(job, lag):
    """Returns the name of a job with how far its CPU runs ahead."""
    return f"{job}, {lag:,} ahead" if lag else job


def stitched(runs):
    """Each job by its name, how far its CPU runs ahead, and the passes of `stitch`; the one with several streams also as it
    really runs."""
    last = runs.of("passes-20", "trace", "pass")
    for job in JOBS:
        yield job, job, 0, {number: row for (trace, number), row in last.items() if trace == job}
    passes = runs.of(f"forty-wait-{AHEAD}", "pass")
    rows = {number: row for (number,), row in passes.items() if number <= 20}
    yield named(STREAMS, AHEAD), STREAMS, AHEAD, rows


def recorded_memory(runs):
    """Returns the table of the part of the held memory that each job uses. `caching` and `expandable` hold what PyTorch's
    allocators held on an H200, to the byte (crates/trace/tests/jobs/recorded_jobs.rs)."""
    lines = []
    for name, job, lag, passes in stitched(runs):
        native, expandable = (runs.row(job, kind, lag=lag) for kind in ("caching", "expandable"))
        less = expandable["peak_reserved"] - passes[1]["peak_reserved"]
        lines.append([
            name,
            gib(native["peak_live"]),
            *(percent(row["utilization"]) for row in (native, expandable, passes[1], passes[20])),
            gib(less),
        ])
    return table(
        ["job", "live, GiB", "PyTorch native", "PyTorch expandable", "`stitch`, 1st pass", "`stitch`, 20th",
         "less than expandable, GiB"],
        "lrrrrrr", lines)


def smallest(runs, job, strategy):
    """Returns the capacity of the smallest device, as a part above live."""
    return runs.of(f"fit-{strategy}", "trace")[job,]["capacity"] / runs.live(job) - 1


def smallest_device(runs):
    """Returns the table of the smallest device on which each job runs."""
    lines = [[job, gib(runs.live(job)), *(above(smallest(runs, job, kind)) for kind in STRATEGIES)] for job in JOBS]
    head = ["job", "live, GiB", "native (`caching`)", "expandable", "`gmlake`", "`stitch`"]
    return table(head, "lrrrrr", lines)


def cost(passes):
    """Returns the driver time of passes, and how often the CPU waited in each."""
    if any(row is None or row["oom"] for row in passes):
        return "does not run"
    times = ", ".join(ms(row["driver_time_us"]) for row in passes)
    return f"{times}; {', '.join(str(row['cpu_syncs']) for row in passes)}"


def near_live(runs):
    """Returns the table of driver times on a device that is nearly too small."""
    lines = []
    for job, lag in CASES:
        rows = runs.of(f"near-{job}-{lag}", "strategy", "pass")
        kinds = ("caching", "expandable", "stitch")
        lines.append([named(job, lag), *(cost([rows.get((kind, number)) for number in (1, 2, 3)]) for kind in kinds)])
    head = [f"job, live + {NEARLY}%", "native: driver ms in passes 1, 2, 3; CPU waits", "expandable", "`stitch`"]
    return table(head, "llll", lines)


def recorded_time(runs):
    """Returns the table of driver times and stalls."""
    lines = []
    for name, job, lag, rows in stitched(runs):
        if lag:
            continue
        passes = [rows[number] for number in (1, 2, 3, 20)]
        first = passes[0]["driver_time_us"]
        lines.append([
            name,
            *(ms(runs.row(job, kind)["driver_time_us"]) for kind in ("caching", "expandable", "gmlake")),
            ", ".join(ms(row["driver_time_us"]) for row in passes),
            f"{first / 1e3 / (runs.live(job) / GIB):.2f}",
            *(ms(runs.row(job, kind)["worst_stall_us"]) for kind in ("caching", "expandable", "gmlake")),
            ms(max(row["worst_stall_us"] for row in rows.values())),
        ])
    return table(
        ["job", "driver ms, pass 1: native", "expandable", "`gmlake`", "`stitch`, passes 1, 2, 3, 20",
         "`stitch`, pass 1, ms per GiB", "worst stall, ms, pass 1: native", "expandable", "`gmlake`",
         "`stitch`, 20 passes"],
        "lrrrlrrrrr", lines)


def workloads(runs):
    """Returns the table of all recorded jobs and generated workloads, first pass."""
    lines = []
    for name in runs.workloads():
        rows = [runs.row(name, kind) for kind in STRATEGIES]
        parts = ["OOM" if row["oom"] else percent(row["utilization"]) for row in rows]
        times = ", ".join(ms(row["driver_time_us"]) for row in rows[1:])
        lines.append([name, gib(rows[-1]["peak_live"]), *parts, times])
    head = ["workload", "live, GiB", "native (`caching`)", "expandable", "`gmlake`", "`stitch`",
            "driver ms: expandable, `gmlake`, `stitch`"]
    return table(head, "lrrrrrl", lines)


TABLES = {
    "recorded-memory": recorded_memory,
    "smallest-device": smallest_device,
    "near-live": near_live,
    "recorded-time": recorded_time,
    "workloads": workloads,
}

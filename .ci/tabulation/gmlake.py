"""The tables of GMLake's algorithm."""

from .markdown import above, ms, percent, percents, table
from .recorded import smallest
from .runs import FRAG_LIMITS, JOBS

GIB = 1 << 30
# Whose `fragLimit` that is. No column is GMLake's release: other rules of it differ too.
NAMED = {2: "2 MiB (default here)", 256: "256 MiB (its tutorial's)", 512: "512 MiB (its release's default)",
         1024: "1 GiB (its README's)"}


def gmlake_jobs(runs):
    """Returns the table of the recorded jobs."""
    lines = []
    for job in JOBS:
        rows = [runs.row(job, "gmlake", number) for number in (1, 2, 3)]
        lines.append([
            job,
            percents(*(row["utilization"] for row in rows)),
            ", ".join(ms(row["driver_time_us"]) for row in rows),
            f"{rows[0]['driver_time_us'] / 1e3 / (runs.live(job) / GIB):.1f}",
            ", ".join(ms(row["worst_stall_us"]) for row in rows),
            ", ".join(str(row["views_built"]) for row in rows),
            ", ".join(str(row["views_reused"]) for row in rows),
            f"{rows[2]['mappings']:,}",
            above(smallest(runs, job, "gmlake")),
        ])
    return table(
        ["job", "utilization, passes 1, 2, 3", "driver ms", "ms per GiB, pass 1", "worst stall, ms", "sBlocks built",
         "reused", "mappings at the end", "smallest device, above live"],
        "lllrlllrr", lines)


def gmlake_frag_limit(runs):
    """Returns the table of the recorded jobs by `fragLimit`."""

    def cell(job, mib):
        first, third = (runs.of(f"frag-{mib}", "trace", "pass")[job, number] for number in (1, 3))
        return (f"{percents(first['utilization'], third['utilization'])}; "
                f"{ms(first['driver_time_us'])}, {ms(third['driver_time_us'])}")

    head = ["job", *(NAMED.get(mib, f"{mib} MiB") for mib in FRAG_LIMITS)]
    return table(head, "l" * len(head), [[job, *(cell(job, mib) for mib in FRAG_LIMITS)] for job in JOBS])


def gmlake_generated(runs):
    """Returns the table of the generated workloads over three passes."""
    lines = []
    for name in runs.workloads():
        rows = [runs.stored.get((0, name, "gmlake", number)) for number in (1, 2, 3)]
        if name in JOBS or any(row is None or row["oom"] for row in rows):
            continue
        lines.append([
            name,
            percent(rows[0]["utilization"]),
            ", ".join(ms(row["driver_time_us"]) for row in rows),
            ms(rows[0]["worst_stall_us"]),
        ])
    return table(["workload", "utilization", "driver ms, passes 1, 2, 3", "worst stall, ms, pass 1"], "lrlr", lines)


TABLES = {
    "gmlake-jobs": gmlake_jobs,
    "gmlake-frag-limit": gmlake_frag_limit,
    "gmlake-generated": gmlake_generated,
}

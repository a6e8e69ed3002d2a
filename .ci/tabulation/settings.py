"""The tables of docs/tuning.md: what settings come to on recorded jobs."""

from .markdown import above, ms, percent, table
from .runs import AHEAD, JOBS, STREAMS

# The job of one stream that is tried with settings.
SINGLE = "opt1.3b-R"
# What is tried: its name, the strategy and the options.
SETTINGS = [
    ("PyTorch native", "caching", ""),
    ("native, `max_split_size_mb:128`", "caching", "max_split_size_mb:128"),
    ("expandable segments", "expandable", ""),
    ("`stitch`, defaults", "stitch", ""),
    ("`sharing:never`", "stitch", "sharing:never"),
    ("`chunk_size_mb:2`", "stitch", "chunk_size_mb:2"),
    ("`chunk_size_mb:64`", "stitch", "chunk_size_mb:64"),
]
# With names that fit into the head of a table.
MAX_SPLIT = ("native, max_split 128 MiB", *SETTINGS[1][1:])
LIMITS = [SETTINGS[0], MAX_SPLIT, SETTINGS[2], ("`split:off`", "stitch", "split:off"), SETTINGS[3]]
CASES = [(SINGLE, 0), (STREAMS, AHEAD)]


def _options(kind, conf):
    return ["--strategy", kind, "--passes", "3", "--json", *(["--conf", conf] if conf else [])]


def runs():
    """The runs of the command that the tables are made of, by name."""
    tried = {
        f"setting-{name}-{job}": ["replay", job, "--lag", str(lag), *_options(kind, conf)]
        for name, kind, conf in SETTINGS
        for job, lag in CASES
    }
    return tried | {f"limit-{name}": ["fit", *JOBS, *_options(kind, conf)] for name, kind, conf in LIMITS}


def settings(job):
    """The table of what each setting holds of a job, and what it takes the driver."""

    def of(all_runs):
        lines = []
        for name, _, _ in SETTINGS:
            rows = all_runs.of(f"setting-{name}-{job}", "pass")
            first, third = rows[1,], rows[3,]
            stall = max(row["worst_stall_us"] for row in rows.values())
            lines.append([
                name,
                *(percent(row["utilization"]) for row in (first, third)),
                *(ms(row["driver_time_us"]) for row in (first, third)),
                ms(stall),
            ])
        return table(["setting", "utilization, pass 1", "pass 3", "driver ms, pass 1", "pass 3", "worst stall, ms"], "lrrrrr", lines)

    return of


def smallest(all_runs):
    """The smallest device, above live, with what the third pass takes there."""
    lines = []
    for job in JOBS:
        cells = []
        for name, _, _ in LIMITS:
            row = all_runs.of(f"limit-{name}", "trace")[job,]
            part = above(row["capacity"] / row["peak_live"] - 1)
            waits = row["cpu_syncs_last"]
            cells.append(f"{part}; {ms(row['driver_time_us_last'])}" + (f", {waits:,} waits" if waits else ""))
        lines.append([job, *cells])
    return table(["job", *(name for name, _, _ in LIMITS)], "lrrrrr", lines)


TABLES = {
    "settings-one-stream": settings(SINGLE),
    "settings-streams": settings(STREAMS),
    "smallest-by-setting": smallest,
}

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
    ("`stitch`, as it comes", "stitch", ""),
    ("`sharing:wait`", "stitch", "sharing:wait"),
    ("`split:before_growth`", "stitch", "split:before_growth"),
    ("`chunk_size_mb:2`", "stitch", "chunk_size_mb:2"),
    ("`chunk_size_mb:64`", "stitch", "chunk_size_mb:64"),
    ("`strategy:planned`", "planned", ""),
]
LIMITS = [SETTINGS[0], SETTINGS[1], SETTINGS[2], SETTINGS[3], ("`split:last_resort`", "stitch", "split:last_resort")]
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


def settings(all_runs):
    """What each setting holds, and what it takes the driver."""
    lines = []
    for name, _, _ in SETTINGS:
        cells = []
        for job, _ in CASES:
            rows = all_runs.of(f"setting-{name}-{job}", "pass")
            first, third = rows[1,], rows[3,]
            stall = max(row["worst_stall_us"] for row in rows.values())
            cells += [
                f"{percent(first['utilization'])}, {percent(third['utilization'])}",
                f"{ms(first['driver_time_us'])}, {ms(third['driver_time_us'])}",
                ms(stall),
            ]
        lines.append([name, *cells])
    head = ["setting"]
    for job, lag in CASES:
        where = f"{job}, {lag:,} ahead" if lag else job
        head += [f"{where}: used of what is held, passes 1, 3", "driver ms", "worst stall, ms"]
    return table(head, "lrrrrrr", lines)


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


TABLES = {"settings": settings, "smallest-by-setting": smallest}

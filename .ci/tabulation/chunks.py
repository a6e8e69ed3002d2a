"""The tables of chunk sizes: memory against driver time and stalls."""

from .markdown import ms, percents, short, table
from .runs import JOBS, STREAMS


def _named(size):
    return "**default**" if size is None else f"{size} MiB"


def _sizes(rows):
    return sorted({size for size, _ in rows}, key=lambda size: size or 1 << 60)


def chunk_sizes(runs):
    """Returns the table by chunk size and job."""
    rows = runs.of("chunks", "chunk_size_mb", "trace")

    def cell(size, job):
        row = rows[size, job]
        times = f"{short(row['driver_us_per_gib'])}, {short(row['worst_stall_us'])}"
        return f"{percents(row['utilization_third'])}, {times}"

    lines = [[_named(size), *(cell(size, job) for job in JOBS)] for size in _sizes(rows)]
    return table(["at most", *JOBS], "l" * (len(JOBS) + 1), lines)


def chunk_sizes_mean(runs):
    """Returns the table by chunk size: means over the seven jobs."""
    rows = runs.of("chunks", "chunk_size_mb", "trace")

    def mean(size, key):
        return sum(rows[size, job][key] for job in JOBS) / len(JOBS)

    lines = []
    for size in _sizes(rows):
        worst = max(JOBS, key=lambda job: rows[size, job]["worst_stall_us"])
        lines.append([
            _named(size),
            percents(mean(size, "utilization_third")),
            short(mean(size, "driver_us_per_gib")),
            f"{short(rows[size, worst]['worst_stall_us'])} ({worst})",
        ])
    head = ["at most", "utilization, pass 3, mean", "driver ms per GiB, pass 1, mean", "worst stall, ms"]
    return table(head, "lrrr", lines)


def chunk_sizes_ahead(runs):
    """Returns the table by chunk size while the program runs ahead of the GPU."""
    rows = runs.of("chunks-ahead", "chunk_size_mb", "trace")
    lines = []
    for size in _sizes(rows):
        row = rows[size, STREAMS]
        lines.append([
            _named(size),
            percents(row["utilization_first"], row["utilization_third"]),
            short(row["driver_us_per_gib"]),
            ms(row["driver_time_us_third"]),
            ms(row["worst_stall_us"]),
        ])
    return table(
        ["at most", "utilization, pass 1, pass 3", "driver ms per GiB, pass 1", "driver ms, pass 3", "worst stall, ms"],
        "lrrrr", lines)


TABLES = {
    "chunk-sizes": chunk_sizes,
    "chunk-sizes-mean": chunk_sizes_mean,
    "chunk-sizes-ahead": chunk_sizes_ahead,
}

"""The tables of what streams gain by sharing, and at what price, while the CPU runs ahead."""

from .markdown import ms, percents, table
from .runs import FORTY_PASSES

POLICIES = ("never", "completed", "wait")


def _number(value):
    return "-" if value is None else f"{value:,.0f}"


def _run_ahead(runs, lags=None):
    rows = runs.of("lag", "lag", "sharing")
    lines = []
    for lag in sorted({lag for lag, _ in rows} if lags is None else lags):
        wait = rows[lag, "wait"]
        lines.append([
            f"{lag:,}",
            *(percents(*(rows[lag, kind][f"utilization_{at}"] for at in ("first", "third"))) for kind in POLICIES),
            f"{wait['stream_waits_first']}, {wait['stream_waits_third']}",
            f"{_number(wait['wait_age_ops_mean_first'])}, {_number(wait['wait_age_ops_mean_third'])}",
            f"{ms(wait['driver_time_us_first'])}, {ms(wait['driver_time_us_third'])}",
        ])
    return table(
        ["operations ahead", "`never`", "`completed`", "`wait`", "waits, pass 1, pass 3",
         "age of the event, pass 1, pass 3", "driver ms, pass 1, pass 3"],
        "rrrrrrr", lines)


def run_ahead(runs):
    """Returns the table by how far the CPU runs ahead."""
    return _run_ahead(runs)


def run_ahead_short(runs):
    """Returns the table of `run_ahead` for the smallest, the real and the largest distance."""
    return _run_ahead(runs, (0, 1500, 12000))


def forty_passes(runs):
    """Returns the table of memory and driver time over forty passes."""
    lines = []
    for sharing, lag in FORTY_PASSES:
        rows = [row for _, row in sorted(runs.of(f"forty-{sharing}-{lag}", "pass").items())]
        dropped = next((row["pass"] for row in rows if row["views_dropped"] > 0), "none")
        built = sorted(row["views_built"] for row in rows[2:])
        lines.append([
            sharing,
            f"{lag:,}",
            percents(*(rows[at]["utilization"] for at in (0, 2, 19, 39))),
            percents(rows[19]["peak_reserved"] / rows[0]["peak_reserved"] - 1,
                     rows[39]["peak_reserved"] / rows[0]["peak_reserved"] - 1),
            f"{built[0]} to {built[-1]}",
            ", ".join(ms(rows[at]["driver_time_us"]) for at in (0, 2, 19, 39)),
            ms(max(row["driver_time_us"] for row in rows[2:])),
            ms(max(row["worst_stall_us"] for row in rows)),
            dropped,
        ])
    return table(
        ["sharing", "operations ahead", "utilization, passes 1, 3, 20, 40", "reserved above pass 1, passes 20, 40",
         "views built in a pass from the 3rd on", "driver ms, passes 1, 3, 20, 40", "most from the 3rd on",
         "worst stall, ms", "views dropped from pass"],
        "lrlrrlrrr", lines)


TABLES = {"run-ahead": run_ahead, "run-ahead-short": run_ahead_short, "forty-passes": forty_passes}

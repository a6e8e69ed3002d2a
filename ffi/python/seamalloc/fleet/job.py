"""Computes the result for a whole job from the results of its ranks.

The result consists of dicts and lists. The result does not depend on the engine or on the order in which files were
finished. `--json` prints the result, and `seamalloc report --fleet` makes a page from it. Sizes are in bytes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median_low
from typing import Any

from .._outside import encodable
from . import outliers
from .files import rank_of, short_names
from .rank import Found, Row
from .words import BASELINES, EXPANDABLE, NATIVE, sentences

# Verdicts of `whatif`, ordered by the change that a job needs. Jobs that no allocator can run come first.
VERDICTS = ("too_much_live", "limit", "others", "streams", "seamalloc_helps", "pytorch_is_enough")
# Two ranks whose figures differ by at most this fraction count as near each other.
NEAR = 0.01


def judge(found: Iterable[Found], version: str) -> dict[str, Any]:
    """Returns the result for the job that these files belong to."""
    # A file's name need not be UTF-8, but all output goes into JSON.
    found = sorted(map(_encodable, found), key=lambda one: one.url)
    names = short_names(one.url for one in found)
    rows, broken = [], []
    for one in found:
        name = names[one.url]
        if one.error is not None:
            broken.append({"rank": rank_of(name), "name": name, "file": one.url, "error": one.error})
        else:
            rows += _rows(one, name)
    rows.sort(key=_order)
    broken.sort(key=_order)
    strategies = list(rows[0]["strategies"]) if rows else []
    for figure, values in _figures(rows, strategies):
        for outlier in outliers.find(values):
            found_here = {"figure": figure, "value": outlier.value, "median": outlier.median, "score": outlier.score}
            rows[outlier.index]["outlier"].append(found_here)
    job = _job(rows, broken, strategies, len(found))
    job["sentences"] = sentences(job) if rows else []
    return {
        "version": version,
        "job": job,
        "ranks": rows,
        "broken": broken,
    }


def _encodable(one: Found) -> Found:
    return replace(one, url=encodable(one.url), error=None if one.error is None else encodable(one.error))


def _order(row: Row) -> tuple[bool, int, str, str]:
    return (row["rank"] is None, row["rank"] or 0, row["file"], str(row.get("name")))


def _rows(found: Found, name: str) -> list[Row]:
    """Returns the ranks of a file: one rank, or one for each device of the snapshot with events."""
    traces: dict[str, list[Row]] = {}
    for line in found.lines:
        traces.setdefault(line["trace"], []).append(line)
    return [_row(found.url, _called(name, trace, len(traces)), lines) for trace, lines in traces.items()]


def _called(name: str, trace: str, traces: int) -> str:
    return name if traces == 1 else f"{name} ({trace.rsplit('.', 1)[-1]})"


def _row(url: str, name: str, lines: list[Row]) -> Row:
    any_line = lines[0]
    capacity = any_line["capacity"]
    figures = {
        NATIVE: (any_line["native_reserved"], any_line["native_step"]),
        EXPANDABLE: (any_line["expandable_reserved"], any_line["expandable_step"]),
        **{line["strategy"]: (line["peak_reserved"], line["largest_step"]) for line in lines},
    }
    return {
        "rank": rank_of(name),
        "name": name,
        "file": url,
        **{key: any_line[key] for key in ("device", "device_from", "capacity", "peak_live")},
        **{key: any_line[key] for key in ("recorded_reserved", "reserved_before", "grows", "sought")},
        "strategies": {
            strategy: {"reserved": held, "free": _free(held, capacity), "largest_step": step}
            for strategy, (held, step) in figures.items()
        },
        "verdict": any_line.get("verdict"),
        "outlier": [],
    }


def _free(held: int | None, capacity: int | None) -> int | None:
    """Returns the free memory of the rank's device. None if the rank does not run or its device is unknown."""
    return None if held is None or capacity is None else capacity - held


def _held(row: Row, strategy: str) -> int | None:
    held: int | None = row["strategies"][strategy]["reserved"]
    return held


def _step(row: Row, strategy: str) -> float | None:
    """Returns the largest step; 0 if the rank does not run; None if no memory grows or the search was not requested."""
    if not row["sought"] or (not row["grows"] and _held(row, strategy) is not None):
        return None
    return row["strategies"][strategy]["largest_step"] or 0.0


def _recorded(row: Row) -> int | None:
    """Returns the bytes that PyTorch held. None if some of the bytes belong to no recorded block."""
    held: int | None = row["recorded_reserved"]
    return held if row["reserved_before"] == 0 else None


def _figures(rows: Sequence[Row], strategies: Sequence[str]) -> list[tuple[str, list[float | None]]]:
    """Returns the figures in which ranks are compared."""
    figures: list[tuple[str, list[float | None]]] = [
        ("live", [row["peak_live"] for row in rows]),
        ("recorded", [_recorded(row) for row in rows]),
    ]
    for strategy in strategies:
        figures.append((f"{strategy} reserved", [_held(row, strategy) for row in rows]))
        figures.append((f"{strategy} step", [_step(row, strategy) for row in rows]))
    return figures


def _job(rows: list[Row], broken: list[Row], strategies: list[str], files: int) -> dict[str, Any]:
    deciders = {strategy: _decider(rows, strategy) for strategy in strategies}
    recorded = [held for held in map(_recorded, rows) if held is not None]
    return {
        "files": files,
        "ranks": len(rows),
        "broken": len(broken),
        "outliers": sum(bool(row["outlier"]) for row in rows),
        "outlier_rule": outliers.RULE,
        "devices": dict(sorted(Counter(row["device"] for row in rows).items())),
        "verdict": _verdict(rows),
        "live": sum(row["peak_live"] for row in rows),
        "recorded": {"ranks": len(recorded), "reserved": sum(recorded)},
        "strategies": {strategy: _strategy(rows, strategy, deciders) for strategy in strategies},
        "notes": _notes(rows, broken),
    }


def _verdict(rows: list[Row]) -> dict[str, Any] | None:
    """Returns the verdict on the job, which is the verdict on the worst rank. Among equal verdicts, the rank with the
    most live memory decides."""
    judged = [row for row in rows if row["verdict"] is not None]
    if not judged:
        return None

    def place(row: Row) -> tuple[int, int]:
        kind = row["verdict"]["kind"]
        return (VERDICTS.index(kind) if kind in VERDICTS else len(VERDICTS), -row["peak_live"])

    worst = min(judged, key=place)
    kinds = Counter(row["verdict"]["kind"] for row in judged)
    kind = worst["verdict"]["kind"]
    return {
        "kind": kind,
        "text": worst["verdict"]["text"],
        "next": worst["verdict"]["next"],
        "rank": worst["rank"],
        "name": worst["name"],
        "ranks": kinds[kind],
        "kinds": dict(sorted(kinds.items())),
    }


def _strategy(rows: list[Row], strategy: str, deciders: dict[str, Row | None]) -> dict[str, Any]:
    held = [bytes_held for row in rows if (bytes_held := _held(row, strategy)) is not None]
    live = sum(row["peak_live"] for row in rows if _held(row, strategy) is not None)
    steps = [step for row in rows if (step := _step(row, strategy)) is not None]
    return {
        "runs": len(held),
        "reserved": sum(held),
        "least": min(held, default=None),
        "median": median_low(held) if held else None,
        "most": max(held, default=None),
        "utilization": round(live / sum(held), 6) if sum(held) else None,
        # All ranks have the same batch size, so the least of all steps counts.
        "largest_step": min(steps, default=None),
        "decides": _decides(rows, strategy, deciders[strategy]),
        "saves": {name: _saves(rows, strategy, baseline, deciders) for name, baseline in BASELINES.items()},
        "saves_recorded": _saves_recorded(rows, strategy),
    }


def _pressure(row: Row, strategy: str) -> tuple[float, float]:
    """Returns the sorting key of a rank; the rank with the least key decides. The key is the largest step, then the
    free fraction of the device. On an unknown device a number that falls with the held memory replaces the fraction."""
    held, free = _held(row, strategy), row["strategies"][strategy]["free"]
    part = -1.0 if held is None else 1 / (1 + held) if free is None else free / row["capacity"]
    step = _step(row, strategy)
    return (float("inf") if step is None else step, part)


def _is_near(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Returns whether both figures of two ranks are within 1% of each other."""
    pairs = zip(one, other, strict=True)
    return all(math.isclose(a, b, rel_tol=NEAR) for a, b in pairs)


def _decider(rows: list[Row], strategy: str) -> Row | None:
    return min(rows, key=lambda row: _pressure(row, strategy), default=None)


def _decides(rows: list[Row], strategy: str, row: Row | None) -> dict[str, Any] | None:
    """Describes the rank that limits the batch size, or None."""
    if row is None:
        return None
    step = _step(row, strategy)
    own = _pressure(row, strategy)
    return {
        "by": "free memory" if step is None else "largest step",
        "rank": row["rank"],
        "name": row["name"],
        "device": row["device"],
        "capacity": row["capacity"],
        "reserved": _held(row, strategy),
        "free": row["strategies"][strategy]["free"],
        "largest_step": step,
        # The number of other ranks whose figures are within 1% of this rank's figures.
        "as_near": sum(_is_near(_pressure(other, strategy), own) for other in rows) - 1,
    }


def _saves(rows: list[Row], strategy: str, baseline: str, deciders: dict[str, Row | None]) -> dict[str, Any]:
    """Returns how many bytes fewer a strategy holds than one of PyTorch's allocators; negative if it holds more."""
    both = [
        (ours, theirs)
        for row in rows
        if (ours := _held(row, strategy)) is not None and (theirs := _held(row, baseline)) is not None
    ]
    decider = deciders[baseline]
    ours, theirs = (None, None) if decider is None else (_held(decider, strategy), _held(decider, baseline))
    steps = [_least_step(rows, of) for of in (strategy, baseline)]
    return {
        "ranks": len(both),
        "bytes": sum(theirs_held - ours_held for ours_held, theirs_held in both),
        # The rank that limits the batch size with PyTorch's allocator.
        "deciding_rank": None if decider is None else decider["name"],
        "bytes_on_deciding_rank": None if ours is None or theirs is None else theirs - ours,
        "step_ratio": round(steps[0] / steps[1], 4) if steps[0] is not None and steps[1] else None,
        "runs_more_ranks": sum((_held(row, strategy) is not None) - (_held(row, baseline) is not None) for row in rows),
    }


def _least_step(rows: list[Row], strategy: str) -> float | None:
    return min((step for row in rows if (step := _step(row, strategy)) is not None), default=None)


def _saves_recorded(rows: list[Row], strategy: str) -> dict[str, int]:
    """Returns how many bytes fewer a strategy holds than PyTorch held when the ranks were recorded."""
    both = [
        (ours, theirs)
        for row in rows
        if (ours := _held(row, strategy)) is not None and (theirs := _recorded(row)) is not None
    ]
    return {"ranks": len(both), "bytes": sum(theirs - ours for ours, theirs in both)}


def _notes(rows: list[Row], broken: list[Row]) -> list[str]:
    """Returns remarks that a reader of the figures must know."""
    notes = []
    files: dict[int, set[str]] = {}
    for row in [*rows, *broken]:
        if row["rank"] is not None:
            files.setdefault(row["rank"], set()).add(row["file"])
    doubled = {rank: len(of) for rank, of in files.items() if len(of) > 1}
    if doubled:
        rank, count = min(doubled.items())
        more = f", and {len(doubled) - 1} other ranks are in several" if len(doubled) > 1 else ""
        notes.append(f"rank {rank} is in {count} files{more}: each file counts as a rank")
    unknown = sum(row["device_from"] == "unknown" for row in rows)
    if unknown:
        notes.append(
            f"{_of(unknown, len(rows))} do not say how much memory their device has, and get an H200's: "
            "--device says it"
        )
    before = sum(row["reserved_before"] > 0 for row in rows)
    if before:
        notes.append(f"{_of(before, len(rows))} were recorded after the job began: what PyTorch held there is left out")
    return notes


def _of(count: int, all_of_them: int) -> str:
    return f"all {count} ranks" if count == all_of_them else f"{count} of {all_of_them} ranks"

"""Prints a job as tables, by strategy and by rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table

from .._outside import printable
from .words import BASELINES, EXPANDABLE, ours, signed, times, verdict

# The width of a line, in characters, if the width of the output is unknown.
WIDTH = 160
# The largest number of broken files that are named.
MOST_BROKEN = 20
GIB = 1 << 30


def escape(text: str) -> str:
    """Escapes text from outside for a terminal and for rich's markup."""
    return escape_markup(printable(text))


def show(judged: dict[str, Any], most_rows: int, console: Console | None = None) -> None:
    """Prints a job with at most `most` of its ranks, or all ranks if `most` is 0."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(WIDTH, console.width), file=console.file)
    job, rows = judged["job"], judged["ranks"]
    if rows:
        first = len(verdict(job))
        for sentence in job["sentences"][:first]:
            console.print(escape(sentence), soft_wrap=True)
        console.print(_strategies(job))
        for sentence in job["sentences"][first:]:
            console.print(escape(sentence))
        console.print()
        shown = most_telling(judged, most_rows)
        console.print(_ranks(judged, [rows[index] for index in shown]))
        if len(shown) < len(rows):
            console.print(f"{len(shown)} of {len(rows)} ranks; --rows 0 shows all, -o page.html draws them")
    for note in job["notes"]:
        console.print(f"Note: {escape(note)}.")
    _broken(judged["broken"], console)


def _broken(broken: list[dict[str, Any]], console: Console) -> None:
    for one in broken[:MOST_BROKEN]:
        console.print(f"[bold red]broken:[/] {escape(one['file'])}: {escape(one['error'])}", soft_wrap=True)
    if len(broken) > MOST_BROKEN:
        console.print(f"and {len(broken) - MOST_BROKEN} more broken files; --json names all")


def gib(size: int | None) -> str:
    return "too much" if size is None else f"{size / GIB:,.2f}"


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    for name, justify in columns:
        table.add_column(name, justify="left" if justify == "left" else "right", overflow="fold")
    return table


def _strategies(job: dict[str, Any]) -> Table:
    words = (
        ("strategy", "left"),
        ("all ranks\nGiB", ""),
        ("least\nGiB", ""),
        ("median\nGiB", ""),
        ("most\nGiB", ""),
        ("used", ""),
    )
    more = (
        ("largest\nstep", ""),
        ("decided by", "left"),
        ("less than\nnative", ""),
        ("less than\nexpandable", ""),
        ("runs", ""),
    )
    table = _table(*words, *more)
    for name, figures in job["strategies"].items():
        decides = figures["decides"]
        used = figures["utilization"]
        table.add_row(
            name,
            *(gib(figures[key]) if figures["runs"] else "–" for key in ("reserved", "least", "median", "most")),
            "–" if used is None else f"{used:.2%}",
            times(figures["largest_step"]),
            escape(decides["name"]),
            *("–" if name == of else signed(figures["saves"][key]["bytes"]) for key, of in BASELINES.items()),
            f"{figures['runs']} of {job['ranks']}",
        )
    return table


def most_telling(judged: dict[str, Any], most: int) -> list[int]:
    """Returns the rows to show, in order: ranks that decide or do not run, outliers, then the first ranks."""
    rows, job = judged["ranks"], judged["job"]
    if most == 0 or len(rows) <= most:
        return list(range(len(rows)))
    deciding = {of["decides"]["name"] for of in job["strategies"].values() if of["decides"]}

    def importance(index: int) -> tuple[int, int]:
        row = rows[index]
        fails = any(of["reserved"] is None for of in row["strategies"].values())
        return (0 if row["name"] in deciding else 1 if fails else 2 if row["outlier"] else 3, index)

    return sorted(sorted(range(len(rows)), key=importance)[:most])


def _ranks(judged: dict[str, Any], rows: list[dict[str, Any]]) -> Table:
    job = judged["job"]
    strategies = list(job["strategies"])
    name = ours(job) or EXPANDABLE
    sought = any(row["sought"] for row in rows)
    held = [(f"{strategy}\nGiB", "") for strategy in strategies]
    steps = [(f"{strategy}\nstep", "") for strategy in dict.fromkeys((EXPANDABLE, name))] if sought else []
    table = _table(
        ("rank", "left"), ("device", "left"), ("live\nGiB", ""), ("recorded\nGiB", ""), *held, *steps, ("", "left")
    )
    marks = _marks(job)
    for row in rows:
        of: Callable[[str], dict[str, Any]] = row["strategies"].__getitem__
        recorded = row["recorded_reserved"] if row["reserved_before"] == 0 else None
        step = [times(_step(row, strategy)) for strategy in dict.fromkeys((EXPANDABLE, name))] if sought else []
        unlike = f"[yellow]unlike: {_unlike(row)}[/]" if row["outlier"] else ""
        table.add_row(
            escape(row["name"]),
            escape(row["device"]),
            gib(row["peak_live"]),
            "–" if recorded is None else gib(recorded),
            *(gib(of(strategy)["reserved"]) for strategy in strategies),
            *step,
            "; ".join(filter(None, (escape(marks.get(row["name"], "")), unlike))),
        )
    return table


def _unlike(row: dict[str, Any]) -> str:
    """Returns the figures in which a rank is an outlier. Each kind of figure appears once, with all its strategies."""
    kinds: dict[str, list[str]] = {}
    for one in row["outlier"]:
        strategy, _, kind = one["figure"].rpartition(" ")
        kinds.setdefault(kind, []).append(strategy)
    all_of_them = len(row["strategies"])
    return ", ".join(
        kind if len(of) in (0, all_of_them) or of == [""] else f"{kind} ({', '.join(of)})" for kind, of in kinds.items()
    )


def _step(row: dict[str, Any], strategy: str) -> float | None:
    return (row["strategies"][strategy]["largest_step"] or 0.0) if row["grows"] and row["sought"] else None


def _marks(job: dict[str, Any]) -> dict[str, str]:
    """Returns a remark for each deciding rank, with the strategies for which the rank decides."""
    deciding: dict[str, list[str]] = {}
    for strategy, figures in job["strategies"].items():
        if figures["decides"]:
            deciding.setdefault(figures["decides"]["name"], []).append(strategy)
    whole = len(job["strategies"])
    return {name: "decides" if len(of) == whole else f"decides with {', '.join(of)}" for name, of in deciding.items()}

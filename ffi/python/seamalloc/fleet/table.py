"""A job as text: by strategy, in sentences, and by rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .._report import in_units
from .job import BASELINES, EXPANDABLE, NATIVE

# Characters in a line where nobody says how wide the paper is.
WIDTH = 160
# Broken files that are named.
MOST_BROKEN = 20
GIB = 1 << 30


def show(judged: dict[str, Any], most_rows: int, console: Console | None = None) -> None:
    """Prints a job; at most so many of its ranks, or all where that is 0."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(WIDTH, console.width), file=console.file)
    job, rows = judged["job"], judged["ranks"]
    if rows:
        console.print(_strategies(job))
        for sentence in sentences(judged):
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


def ours(job: dict[str, Any]) -> str | None:
    """The strategy that is compared with PyTorch's: stitch, or another."""
    others = [name for name in job["strategies"] if name not in (NATIVE, EXPANDABLE)]
    return "stitch" if "stitch" in others else others[-1] if others else None


def gib(size: int | None) -> str:
    return "too much" if size is None else f"{size / GIB:,.2f}"


def times(step: float | None) -> str:
    return "–" if step is None else "none" if step == 0 else f"x{step:.2f}" if step < 100 else f"x{step:.0f}"


def _signed(size: int) -> str:
    return f"{'-' if size < 0 else ''}{in_units(abs(size))}"


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    for name, justify in columns:
        table.add_column(name, justify="left" if justify == "left" else "right", overflow="fold")
    return table


def _strategies(job: dict[str, Any]) -> Table:
    words = ("strategy", "left"), ("all ranks\nGiB", ""), ("least\nGiB", ""), ("median\nGiB", ""), ("most\nGiB", ""), ("used", "")
    more = ("largest\nstep", ""), ("decided by", "left"), ("less than\nnative", ""), ("less than\nexpandable", ""), ("runs", "")
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
            *("–" if name == of else _signed(figures["saves"][key]["bytes"]) for key, of in BASELINES.items()),
            f"{figures['runs']} of {job['ranks']}",
        )
    return table


def sentences(judged: dict[str, Any]) -> list[str]:
    """What the figures say."""
    job = judged["job"]
    files = f"{_ranks_of(job['ranks'])} in {job['files']} files, {job['broken']} broken; live {in_units(job['live'])} in all."
    devices = ", ".join(f"{name} ({count})" for name, count in job["devices"].items())
    said = [f"{files} Devices: {devices}."]
    name = ours(job) or EXPANDABLE
    for strategy in dict.fromkeys((NATIVE, EXPANDABLE, name)):
        said.append(f"With {strategy}, {_deciding(job['strategies'][strategy]['decides'])}.")
    for baseline, saved in job["strategies"][name]["saves"].items():
        if name != BASELINES[baseline]:
            said.append(_saved(name, baseline, saved))
    recorded = job["strategies"][name]["saves_recorded"]
    if recorded["ranks"]:
        more = "less" if recorded["bytes"] >= 0 else "more"
        size = in_units(abs(recorded["bytes"]))
        said.append(f"{name} would hold {size} {more} than PyTorch held when it was recorded, on {_ranks_of(recorded['ranks'])}.")
    if job["outliers"]:
        said.append(f"{_ranks_of(job['outliers'])} unlike the others: {job['outlier_rule']}.")
    return said


def _ranks_of(count: int) -> str:
    return "1 rank" if count == 1 else f"{count:,} ranks"


def _deciding(decides: dict[str, Any]) -> str:
    near = f" (and {decides['as_near']} as near)" if decides["as_near"] else ""
    if decides["reserved"] is None:
        return f"{decides['name']} does not run on {decides['device']}{near}"
    by = f"its steps can be {times(decides['largest_step'])}" if decides["largest_step"] is not None else "it has least left"
    return f"{decides['name']} decides the batch size{near}: {by}, {in_units(decides['free'])} free of {in_units(decides['capacity'])}"


def _saved(name: str, baseline: str, saved: dict[str, Any]) -> str:
    more = "less" if saved["bytes"] >= 0 else "more"
    text = f"{name} holds {in_units(abs(saved['bytes']))} {more} than {baseline} on {_ranks_of(saved['ranks'])}"
    on_decider = saved["bytes_on_deciding_rank"]
    if on_decider is not None:
        text += f", {_signed(on_decider)} of it on {saved['deciding_rank']}, which decides with {baseline}"
    if saved["step_ratio"] is not None:
        change = (saved["step_ratio"] - 1) * 100
        larger = f"{abs(change):.1f}% {'larger' if change > 0 else 'smaller'}" if abs(change) >= 0.05 else "as large"
        text += f"; the job's largest step is {larger}"
    return f"{text}."


def most_telling(judged: dict[str, Any], most: int) -> list[int]:
    """Which rows to show, in their order: those that decide or do not run, outliers, then the first ones."""
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
    table = _table(("rank", "left"), ("device", "left"), ("live\nGiB", ""), ("recorded\nGiB", ""), *held, *steps, ("", "left"))
    marks = _marks(job)
    for row in rows:
        of: Callable[[str], dict[str, Any]] = row["strategies"].__getitem__
        recorded = row["recorded_reserved"] if row["reserved_before"] == 0 else None
        step = [times(_step(row, strategy)) for strategy in dict.fromkeys((EXPANDABLE, name))] if sought else []
        unlike = f"[yellow]unlike: {_unlike(row)}[/]" if row["outlier"] else ""
        table.add_row(
            escape(row["name"]),
            row["device"],
            gib(row["peak_live"]),
            "–" if recorded is None else gib(recorded),
            *(gib(of(strategy)["reserved"]) for strategy in strategies),
            *step,
            "; ".join(filter(None, (marks.get(row["name"], ""), unlike))),
        )
    return table


def _unlike(row: dict[str, Any]) -> str:
    """In which figures a rank is unlike the others: of a kind of figure once, and all its strategies together."""
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
    """Which rank decides, with which strategies."""
    deciding: dict[str, list[str]] = {}
    for strategy, figures in job["strategies"].items():
        if figures["decides"]:
            deciding.setdefault(figures["decides"]["name"], []).append(strategy)
    whole = len(job["strategies"])
    return {name: "decides" if len(of) == whole else f"decides with {', '.join(of)}" for name, of in deciding.items()}

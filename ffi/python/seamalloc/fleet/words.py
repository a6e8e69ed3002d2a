"""Puts the figures of a job into sentences."""

from __future__ import annotations

from typing import Any

from .._report import in_units

# PyTorch's own allocators, which `whatif` replays beside any other strategy.
NATIVE, EXPANDABLE = "caching", "expandable"
BASELINES = {"native": NATIVE, "expandable": EXPANDABLE}


def ours(job: dict[str, Any]) -> str | None:
    """Returns the strategy that is compared with PyTorch's allocators: stitch, or the last other strategy, or None."""
    others = [name for name in job["strategies"] if name not in (NATIVE, EXPANDABLE)]
    return "stitch" if "stitch" in others else others[-1] if others else None


def times(step: float | None) -> str:
    """Formats a factor for readers. The search for larger steps stops at 8."""
    return "–" if step is None else "none" if step == 0 else f"x{step:.2f}" if step < 8 else "x8 or more"


def signed(size: int) -> str:
    return f"{'-' if size < 0 else ''}{in_units(abs(size))}"


def sentences(job: dict[str, Any]) -> list[str]:
    """Puts the figures of a job into sentences, the verdict first."""
    files = f"{_ranks_of(job['ranks'])} in {job['files']} files, {job['broken']} broken"
    devices = ", ".join(f"{name} ({count})" for name, count in job["devices"].items())
    said = [*verdict(job), f"{files}; live {in_units(job['live'])} in all. Devices: {devices}."]
    name = ours(job) or EXPANDABLE
    for strategy in dict.fromkeys((NATIVE, EXPANDABLE, name)):
        said.append(f"With {strategy}, {_deciding(job['strategies'][strategy]['decides'])}.")
    for baseline, saved in job["strategies"][name]["saves"].items():
        if name != BASELINES[baseline] and saved["ranks"]:
            said.append(_saved(name, baseline, saved))
    recorded = job["strategies"][name]["saves_recorded"]
    if recorded["ranks"]:
        said.append(
            f"{name} would hold {_compared(recorded['bytes'])} than PyTorch held when it was recorded, "
            f"on {_ranks_of(recorded['ranks'])}."
        )
    if job["outliers"]:
        said.append(f"{_ranks_of(job['outliers'])} unlike the others: {job['outlier_rule']}.")
    return said


def verdict(job: dict[str, Any]) -> list[str]:
    """Returns the verdict on the worst rank, and advice."""
    found = job["verdict"]
    if found is None:
        return []
    alike = f"{found['name']}, and {found['ranks'] - 1} of {job['ranks'] - 1} more ranks alike"
    who = alike if found["ranks"] > 1 else found["name"]
    return [f"{found['text']} ({who})", f"Next: {found['next']}"]


def _ranks_of(count: int) -> str:
    return "1 rank" if count == 1 else f"{count:,} ranks"


def _deciding(decides: dict[str, Any]) -> str:
    others = decides["as_near"]
    if decides["reserved"] is None:
        more = f" (nor do {others} more)" if others else ""
        return f"{decides['name']} does not run on {decides['device']}{more}"
    near = f" (and {others} within 1%)" if others else ""
    if decides["capacity"] is None:
        held = in_units(decides["reserved"])
        return f"{decides['name']} decides the batch size{near}: it holds most, {held}; its device is unknown (--device)"
    by = (
        f"its steps can be {times(decides['largest_step'])}"
        if decides["largest_step"] is not None
        else "it has least left"
    )
    free = f"{in_units(decides['free'])} free of {in_units(decides['capacity'])}"
    return f"{decides['name']} decides the batch size{near}: {by}, {free}"


def _compared(saved: int) -> str:
    return f"{in_units(abs(saved))} {'less' if saved >= 0 else 'more'}"


def _saved(name: str, baseline: str, saved: dict[str, Any]) -> str:
    text = f"{name} holds {_compared(saved['bytes'])} than {baseline} on {_ranks_of(saved['ranks'])}"
    on_decider = saved["bytes_on_deciding_rank"]
    if on_decider is not None:
        # If the signs are equal, the rank's bytes are a part of the sum.
        is_part = (on_decider < 0) == (saved["bytes"] < 0)
        size = f"{in_units(abs(on_decider))} of it" if is_part else f"but {_compared(on_decider)}"
        text += f", {size} on {saved['deciding_rank']}, which decides with {baseline}"
    if saved["step_ratio"] is not None:
        change = (saved["step_ratio"] - 1) * 100
        larger = f"{abs(change):.1f}% {'larger' if change > 0 else 'smaller'}" if abs(change) >= 0.05 else "as large"
        text += f"; the job's largest step is {larger}"
    return f"{text}."

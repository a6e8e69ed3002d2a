"""What the figures of a job say, in sentences."""

from __future__ import annotations

from typing import Any

from .._report import in_units

# PyTorch's own allocators, which `whatif` replays beside any other strategy.
NATIVE, EXPANDABLE = "caching", "expandable"
BASELINES = {"native": NATIVE, "expandable": EXPANDABLE}


def ours(job: dict[str, Any]) -> str | None:
    """The strategy that is compared with PyTorch's: stitch, or another."""
    others = [name for name in job["strategies"] if name not in (NATIVE, EXPANDABLE)]
    return "stitch" if "stitch" in others else others[-1] if others else None


def times(step: float | None) -> str:
    return "–" if step is None else "none" if step == 0 else f"x{step:.2f}" if step < 100 else f"x{step:.0f}"


def signed(size: int) -> str:
    return f"{'-' if size < 0 else ''}{in_units(abs(size))}"


def sentences(job: dict[str, Any]) -> list[str]:
    """What the figures of a job say."""
    files = f"{_ranks_of(job['ranks'])} in {job['files']} files, {job['broken']} broken"
    devices = ", ".join(f"{name} ({count})" for name, count in job["devices"].items())
    said = [f"{files}; live {in_units(job['live'])} in all. Devices: {devices}."]
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
        said.append(
            f"{name} would hold {size} {more} than PyTorch held when it was recorded, "
            f"on {_ranks_of(recorded['ranks'])}."
        )
    if job["outliers"]:
        said.append(f"{_ranks_of(job['outliers'])} unlike the others: {job['outlier_rule']}.")
    return said


def _ranks_of(count: int) -> str:
    return "1 rank" if count == 1 else f"{count:,} ranks"


def _deciding(decides: dict[str, Any]) -> str:
    near = f" (and {decides['as_near']} as near)" if decides["as_near"] else ""
    if decides["reserved"] is None:
        return f"{decides['name']} does not run on {decides['device']}{near}"
    by = (
        f"its steps can be {times(decides['largest_step'])}"
        if decides["largest_step"] is not None
        else "it has least left"
    )
    free = f"{in_units(decides['free'])} free of {in_units(decides['capacity'])}"
    return f"{decides['name']} decides the batch size{near}: {by}, {free}"


def _saved(name: str, baseline: str, saved: dict[str, Any]) -> str:
    more = "less" if saved["bytes"] >= 0 else "more"
    text = f"{name} holds {in_units(abs(saved['bytes']))} {more} than {baseline} on {_ranks_of(saved['ranks'])}"
    on_decider = saved["bytes_on_deciding_rank"]
    if on_decider is not None:
        text += f", {signed(on_decider)} of it on {saved['deciding_rank']}, which decides with {baseline}"
    if saved["step_ratio"] is not None:
        change = (saved["step_ratio"] - 1) * 100
        larger = f"{abs(change):.1f}% {'larger' if change > 0 else 'smaller'}" if abs(change) >= 0.05 else "as large"
        text += f"; the job's largest step is {larger}"
    return f"{text}."

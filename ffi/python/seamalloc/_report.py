"""Formats the figures of an allocator as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def in_units(size: int) -> str:
    """Returns a size in bytes as text with a unit."""
    for unit, bytes_of_it in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= bytes_of_it:
            return f"{size / bytes_of_it:,.2f} {unit}"
    return f"{size} B"


def milliseconds(nanoseconds: int) -> str:
    """Returns a time in nanoseconds as text in milliseconds."""
    return f"{nanoseconds / 1e6:.2f} ms"


def spills_of(stats: dict[str, Any]) -> str:
    found, spills = stats["spilled_bytes"], stats["spills"]
    spent = milliseconds(spills["total_ns"])
    kept = f", {in_units(spills['kept_bytes'])} kept for the next time" if spills["kept_bytes"] else ""
    return f"{in_units(found['current'])} in host memory, at most {in_units(found['peak'])}{kept}; {spent}"


def splits_of(splits: dict[str, int]) -> str:
    return f"{splits['chunks']} into {splits['parts']}, {in_units(splits['copied_bytes'])} copied"


def pending_waits_of(waits: dict[str, int]) -> str:
    total, worst = milliseconds(waits["total_ns"]), milliseconds(waits["worst_ns"])
    expired = f", {waits['expired']} times too short" if waits["expired"] else ""
    return f"{waits['requests']} requests, {total}, at most {worst}{expired}"


def strategy_of(stats: Mapping[str, Any]) -> str:
    """Returns the name of the strategy and why it replaces the requested one."""
    return f"{stats['strategy']}, since the device has too few addresses or no virtual memory, which {stats['instead_of']} needs"


def headroom_of(headroom: dict[str, int]) -> str:
    """Returns the line about memory that was given back because other programs needed it."""
    given = in_units(headroom["yielded_bytes"])
    return f"short {headroom['short']} times at {headroom['looks']} looks; {given} went back in {headroom['yields']} steps"


def text_of(device: str, stats: Mapping[str, Any], fragmentation: Mapping[str, Any]) -> str:
    """Returns the report of one device."""
    live, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    active, pending = stats["active_bytes"]["all"], stats["pending_waits"]
    used = 100 * live["peak"] / reserved["peak"] if reserved["peak"] else 100.0
    rows = [
        ("in use", f"{in_units(live['current'])}, at most {in_units(live['peak'])}"),
        ("waiting for streams", in_units(active["current"] - live["current"])),
        ("held of the device", f"{in_units(reserved['current'])}, at most {in_units(reserved['peak'])}"),
        ("peak in use / peak held", f"{used:.2f}%"),
        ("largest request that fits in what is held", in_units(fragmentation["largest_reachable"])),
        ("views", f"{stats['views']} now, {stats['views_built']} built, {stats['views_reused']} requests met by one"),
        ("mappings", f"{stats['mappings']}, of them {stats['view_mappings']} in views"),
        ("waits between streams", f"{stats['stream_waits']} on the GPU, {stats['num_sync_all_streams']} on the CPU"),
        *([("waits for freed memory", pending_waits_of(pending))] if pending["requests"] else []),
        *([("chunks split", splits_of(stats["splits"]))] if stats["splits"]["chunks"] else []),
        *([("headroom", headroom_of(stats["headroom"]))] if stats["headroom"]["short"] else []),
        *([("spilled", spills_of(stats))] if stats["spills"]["chunks"] else []),
        ("requests that failed", str(stats["num_ooms"])),
        (
            "time in the driver",
            f"{milliseconds(stats['stall_total_ns'])}, at most {milliseconds(stats['stall_worst_ns'])} at once",
        ),
        *([("strategy", strategy_of(stats))] if stats["instead_of"] else []),
        ("options", stats["options"] or "defaults"),
    ]
    guard = stats["guard"]
    if guard["guarded"] or guard["findings"]:
        rows += [
            ("allocations guarded", f"{guard['guarded']}, {guard['unguarded']} went without"),
            ("addresses in quarantine", f"{in_units(guard['quarantined_bytes'])} of {guard['quarantined']}"),
            ("mistakes found", str(guard["findings"])),
        ]
    width = max(len(name) for name, _ in rows)
    head = f"seamalloc, device {device} ({stats['device']})"
    return "\n".join([head, *(f"  {name:<{width}}  {value}" for name, value in rows)])

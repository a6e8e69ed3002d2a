"""Converts options in Python's form to the library's list: `memory_limit="80GiB"` becomes `memory_limit:80GiB`."""

from __future__ import annotations

from collections.abc import Mapping


def _value(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_value, value)) + "]"
    if isinstance(value, dict):
        return "[" + ",".join(f"{key}:{_value(item)}" for key, item in value.items()) + "]"
    return str(value)


def join(environment: str | None, options: Mapping[str, object]) -> str:
    """Returns the list of the environment variable, followed by the options. If an option appears twice, the last one
    counts. An option that is None is left out."""
    parts = [f"{key}:{_value(value)}" for key, value in options.items() if value is not None]
    return ",".join(part for part in [environment or "", *parts] if part)

"""Text from outside, for people: names of files, devices and categories may hold anything."""

from __future__ import annotations

import re

# Characters that a terminal interprets instead of showing them: controls, ends of lines, marks of direction. Lone
# surrogates are the bytes of a name that is no UTF-8, which no output can encode.
_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHORT = {"\n": "\\n", "\t": "\\t"}


def printable(text: str) -> str:
    """Text for a terminal, in which what it would obey is escaped as the program `seamalloc` does: `\\u001b`."""
    return _OBEYED.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """Lines for a terminal, each as `printable` has it."""
    return "\n".join(map(printable, text.split("\n")))


def encodable(text: str) -> str:
    """Returns the text so that JSON and UTF-8 can have it: bytes of a name that are no UTF-8 are escaped."""
    return _SURROGATE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}"

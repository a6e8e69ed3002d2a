"""Makes text from outside safe to print. Names of files, devices and categories may contain any character."""

from __future__ import annotations

import re

# Characters that a terminal interprets: control characters, line ends and direction marks. Lone surrogates are
# included: a surrogate stands for a byte of a name that is not UTF-8, and no output can encode surrogates.
_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHORT = {"\n": "\\n", "\t": "\\t"}


def printable(text: str) -> str:
    """Returns text for a terminal, with characters that the terminal would interpret escaped as `\\u001b`. The program
    `seamalloc` escapes text in the same way."""
    return _OBEYED.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """Returns lines for a terminal, each escaped by `printable`."""
    return "\n".join(map(printable, text.split("\n")))


def encodable(text: str) -> str:
    """Returns text that JSON and UTF-8 can hold: bytes of a name that are not UTF-8 are escaped."""
    return _SURROGATE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}"

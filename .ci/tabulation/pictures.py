"""The pictures of the documentation that the command itself makes.

Owns: which they are, and what of them must agree.
"""

import html
import re
from dataclasses import dataclass

from .runs import DRAWN

# Where each stands, and what the run that makes it calls it.
NAMES = ["stress.svg", "chunk-sizes.svg", "run-ahead.svg", *(f"{name}.svg" for name in DRAWN)]
# The one of which the words must agree: it has a time by the machine's clock.
BY_WORDS = ["plan.svg"]
PICTURES = {f"docs/{name}": name for name in NAMES}
TEXT = re.compile(r"<text[^>]*>(.*?)</text>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")
WIDTH = re.compile(r"─+| +")


@dataclass
class Picture:
    """A picture that differs, with the bytes that it should have."""

    path: str
    new: bytes


def words(picture):
    """Returns the lines of text in a picture of a table, without widths of columns."""
    text = "\n".join(html.unescape(TAG.sub("", text)) for text in TEXT.findall(picture.decode()))
    return [WIDTH.sub(lambda run: run[0][0], line.rstrip()) for line in text.split("\n")]


def changed(root, runs):
    """Returns the pictures that are not as this version makes them."""
    found = []
    for path, name in PICTURES.items():
        old, new = (root / path).read_bytes(), (runs.folder / name).read_bytes()
        same = words(old) == words(new) if name in BY_WORDS else old == new
        if not same:
            found.append(Picture(path, new))
    return found

"""Tables in Markdown, and their places in pages.

Owns: the markers, and how a table and its figures are written.
"""

import difflib
import re

BEGIN, END = "<!-- table: {} -->", "<!-- end -->"
FLAGS = re.DOTALL | re.MULTILINE
PLACE = re.compile(r"^<!-- table: (?P<name>[^ ]+) -->\n(?P<table>.*?)^<!-- end -->$", FLAGS)
HALF = re.compile(r"^<!-- (?:table:.*|end) -->", re.MULTILINE)


def table(head, alignment, lines):
    """A table; `alignment` has a letter for each column: l, or r for figures."""
    rows = [head, ["---:" if side == "r" else "---" for side in alignment], *lines]
    assert all(len(row) == len(head) for row in rows), "a row has as many cells as the head"
    written = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    written[1] = written[1].replace(" ", "")
    return "\n".join(written) + "\n"


def filled(text, tables, page):
    """The page with its tables as they are, and the names of these."""
    names = set()

    def fill(place):
        name = place["name"]
        if name not in tables:
            raise SystemExit(f"{page}: no table is called {name}; there are {', '.join(sorted(tables))}")
        names.add(name)
        return f"{BEGIN.format(name)}\n{tables[name]}{END}"

    new = PLACE.sub(fill, text)
    # Every marker is one of a pair, else a table would go unlooked at.
    if len(HALF.findall(text)) != 2 * len(PLACE.findall(text)):
        raise SystemExit(f"{page}: a marker of a table without its other half; expected {BEGIN.format('NAME')} … {END}")
    return new, names


def differences(old, new, page):
    """The lines that differ, for people."""
    names = f"{page}, as it is", f"{page}, as it should be"
    return list(difflib.unified_diff(old.splitlines(), new.splitlines(), *names, n=0, lineterm=""))


def percent(part):
    """Returns a part as a percentage: "73.26%" for 0.7326."""
    return f"{100 * part:.2f}%"


def percents(*parts):
    """Returns several parts as percentages with one sign."""
    return ", ".join(f"{100 * part:.2f}" for part in parts) + "%"


def above(part):
    """Returns a part as a percentage with its sign: "+0.56%" for 0.0056."""
    return f"{100 * part:+.2f}%"


def gib(size):
    """Returns bytes in GiB."""
    return f"{size / (1 << 30):.2f}"


def ms(us):
    """Returns microseconds in milliseconds: one digit behind the point, from 100 on none."""
    value = us / 1e3
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def short(us):
    """Returns microseconds in milliseconds: from 10 on without digits behind the point."""
    value = us / 1e3
    return f"{value:.1f}" if round(value, 1) < 10 else f"{value:.0f}"

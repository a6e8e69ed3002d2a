"""Rust source text, as far as it takes to find the body of a function."""

import bisect
import re

# A comment, a literal, or a lifetime, which begins like a character. Block comments do not nest in this project.
QUIET = re.compile(
    r"""//[^\n]* | /\*.*?\*/
      | (?<!\w)[bc]?r(?P<hashes>\#*)".*?"(?P=hashes)
      | (?<!\w)[bc]?"(?:\\.|[^"\\])*"
      | (?P<lifetime>'[A-Za-z_]\w*(?!'))
      | (?<!\w)b?'(?:\\.[^']*|[^'\\])'""",
    re.VERBOSE | re.DOTALL,
)
CLOSES = {"(": ")", "[": "]", "{": "}"}


def masked(text):
    """Returns the text with spaces for comments and literals, at the same offsets. Braces in it are code."""
    blank = lambda found: re.sub(r"[^\n]", " ", found[0]) if found["lifetime"] is None else found[0]
    return QUIET.sub(blank, text)


class Source:
    """A file, addressed by line and column, both from 1, or by offset."""

    def __init__(self, text):
        self.text = text
        self.code = masked(text)
        self.lines = [0] + [found.end() for found in re.finditer("\n", text)]

    def offset(self, line, column):
        return self.lines[line - 1] + column - 1

    def line_of(self, offset):
        return bisect.bisect_right(self.lines, offset)

    def span(self, of):
        """Returns the offsets of a span as cargo-mutants writes it."""
        return tuple(self.offset(of[end]["line"], of[end]["column"]) for end in ("start", "end"))

    def body(self, start, end):
        """Returns the offsets of the body of the function in a range, its braces included. A signature has no braces."""
        depth = 0
        for at in range(start, end):
            char = self.code[at]
            if char in "([":
                depth += 1
            elif char in ")]":
                depth -= 1
            elif char == "{" and depth == 0:
                return at, self.closing(at)
        raise ValueError(f"no body in line {self.line_of(start)}")

    def closing(self, at):
        """Returns the offset behind the bracket that closes the one at `at`."""
        opens, closes, depth = self.code[at], CLOSES[self.code[at]], 0
        for here in range(at, len(self.code)):
            depth += (self.code[here] == opens) - (self.code[here] == closes)
            if depth == 0:
                return here + 1
        raise ValueError(f"the bracket in line {self.line_of(at)} is not closed")

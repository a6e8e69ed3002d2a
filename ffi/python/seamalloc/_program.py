"""The program `seamalloc` that the package carries."""

from __future__ import annotations

from pathlib import Path

PROGRAM = Path(__file__).resolve().parent / "bin" / "seamalloc"


def missing(command: str) -> str:
    """The message for a package that was built without the program."""
    return (
        f"{command}: this package was built without the program for all but `run` ({PROGRAM}). Install a released wheel, or in "
        "the repository: cargo install --locked --path crates/cli"
    )

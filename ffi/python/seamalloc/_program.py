"""The bundled program `seamalloc`."""

from __future__ import annotations

from pathlib import Path

PROGRAM = Path(__file__).resolve().parent / "bin" / "seamalloc"


def missing(command: str) -> str:
    """Returns the message for a package that was built without the bundled program."""
    return (
        f"{command}: this package was built without the program for all but `run` ({PROGRAM}). Install a released wheel, or in "
        "the repository: cargo install --locked --path crates/cli"
    )

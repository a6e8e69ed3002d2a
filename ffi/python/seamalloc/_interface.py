"""The parts of PyTorch that a compiled shim depends on: its version, and the headers of its allocator interface.

This module imports no other module of this package, so that the command that builds the wheel's shims can use it
without the C library.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

# The oldest and the newest minor version of PyTorch against whose headers the shim was compiled.
OLDEST, NEWEST = (2, 6), (2, 15)
# The first version whose headers need C++20.
CXX20 = (2, 14)


def minor_version(text: str) -> tuple[int, int]:
    """Returns the major and minor number of a version such as "2.11.0+cu130"."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def flags(version: tuple[int, int], cxx11_abi: bool) -> list[str]:
    """Returns the compiler's flags for the shim, without folders, sources and libraries."""
    major, minor = version
    return [
        "-std=c++20" if version >= CXX20 else "-std=c++17",
        "-O2",
        "-fPIC",
        "-shared",
        # Only three functions are exported. The process keeps using the classes of PyTorch's own libraries.
        "-fvisibility-inlines-hidden",
        f"-DSEAMALLOC_TORCH={major * 100 + minor}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(cxx11_abi)}",
    ]


def digest(include: Path, headers: Iterable[str]) -> str:
    """Returns the digest of headers, by their names relative to the folder `include`. Raises OSError if a header is
    missing."""
    found = hashlib.sha256()
    for name in headers:
        found.update(name.encode() + b"\0" + (include / name).read_bytes() + b"\0")
    return found.hexdigest()

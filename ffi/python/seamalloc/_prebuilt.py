"""The compiled shims that the wheel contains for the PyTorch versions known when it was built.

`prebuilt/manifest.json` lists the shims, each with the C++ ABI and a digest of the PyTorch headers that it includes. A
shim fits every PyTorch with the same C++ ABI and the same digest of these headers. A PyTorch without headers fits by
its version.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ._compiler import torch_include
from ._interface import digest
from ._unavailable import UnavailableError

FOLDER = Path(__file__).resolve().parent / "prebuilt"


def find(torch: Any) -> Path | None:
    """Returns the shim that fits this PyTorch, or None."""
    try:
        manifest = json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))
        # The likely entry comes first, so that most digests need not be computed.
        manifest.sort(key=lambda one: _public_version(torch) not in one["torch"])
        return next((FOLDER / one["library"] for one in manifest if _fits(one, torch)), None)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnavailableError(
            "load", f"{FOLDER / 'manifest.json'} cannot be read ({error!r})", "Install seamalloc anew"
        ) from error


def _public_version(torch: Any) -> str:
    return str(torch.__version__.partition("+")[0])


def _fits(one: Any, torch: Any) -> bool:
    if one["cxx11_abi"] != torch._C._GLIBCXX_USE_CXX11_ABI:
        return False
    include = torch_include(torch)
    if not (include / "c10").is_dir():
        # Some packages of PyTorch contain no headers.
        return _public_version(torch) in one["torch"]
    try:
        return bool(digest(include, one["headers"]) == one["digest"])
    except OSError:
        return False

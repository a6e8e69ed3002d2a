"""The shims that the wheel carries, compiled for the PyTorch versions of its day.

`prebuilt/manifest.json` lists them, each with the C++ ABI and a digest of the headers of PyTorch that it includes: it fits
another PyTorch too, where those are the same.
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
    """The shim that fits this PyTorch, if there is one."""
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
        # Some packages of PyTorch have no headers.
        return _public_version(torch) in one["torch"]
    try:
        return bool(digest(include, one["headers"]) == one["digest"])
    except OSError:
        return False

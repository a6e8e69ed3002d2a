"""Enables seamalloc for all libraries that a program has imported, with one cache."""

from __future__ import annotations

import sys
from importlib import import_module

from . import _memory, _switch
from ._unavailable import LibraryError

# The module of this package for each library, by the library's import name.
LIBRARIES = {
    "cupy": "cupy",
    "numba.cuda": "numba",
    "rmm": "rmm",
    "cuda.core": "cuda_core",
    "triton": "triton",
}


def enable_all(**options: object) -> list[str]:
    """Makes seamalloc the allocator of the imported libraries among PyTorch, CuPy, Numba, RMM, cuda.core and Triton.
    All of them share one cache and one limit. Takes the options of `seamalloc.enable`. Returns the names of the enabled
    modules, "torch" first.

    Call this function after the imports and before CUDA is used. Raises the errors of the modules' `enable`. Modules
    enabled before the one that failed stay enabled. A cuda.core that is too old is left out, since other libraries
    import it.
    """
    done: list[str] = []
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.cuda is not None:
        if _switch.enabled() is None:
            _switch.enable(**options)  # type: ignore[arg-type]
        else:
            # `begin` raises an error if the options differ from PyTorch's.
            _memory.begin("PyTorch", options)
        done.append("torch")
    for name, module in LIBRARIES.items():
        if name in sys.modules:
            try:
                import_module(f".{module}", __package__).enable(**({} if done else options))
            except LibraryError as error:
                # Other libraries import cuda.core themselves, so the program may not know of it.
                if (error.cause, module) == ("version", "cuda_core"):
                    continue
                raise
            done.append(module)
    return done

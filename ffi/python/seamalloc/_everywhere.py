"""All libraries that a program has imported, over one memory."""

from __future__ import annotations

import sys
from importlib import import_module

from . import _memory, _switch
from ._unavailable import LibraryError

# Each library by its import name, and its module here.
LIBRARIES = {
    "cupy": "cupy",
    "numba.cuda": "numba",
    "rmm": "rmm",
    "cuda.core": "cuda_core",
    "triton": "triton",
}


def enable_all(**options: object) -> list[str]:
    """Makes seamalloc the allocator of PyTorch, CuPy, Numba, RMM, cuda.core and Triton, as far as they are imported: over
    the same memory, and one limit. Options are those of `enable`, which PyTorch's are too. Returns the names of the modules
    that were enabled, "torch" first.

    Call it behind the imports and before CUDA is used. What is enabled already stays so. Raises what the modules'
    `enable` do; those before it are enabled then. Leaves out a cuda.core that is too old, since others import it.
    """
    done: list[str] = []
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.cuda is not None:
        if _switch.enabled() is None:
            _switch.enable(**options)  # type: ignore[arg-type]
        else:
            # An error if the options differ from PyTorch's.
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

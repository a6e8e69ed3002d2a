"""Why seamalloc cannot be PyTorch's allocator, and what to do then."""

from __future__ import annotations


class UnavailableError(RuntimeError):
    """seamalloc cannot be PyTorch's allocator with all that PyTorch's own does. The text says why, and the remedy.

    `cause` is one of
    "torch" (PyTorch cannot be imported), "cpu-build" (it is built without CUDA), "too-late" (CUDA is in use),
    "no-caching" (PYTORCH_NO_CUDA_MEMORY_CACHING is set), "version" (the shim does not compile for this PyTorch),
    "headers" (of PyTorch or CUDA are missing), "compiler" (there is none, or it fails), "cache" (no folder to keep the
    compiled shim in), "load" (the shim is there and cannot be loaded), "refused" (PyTorch does not take it).
    """

    def __init__(self, cause: str, what: str, remedy: str, details: str = "") -> None:
        # All arguments are passed, so that the error can be sent to another process.
        super().__init__(cause, what, remedy, details)
        self.cause = cause
        self.what = what
        self.remedy = remedy
        self.details = details

    def __str__(self) -> str:
        text = (
            f"seamalloc cannot be PyTorch's allocator: {self.what}. {self.remedy}. To go on with PyTorch's own allocator "
            'then, ask for fallback="pytorch" (SEAMALLOC_FALLBACK=pytorch)'
        )
        return f"{text}\n{self.details}" if self.details else text

    def __repr__(self) -> str:
        return f"UnavailableError({self.cause!r}, {self.what!r})"


class LibraryError(RuntimeError):
    """seamalloc cannot be the allocator of another library than PyTorch. The text says why, and the remedy.

    `cause` is one of "missing" (the library cannot be imported), "version" (it is too old, or too new), "no-cuda" (there is
    no driver), "too-late" (what is asked for had to be asked for before), "ipc" (its memory cannot go to other processes).
    """

    def __init__(self, cause: str, library: str, what: str, remedy: str) -> None:
        # All arguments are passed, so that the error can be sent to another process.
        super().__init__(cause, library, what, remedy)
        self.cause = cause
        self.library = library
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"seamalloc cannot be the allocator of {self.library}: {self.what}. {self.remedy}"

    def __repr__(self) -> str:
        return f"LibraryError({self.cause!r}, {self.library!r}, {self.what!r})"

"""The errors that say why seamalloc cannot be used as an allocator, with the remedy."""

from __future__ import annotations


class UnavailableError(RuntimeError):
    """Raised if seamalloc cannot be PyTorch's allocator with all functions of PyTorch's own. The text has the reason
    and the remedy.

    `cause` is one of "torch" (PyTorch cannot be imported), "cpu-build" (PyTorch is built without CUDA), "too-late"
    (CUDA is in use), "no-caching" (PYTORCH_NO_CUDA_MEMORY_CACHING is set), "version" (the shim does not compile for
    this PyTorch), "headers" (headers of PyTorch or CUDA are missing), "compiler" (the compiler is missing or fails),
    "cache" (the compiled shim cannot be kept in a folder), "load" (the shim exists and cannot be loaded), "refused"
    (PyTorch does not accept the allocator).
    """

    def __init__(self, cause: str, what: str, remedy: str, details: str = "") -> None:
        # All arguments are passed, so that the error can be pickled and sent to another process.
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
    """Raised if seamalloc cannot be the allocator of a library other than PyTorch. The text has the reason and the
    remedy.

    `cause` is one of "missing" (the library cannot be imported), "version" (the library is too old or too new),
    "no-cuda" (the driver is missing), "too-late" (the request had to be made earlier), "ipc" (the memory cannot be
    shared with other processes).
    """

    def __init__(self, cause: str, library: str, what: str, remedy: str) -> None:
        # All arguments are passed, so that the error can be pickled and sent to another process.
        super().__init__(cause, library, what, remedy)
        self.cause = cause
        self.library = library
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"seamalloc cannot be the allocator of {self.library}: {self.what}. {self.remedy}"

    def __repr__(self) -> str:
        return f"LibraryError({self.cause!r}, {self.library!r}, {self.what!r})"

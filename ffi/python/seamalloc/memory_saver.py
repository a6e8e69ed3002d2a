"""The interface of torch_memory_saver over tags, for programs such as SGLang that let memory sleep through it.

    import seamalloc, seamalloc.memory_saver
    seamalloc.enable()
    seamalloc.memory_saver.install()          # before the program imports torch_memory_saver

    from torch_memory_saver import torch_memory_saver
    with torch_memory_saver.region(tag="weights", enable_cpu_backup=True): ...
    torch_memory_saver.pause("weights"); torch_memory_saver.resume("weights")

This module needs no library of torch_memory_saver and no preloading. Free memory of a region is reused by later
requests of the region, and stitched. Backups of all tags share one cache of page-locked memory.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from ctypes import byref, c_uint64
from types import ModuleType
from typing import Any

from . import _sleepers, _tags
from ._devices import current_device
from ._library import Pool, check, library, plugged
from ._switch import enabled
from ._unavailable import LibraryError

NAME = "torch_memory_saver"
DEFAULT = "default"
# The name of a tag whose contents are lost in a pause. The tag of a region with a backup has the region's own name.
LOST = "{} (no backup)"


class MemorySaver:
    """The object that programs use as `torch_memory_saver.torch_memory_saver`."""

    enabled = True
    hook_mode = "seamalloc"

    def __init__(self) -> None:
        self._regions: dict[str, set[str]] = {}
        self._mine = threading.local()

    @contextmanager
    def region(self, tag: str = DEFAULT, enable_cpu_backup: bool = False) -> Iterator[None]:
        """Makes a context: memory that this thread allocates in it can be paused."""
        name = tag if enable_cpu_backup else LOST.format(tag)
        before = getattr(self._mine, "name", None)
        with _tags.tag(name):
            self._regions.setdefault(tag, set()).add(name)
            self._mine.name = name
            try:
                yield
            finally:
                self._mine.name = before

    @contextmanager
    def disable(self, dispose_mem_pool_after_use: bool = True) -> Iterator[None]:
        """Makes a context inside a region: memory that this thread allocates in it is never paused."""
        name = getattr(self._mine, "name", None)
        if name is None:
            raise RuntimeError("disable() is for the inside of a region")
        handle, pool = _tags._of(name, None, False)
        check(library.seam_pool_end(handle, pool))
        try:
            yield
        finally:
            check(library.seam_pool_begin_thread(handle, pool, 0))

    @contextmanager
    def cuda_graph(
        self,
        cuda_graph: Any,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        tag: str = DEFAULT,
        enable_cpu_backup: bool = False,
    ) -> Iterator[None]:
        """Captures a graph as `torch.cuda.graph` does, in memory that can be paused: the graph's pool becomes a tag
        before it gets memory."""
        import torch

        pool = torch.cuda.graph_pool_handle() if pool is None else pool
        first, second = pool.id if hasattr(pool, "id") else pool
        number = current_device(None)
        name = f"{tag if enable_cpu_backup else LOST.format(tag)}, graphs ({first}, {second})"
        if (number, name) not in _tags._tags:
            check(library.seam_pool_open_tag(plugged(number), Pool(first, second)))
            _tags._tags[number, name] = Pool(first, second)
        self._regions.setdefault(tag, set()).add(name)
        with torch.cuda.graph(cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode):
            yield

    def pause(self, tag: str | None = None) -> None:
        """Gives the memory of a tag, or of all tags, back to the device. On an error all tags are unchanged, except
        that contents without a backup may be lost."""
        names = self._names(tag)
        lost = [name for name in names if LOST.format("") in name]
        _sleepers.sleep_all([name for name in names if name not in lost], lost)

    def resume(self, tag: str | None = None) -> None:
        """Gives a tag, or all tags, memory again at the same addresses."""
        _sleepers.wake_all(self._names(tag))

    @property
    def memory_margin_bytes(self) -> int:
        raise NotImplementedError("it can only be set")

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        """The bytes of device memory left to other programs. The allocator's limit is the device's memory less this
        margin."""
        handle, total = plugged(current_device(None)), c_uint64()
        check(library.seam_memory_info(handle, None, byref(total)))
        check(library.seam_set_memory_limit(handle, max(total.value - value, 0)))

    def get_cpu_backup(self, tensor: Any) -> Any:
        raise NotImplementedError("seamalloc does not lend its backups; wake the tag, or copy the tensor before the pause")

    def _names(self, tag: str | None) -> list[str]:
        if tag is not None and tag not in self._regions:
            return []
        return sorted(name for of, names in self._regions.items() if tag in (None, of) for name in names)


torch_memory_saver = MemorySaver()


def install() -> None:
    """Makes this module the one that programs import as `torch_memory_saver`. Raises `LibraryError` if the program has
    imported the real module already, or if seamalloc is not PyTorch's allocator."""
    found = sys.modules.get(NAME)
    if found is not None and not hasattr(found, "seamalloc"):
        raise LibraryError("too-late", NAME, "the real one was imported already", "Call seamalloc.memory_saver.install() before")
    if enabled() is None:
        raise LibraryError("too-late", NAME, "seamalloc is not PyTorch's allocator", "Call seamalloc.enable() before")
    module: Any = ModuleType(NAME, __doc__)
    module.torch_memory_saver, module.TorchMemorySaver, module.seamalloc = torch_memory_saver, MemorySaver, True
    module.configure_subprocess = nullcontext
    sys.modules[NAME] = module

"""seamalloc as vLLM's sleep mode: a `SleepModeBackend` and the allocator behind its tags, `weights` and `kv_cache`.

    import seamalloc; seamalloc.enable()      # before PyTorch uses CUDA, in each worker: SEAMALLOC_CONF and `seamalloc run` do that
    vllm serve MODEL --enable-sleep-mode --sleep-mode-backend seamalloc

vLLM finds it by its entry point `vllm.general_plugins`; without that, call `seamalloc.vllm.register()` before the engine is made.
A tag is all that is allocated in vLLM's context of it, and what lies free in one serves it again, stitched.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import _memory, _sleepers, _tags
from ._switch import enabled
from ._unavailable import LibraryError

NAME = "vLLM"
BACKEND = "seamalloc"
# The prefix of vLLM's tags, which separates them from a program's own tags of the same name.
PREFIX = "vllm/"


def _contract() -> Any:
    try:
        from vllm.device_allocator import sleep_mode_backend
    except ImportError as error:
        try:
            import vllm
        except ImportError:
            raise _memory.missing(NAME, error, "vllm") from error
        found = getattr(vllm, "__version__", "of an unknown version")
        what = f"this vLLM ({found}) has no sleep-mode backends"
        raise LibraryError("version", NAME, what, "Install a vLLM that has vllm.device_allocator.sleep_mode_backend") from error
    return sleep_mode_backend


class Allocator:
    """The interface of vLLM's CuMemAllocator, over tags."""

    default_tag = "default"

    @contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """Makes a context: memory that this thread allocates in it belongs to the tag."""
        with _tags.tag(PREFIX + (tag or self.default_tag)):
            yield

    def get_current_usage(self) -> int:
        """The physical memory of all tags, asleep or not."""
        return sum(of["reserved_bytes"] + of["asleep_bytes"] for name, of in _tags.tags().items() if name.startswith(PREFIX))

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        """Lets all tags sleep, those of `offload_tags` with a backup."""
        wanted = (self.default_tag,) if offload_tags is None else offload_tags
        kept = [PREFIX + tag for tag in ([wanted] if isinstance(wanted, str) else wanted)]
        names = self.names()
        _sleepers.sleep_all([name for name in names if name in kept], [name for name in names if name not in kept])

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Wakes these tags, or all."""
        _sleepers.wake_all(self.names(tags))

    def discard(self, tags: tuple[str, ...]) -> None:
        """Lets these tags sleep without a backup."""
        _sleepers.sleep_all([], self.names(tags))

    def names(self, tags: Any = None) -> list[str]:
        """The tags that exist, of those that are asked for."""
        return [name for name in _tags.tags() if name.startswith(PREFIX) and (tags is None or name[len(PREFIX) :] in tags)]


allocator = Allocator()


def _make() -> Any:
    class SeamallocBackend(_contract().SleepModeBackend):  # type: ignore[misc]
        """Tags that sleep. Addresses stay, and with them graphs, compiled kernels and communicators."""

        def suspend(self, level: int = 1) -> None:
            """Level 1 keeps the weights in page-locked host memory, level 2 nothing. A failure changes nothing."""
            allocator.sleep(("weights",) if level == 1 else ())
            self._state = "SUSPENDED"

        def resume(self, tags: list[str] | None = None) -> None:
            """Wakes these tags, or all. Where it fails, it can be tried again."""
            before, self._state = self._state, "RESUMING"
            try:
                allocator.wake_up(tags)
            except BaseException:
                self._state = before
                raise
            self._state = "RUNNING"

        def discard(self, tags: tuple[str, ...]) -> None:
            allocator.discard(tags)
            self._state = "SUSPENDED"

        @classmethod
        def is_supported(cls) -> bool:
            return enabled() is not None

        @classmethod
        def _yes(cls) -> bool:
            return True

        preserves_communicators = preserves_compiled_artifacts = preserves_graphs_with_communicators = _yes
        # The attributes of the contract's first version.
        preserves_nccl = preserves_graphs_with_nccl = _yes

    return SeamallocBackend


_class: Any = None


def __getattr__(name: str) -> Any:
    """`SeamallocBackend`, which vLLM asks for by its name: its base is vLLM's."""
    global _class
    if name != "SeamallocBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _class is None:
        _class = _make()
    return _class


def register() -> None:
    """Makes seamalloc a backend of vLLM, and its tags those of vLLM where seamalloc is PyTorch's allocator. May be called
    again. Raises `LibraryError` where there is no such vLLM."""
    contract = _contract()
    try:
        contract.SleepModeBackendFactory.register_backend(BACKEND, __name__, "SeamallocBackend")
    except ValueError:
        pass  # It is there.
    if enabled() is not None:
        from vllm.device_allocator.cumem import CuMemAllocator

        CuMemAllocator.instance = allocator


def plugin() -> None:
    """`register` for vLLM, which calls it in each of its processes: where this vLLM has no backends, it says so and goes on."""
    try:
        register()
    except LibraryError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)

"""seamalloc as vLLM's sleep mode: a `SleepModeBackend`, and the allocator of its tags `weights` and `kv_cache`.

    import seamalloc; seamalloc.enable()      # before PyTorch uses CUDA, in each worker; SEAMALLOC_CONF does so, too
    vllm serve MODEL --enable-sleep-mode --sleep-mode-backend seamalloc

`seamalloc run` enables it too. vLLM finds the backend by the entry point `vllm.general_plugins`, or by `seamalloc.vllm.register()`
before the engine is made. A tag has all memory of vLLM's context of the tag; its free memory serves the tag's requests.
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
        """Returns the bytes of physical memory of all tags, including the bytes of sleeping tags."""
        return sum(of["reserved_bytes"] + of["asleep_bytes"] for name, of in _tags.tags().items() if name.startswith(PREFIX))

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        """Lets all tags sleep, the tags of `offload_tags` with a backup."""
        wanted = (self.default_tag,) if offload_tags is None else offload_tags
        kept = [PREFIX + tag for tag in ([wanted] if isinstance(wanted, str) else wanted)]
        names = self.names()
        _sleepers.sleep_all([name for name in names if name in kept], [name for name in names if name not in kept])

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Wakes these tags, or all tags."""
        _sleepers.wake_all(self.names(tags))

    def discard(self, tags: tuple[str, ...]) -> None:
        """Lets these tags sleep without a backup."""
        _sleepers.sleep_all([], self.names(tags))

    def names(self, tags: Any = None) -> list[str]:
        """Returns those of the given tags that exist; all existing tags for None."""
        return [name for name in _tags.tags() if name.startswith(PREFIX) and (tags is None or name[len(PREFIX) :] in tags)]


allocator = Allocator()


def _make() -> Any:
    class SeamallocBackend(_contract().SleepModeBackend):  # type: ignore[misc]
        """A backend that lets tags sleep. Addresses stay, and with them graphs, compiled kernels and communicators."""

        def suspend(self, level: int = 1) -> None:
            """Lets all tags sleep. Level 1 keeps the weights in host memory, level 2 nothing. An error leaves all awake."""
            allocator.sleep(("weights",) if level == 1 else ())
            self._state = "SUSPENDED"

        def resume(self, tags: list[str] | None = None) -> None:
            """Wakes these tags, or all tags. After an error the call can be repeated."""
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
    """Returns `SeamallocBackend`, which vLLM requests by name. The class is made on demand: its base class is vLLM's."""
    global _class
    if name != "SeamallocBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _class is None:
        _class = _make()
    return _class


def register() -> None:
    """Registers the backend with vLLM, and replaces vLLM's tags by tags of seamalloc if seamalloc is PyTorch's
    allocator. May be called again. Raises `LibraryError` if no vLLM with backends is installed."""
    contract = _contract()
    try:
        contract.SleepModeBackendFactory.register_backend(BACKEND, __name__, "SeamallocBackend")
    except ValueError:
        pass  # vLLM has the backend already.
    if enabled() is not None:
        from vllm.device_allocator.cumem import CuMemAllocator

        CuMemAllocator.instance = allocator


def plugin() -> None:
    """Calls `register` in each process of vLLM. If this vLLM has no backends, prints a message and goes on."""
    try:
        register()
    except LibraryError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)

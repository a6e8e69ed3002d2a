"""seamalloc as a memory resource of cuda.core. If PyTorch uses seamalloc too, both share the same memory and limit.

    from cuda.core import Device
    import seamalloc.cuda_core
    device = Device(0); device.set_current()
    resource = seamalloc.cuda_core.enable(memory_limit="20GiB")
    buffer = device.allocate(1 << 20, stream=device.default_stream)

cuda.core names the stream of each request and of each free. seamalloc uses both.
"""

from __future__ import annotations

from typing import Any

from . import _memory
from ._unavailable import LibraryError

NAME = "cuda.core"
_resources: dict[int, Any] = {}


def _cuda_core() -> Any:
    try:
        from cuda import core
    except ImportError as error:
        raise _memory.missing(NAME, error, "cuda-core") from error
    if not (hasattr(core, "MemoryResource") and hasattr(core, "Device")):
        version = getattr(core, "__version__", "")
        raise LibraryError("version", NAME, f"cuda.core {version} is too old", "Install cuda-core 0.5 or newer")
    return core


def enable(device: int = 0, **options: object) -> Any:
    """Makes seamalloc the resource of `cuda.core.Device(device)` in this thread, and returns the resource. Takes the
    options of `seamalloc.enable`. Raises `LibraryError`, and `OptionError` for options that cannot be read."""
    core = _cuda_core()
    _memory.begin(NAME, options)
    core.Device(device).memory_resource = resource(device)
    return resource(device)


def resource(device: int = 0) -> Any:
    """Returns the `cuda.core.MemoryResource` of a device. All threads share it."""
    if device not in _resources:
        _resources[device] = _make_class()(device)
    return _resources[device]


_class: Any = None


def _make_class() -> Any:
    global _class
    if _class is not None:
        return _class
    core = _cuda_core()

    class SeamallocMemoryResource(core.MemoryResource):  # type: ignore[misc, name-defined]
        """Memory of seamalloc. A buffer is freed in the order of the stream that the free names."""

        def __init__(self, device: int) -> None:
            self._memory = _memory.Streams(device)

        # Versions 0.x pass the stream by position, or pass no stream.
        def allocate(self, size: int, stream: Any = None) -> Any:
            address = self._memory.allocate(size, _handle(stream))
            try:
                return _buffer(core, address, size, self, stream)
            except BaseException:
                self._memory.discard(address)
                raise

        def deallocate(self, ptr: Any, size: int, stream: Any = None) -> None:
            # cuda.core also deallocates a buffer whose creation failed.
            if int(ptr) in self._memory:
                self._memory.free(int(ptr), None if stream is None else _handle(stream))

        @property
        def is_device_accessible(self) -> bool:
            return True

        @property
        def is_host_accessible(self) -> bool:
            return False

        @property
        def is_managed(self) -> bool:
            return False

        @property
        def device_id(self) -> int:
            return self._memory.device

    _class = SeamallocMemoryResource
    return _class


def _buffer(core: Any, address: int, size: int, resource: Any, stream: Any) -> Any:
    if stream is not None:
        try:
            return core.Buffer.from_handle(address, size, mr=resource, stream=stream)
        except TypeError:
            # Before 1.0 a buffer had no stream for its free.
            pass
    return core.Buffer.from_handle(address, size, mr=resource)


def _handle(stream: Any) -> int:
    if stream is None:
        return 0
    if getattr(stream, "is_building", False):
        # Memory of a graph must stay allocated as long as the graph may be launched.
        raise ValueError("seamalloc has no memory for a graph under construction; expected a stream (take GraphMemoryResource)")
    return int(stream.__cuda_stream__()[1])

"""seamalloc as RMM's memory resource, and so the resource of cuDF, cuML and other libraries of RAPIDS. If PyTorch uses
seamalloc too, both share the same memory and limit.

    import rmm, seamalloc.rmm
    seamalloc.rmm.enable(memory_limit="20GiB")

RMM names the stream of each request and of each free. seamalloc uses both.
"""

from __future__ import annotations

from typing import Any

from . import _memory
from ._unavailable import LibraryError

NAME = "RMM"
_resources: dict[int, Any] = {}


def _rmm() -> Any:
    try:
        import rmm
    except ImportError as error:
        raise _memory.missing(NAME, error, "rmm-cu13") from error
    if not hasattr(rmm.mr, "CallbackMemoryResource"):
        raise LibraryError("version", NAME, f"RMM {rmm.__version__} is too old", "Install RMM 22.10 or newer")
    return rmm


def enable(device: int | None = None, **options: object) -> None:
    """Makes seamalloc the current resource of a device, or of all devices, for later allocations. Takes the options of
    `seamalloc.enable`. Raises `LibraryError`, and `OptionError` for options that cannot be read."""
    rmm = _rmm()
    _memory.begin(NAME, options)
    for number in _devices() if device is None else [device]:
        rmm.mr.set_per_device_resource(number, resource(number))


def enabled(device: int = 0) -> bool:
    """Returns whether seamalloc is the current resource of a device."""
    return device in _resources and _rmm().mr.get_per_device_resource(device) is _resources[device]


def resource(device: int = 0) -> Any:
    """Returns the `rmm.mr.CallbackMemoryResource` of a device, for RMM's adaptors and for `DeviceBuffer(mr=...)`."""
    if device not in _resources:
        memory = _memory.Streams(device)

        def allocate(size: int, stream: Any) -> int:
            return memory.allocate(size, _handle(stream))

        def deallocate(address: int, size: int, stream: Any) -> None:
            memory.free(address, _handle(stream))

        _resources[device] = _rmm().mr.CallbackMemoryResource(allocate, deallocate)
    return _resources[device]


def _handle(stream: Any) -> int:
    return int(stream.__cuda_stream__()[1])


def _devices() -> range:
    if _memory.is_simulated():
        return range(1)
    from rmm._cuda.gpu import getDeviceCount

    return range(getDeviceCount())

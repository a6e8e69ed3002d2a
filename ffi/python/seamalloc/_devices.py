"""Finds the device and the stream that a caller's arguments mean."""

from __future__ import annotations

import sys
from typing import Protocol, Union

from ._library import PINNED


class TorchDevice(Protocol):
    """A `torch.device`."""

    @property
    def type(self) -> str: ...

    @property
    def index(self) -> int | None: ...


class TorchStream(Protocol):
    """A `torch.cuda.Stream` or `ExternalStream`."""

    @property
    def cuda_stream(self) -> int: ...


Device = Union[int, str, TorchDevice, None]
Stream = Union[int, TorchStream]


def current_device(device: Device) -> int:
    """Returns the number of a device. `device` is a number, a name (`cuda:1`) or a `torch.device`. None, or a device
    without a number, means PyTorch's current device. "pinned" means the page-locked memory of PyTorch."""
    if device == "pinned":
        return PINNED
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    if device is not None:
        kind, _, number = str(device).partition(":")
        if kind != "cuda" or not (number.isdigit() or not number):
            raise ValueError(f"{device!r} is no CUDA device; expected a number, cuda:0, or pinned")
        if number:
            return int(number)
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_initialized() else 0


def stream_on(stream: Stream, device: Device) -> tuple[int, int]:
    """Returns a stream's handle and the number of its device: `device` if the caller gives it, else the stream's own
    device."""
    handle = getattr(stream, "cuda_stream", stream)
    if not isinstance(handle, int) or isinstance(handle, bool):
        raise TypeError(f"{stream!r} is no stream; expected a torch.cuda.Stream, or its handle as a number")
    if not 0 <= handle < 1 << 64:
        raise ValueError(f"{handle} is no handle of a stream")
    return handle, current_device(getattr(stream, "device", None) if device is None else device)

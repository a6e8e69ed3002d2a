"""Advice of the program on live memory that can be spilled to host memory when the device has too little."""

from __future__ import annotations

from ctypes import byref, c_uint64, c_void_p
from typing import Any

from ._devices import Device, current_device
from ._library import check, library, plugged

_ADVICES = {"cold": 0, "normal": 1, "hot": 2}


def advise(tensor: Any, use: str, device: Device = None) -> None:
    """Says how the program uses a tensor's memory from now on. "cold" memory is spilled first if the device has too
    little (option `spill:host=SIZE`). "hot" memory is spilled last, and returns to the device at once if there is room.
    "normal" cancels either advice. The advice applies to the whole storage; views have no advice of their own. `tensor`
    may also be the address of an allocation."""
    advice = _ADVICES.get(use)
    if advice is None:
        raise ValueError(f"{use!r} is no advice; expected one of {', '.join(_ADVICES)}")
    if isinstance(tensor, int):
        address = tensor
    else:
        address = tensor.untyped_storage().data_ptr()
        device = tensor.device if device is None else device
    check(library.seam_advise(plugged(current_device(device)), c_void_p(address), advice))


def unspill(device: Device = None) -> int:
    """Lets spilled memory return to the device as far as there is room. Returns the bytes that returned. The call waits
    for the device. Other threads must not launch work during the call."""
    returned = c_uint64()
    check(library.seam_unspill(plugged(current_device(device)), byref(returned)))
    return returned.value

"""Live memory that lies in host memory where the device has too little: what the program says of it."""

from __future__ import annotations

from ctypes import byref, c_uint64, c_void_p
from typing import Any

from ._devices import Device, current_device
from ._library import check, library, plugged

_ADVICES = {"cold": 0, "normal": 1, "hot": 2}


def advise(tensor: Any, use: str, device: Device = None) -> None:
    """Says how the program uses a tensor's memory from now on: "cold" is spilled first where the device has too little (option
    `spill:host=SIZE`), "hot" last, and comes back to the device at once if there is room; "normal" takes either back. It is the
    memory of the whole storage: views of it have no advice of their own. An address of an allocation will do too."""
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
    """Lets what was spilled come back to the device, as far as there is room. Returns the bytes that came back. It waits for the
    device; no other thread may launch work meanwhile."""
    returned = c_uint64()
    check(library.seam_unspill(plugged(current_device(device)), byref(returned)))
    return returned.value

"""Guard mode from Python: the allocation at an address, the mistakes found, and the memory that PyTorch's operators use
on each stream.

    import seamalloc, seamalloc.guard
    seamalloc.enable(guard=True)
    with seamalloc.guard.watch():
        train()
    for found in seamalloc.findings():
        print(found["text"])
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_uint64, c_void_p
from typing import Any

from ._devices import Device, current_device
from ._library import check, library, plugged, plugged_devices, read_json, read_text

__all__ = ["check_guards", "explain", "findings", "watch"]


def explain(address: int, device: Device = None) -> str:
    """Describes the live or freed allocation that contains an address or lies next to it: its size, streams and number.
    Returns "" if the allocation is unknown. If PyTorch records memory history
    (`torch.cuda.memory._record_memory_history()`), the text also has the Python lines that allocated and freed the
    allocation. The function also works after the use of an illegal address."""
    number = current_device(device)
    if number not in plugged_devices():
        return ""
    text = read_text(library.seam_explain, plugged(number), c_void_p(address))
    return "\n".join([text, *_stacks(address, number)]) if text else ""


def findings(device: Device = None) -> list[dict[str, Any]]:
    """Returns the first 1000 mistakes that guard mode has found, oldest first. Each is a dict with `kind` and `text`,
    and with `address`, `size`, `number` and `stream` of the allocation."""
    number = current_device(device)
    if number not in plugged_devices():
        return []
    found: list[dict[str, Any]] = read_json(library.seam_findings_json, plugged(number))
    return found


def check_guards(device: Device = None) -> int:
    """Waits for the device, and searches for bytes that were written around live allocations and in freed memory.
    Returns the number of mistakes found so far."""
    number = current_device(device)
    found = c_uint64()
    if number in plugged_devices():
        check(library.seam_check_guards(plugged(number), byref(found)))
    return found.value


def note_uses(addresses: list[int], stream: int, device: int) -> None:
    """Says that the latest work on a stream uses the allocations that contain these addresses."""
    if addresses and device in plugged_devices():
        array = (c_void_p * len(addresses))(*addresses)
        check(library.seam_note_uses(plugged(device), array, len(addresses), c_void_p(stream)))


def note_event(event: int, stream: int) -> None:
    """Says that the program recorded an event on a stream."""
    for device in plugged_devices():
        check(library.seam_note_event(plugged(device), c_uint64(event), c_void_p(stream)))


def note_wait(stream: int, event: int) -> None:
    """Says that the program makes later work of a stream wait for an event."""
    for device in plugged_devices():
        check(library.seam_note_wait(plugged(device), c_void_p(stream), c_uint64(event)))


def _stacks(address: int, device: int) -> list[str]:
    """Returns the lines that allocated and freed the allocation at an address, if PyTorch's history contains them."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return []
    try:
        history = torch.cuda.memory._snapshot(device)["device_traces"][device]
    except (RuntimeError, AttributeError, IndexError, KeyError):
        # The list is empty after an illegal address, or without a history.
        return []
    lines = []
    words = {"alloc": "allocated at", "free_requested": "freed at"}
    for action, word in words.items():
        covers = (
            entry
            for entry in reversed(history)
            if entry["action"] == action and entry["addr"] <= address < entry["addr"] + entry["size"]
        )
        frames = (next(covers, None) or {}).get("frames", [])
        lines += [f"{word} {frame['filename']}:{frame['line']} in {frame['name']}" for frame in frames]
    return lines


def _tensors(value: Any, kind: type) -> Iterator[Any]:
    """Yields all tensors in the arguments or the results of an operator."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item, kind)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item, kind)


def _note_operator(torch: Any, values: Any) -> None:
    """Notes the memory that an operator has used, after its kernels are launched."""
    by_device: dict[int, set[int]] = {}
    for tensor in _tensors(values, torch.Tensor):
        if tensor.is_cuda and tensor.layout is torch.strided:
            by_device.setdefault(tensor.device.index, set()).add(tensor.untyped_storage().data_ptr())
    for device, addresses in by_device.items():
        note_uses(sorted(addresses), torch.cuda.current_stream(device).cuda_stream, device)


@contextmanager
def watch() -> Iterator[None]:
    """Makes a context that tells guard mode about every operator that PyTorch runs in this thread: its tensors, its
    stream, and the waits between streams. If a tensor is freed while another stream uses it without `record_stream`,
    guard mode reports a mistake. The context is slow and meant for a few steps.

    The context does not see kernels of other libraries, work of other threads, and waits that were made outside of it.
    Name the memory of other libraries' kernels by `Tensor.record_stream`. Backward runs in a thread of its own: enter
    the context in that thread, or run with `torch.autograd.set_multithreading_enabled(False)`."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            _note_operator(torch, (args, kwargs, result))
            return result

    with _order_of_streams(torch), Watch():
        yield


@contextmanager
def _order_of_streams(torch: Any) -> Iterator[None]:
    """Makes a context that tells guard mode about events that the program records and waits for. PyTorch's own waits
    between streams, such as `Stream.wait_stream`, call the same two methods."""
    events = torch.cuda.Event
    record, wait = events.record, events.wait

    def noting_record(self: Any, stream: Any = None) -> None:
        stream = torch.cuda.current_stream() if stream is None else stream
        record(self, stream)
        note_event(id(self), stream.cuda_stream)

    def noting_wait(self: Any, stream: Any = None) -> None:
        stream = torch.cuda.current_stream() if stream is None else stream
        wait(self, stream)
        note_wait(stream.cuda_stream, id(self))

    events.record, events.wait = noting_record, noting_wait
    try:
        yield
    finally:
        events.record, events.wait = record, wait

"""Page-locked tensors over seamalloc's memory, for PyTorch before 2.9 and for programs that keep PyTorch's own
allocator.

PyTorch does not say which streams copy from or to such a tensor. The memory of dead tensors is therefore reused only
after a wait for all devices, one wait for all tensors that died since the last wait. If the program names the streams,
reuse waits for these streams alone.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from . import _library
from ._devices import Stream
from ._host_pool import HostPool

_lock = threading.RLock()
_pool: HostPool | None = None
# The pools and addresses of dead tensors whose streams are not named.
_dead: list[tuple[HostPool, int, int]] = []
_NOT_PYTORCHS = _library.pinned_handle


def _is_pytorchs() -> bool:
    """Returns whether seamalloc manages PyTorch's own page-locked memory, and therefore knows the streams."""
    return _library.pinned_handle is not _NOT_PYTORCHS


def _default_pool(torch: Any) -> HostPool:
    global _pool
    with _lock:
        if _pool is None:
            current = torch.cuda.current_device()
            pool = HostPool(f"pinned:{current}")
            # The device of a copy is known only after the copy.
            for device in range(torch.cuda.device_count()):
                if device != current:
                    pool.enable_peer_access(device)
            _pool = pool
        return _pool


def _wait_for_dead(torch: Any) -> None:
    """Frees the memory of dead tensors, after a wait for all devices, since a copy may still use the memory."""
    global _dead
    with _lock:
        # Tensors may die at any moment, in this thread too.
        dead, _dead = _dead, []
    if dead and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)
    for pool, address, owner in dead:
        pool._free(address, owner)


def _died(pool: HostPool, address: int, owner: int) -> None:
    with _lock:
        _dead.append((pool, address, owner))


def empty_pinned(
    *shape: int | Sequence[int],
    dtype: Any = None,
    pool: HostPool | None = None,
    streams: Sequence[Stream] | None = None,
) -> Any:
    """Returns a page-locked tensor over seamalloc's memory with undefined contents. The memory is freed when the tensor
    and its views are gone.

    After `enable(pinned=True)` the function calls `torch.empty(..., pin_memory=True)`. Otherwise the tensor lies in
    `pool`, by default a pool of page-locked memory of the current device with default options. PyTorch does not say
    which streams use the tensor, so its memory is reused after the next request has waited for all devices. If
    `streams` names every stream that will use the tensor, reuse waits for these streams alone, and the CPU does not
    wait."""
    torch: Any = import_module("torch")
    given: Any = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
    sizes: tuple[int, ...] = tuple(given)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if pool is None and _is_pytorchs():
        return torch.empty(sizes, dtype=dtype, pin_memory=True)
    size = math.prod(sizes) * torch.empty(0, dtype=dtype).element_size()
    if size == 0:
        return torch.empty(sizes, dtype=dtype)
    _wait_for_dead(torch)
    release = _died if streams is None else HostPool._free
    block = (_default_pool(torch) if pool is None else pool)._allocate(size, release)
    for stream in streams or ():
        block.record_stream(stream)
    # PyTorch keeps the view alive as long as the storage, and the view keeps the memory alive.
    return torch.frombuffer(block.view(), dtype=dtype).reshape(sizes)


def pin_memory(tensor: Any, pool: HostPool | None = None, streams: Sequence[Stream] | None = None) -> Any:
    """Returns a copy of a CPU tensor in page-locked memory of `empty_pinned`; the tensor itself if it is page-locked
    already."""
    if tensor.is_pinned():
        return tensor
    return empty_pinned(tuple(tensor.shape), dtype=tensor.dtype, pool=pool, streams=streams).copy_(tensor)


@contextmanager
def pinned(pool: HostPool | None = None) -> Iterator[None]:
    """Makes a context in which seamalloc serves this thread's page-locked tensors: `pin_memory=True` of functions that
    make tensors, and `Tensor.pin_memory()`. The context is for PyTorch before 2.9, and for programs that do not call
    `enable`. After `enable(pinned=True)` the context has no effect. The context never affects page-locked memory that
    PyTorch's C++ code allocates for itself, for example for the DataLoader."""
    if pool is None and _is_pytorchs():
        yield
        return
    with _mode(pool):
        yield


def _mode(pool: HostPool | None) -> Any:
    torch: Any = import_module("torch")
    from torch.overrides import TorchFunctionMode

    class Pinned(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(
            self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
        ) -> Any:
            keywords = dict(keywords or {})
            if function is torch.Tensor.pin_memory:
                return pin_memory(arguments[0], pool)
            if not keywords.pop("pin_memory", False):
                return function(*arguments, **keywords)
            made = function(*arguments, **keywords)
            if made.device.type != "cpu":
                raise RuntimeError(f"only tensors of the CPU can be page-locked, not of {made.device}")
            found = empty_pinned(tuple(made.shape), dtype=made.dtype, pool=pool)
            return found.copy_(made).requires_grad_(made.requires_grad)

    return Pinned()

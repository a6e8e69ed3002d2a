"""Page-locked memory of seamalloc beside PyTorch's: python pinned.py. Needs a GPU, PyTorch, and SEAMALLOC_LIBRARY, libseamalloc.so.

Prints lines of JSON: copies in both directions, what having memory costs, and steps that offload activations of changing
lengths, all of whose contents are checked; reserved against requested bytes. Exits with 1 where a byte is wrong.
"""

import ctypes
import json
import os
import sys
import time

import torch

MIB = 2**20
u64, pointer, size_t = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t
ARGUMENTS = {
    "seam_create": (ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(u64)),
    "seam_host_malloc": (u64, size_t, ctypes.POINTER(pointer)),
    "seam_record_stream": (u64, pointer, pointer),
    "seam_free": (u64, pointer),
    "seam_stats_json": (u64, ctypes.c_char_p, size_t, ctypes.POINTER(size_t)),
}


def load(path):
    """The C library."""
    library = ctypes.CDLL(path)
    for name, arguments in ARGUMENTS.items():
        getattr(library, name).argtypes = arguments
    library.seam_last_error_text.restype = ctypes.c_char_p
    return library


class Ours:
    """The pool that is measured."""

    name = "seamalloc"

    def __init__(self, library):
        self.library, self.handle = library, u64()
        self.call("seam_create", b"pinned:0", b"", ctypes.byref(self.handle))

    def call(self, name, *arguments):
        """Raises what the library says of a call that failed."""
        if getattr(self.library, name)(*arguments):
            raise RuntimeError(self.library.seam_last_error_text().decode())

    def allocate(self, size):
        """A tensor of bytes, and what frees it."""
        address = pointer()
        self.call("seam_host_malloc", self.handle, size, ctypes.byref(address))
        buffer = (ctypes.c_char * size).from_address(address.value)
        return torch.frombuffer(buffer, dtype=torch.uint8), address

    def free(self, tensor, address, stream):
        """Frees a tensor that a stream has used."""
        del tensor
        self.call("seam_record_stream", self.handle, address, stream.cuda_stream)
        self.call("seam_free", self.handle, address)

    def reserved(self):
        """The most bytes that were held."""
        length = size_t()
        text = ctypes.create_string_buffer(1 << 16)
        self.call("seam_stats_json", self.handle, text, len(text), ctypes.byref(length))
        return json.loads(text.value)["reserved_bytes"]["all"]["peak"]


class Theirs:
    """PyTorch's cache."""

    name = "torch"

    def allocate(self, size):
        """A tensor of bytes; it frees itself."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True), None

    def free(self, tensor, address, stream):
        """Freed with its last reference. Copies of PyTorch's have named their stream."""

    def reserved(self):
        """The most bytes that were held."""
        stats = torch.cuda.host_memory_stats()
        return stats.get("allocated_bytes.peak", 0)


def copies(pool):
    """GB/s of copies of 256 MiB, the best of six, and whether they are asynchronous."""
    stream, size = torch.cuda.Stream(), 256 * MIB
    host, address = pool.allocate(size)
    device = torch.empty(size, dtype=torch.uint8, device="cuda")
    found = {}
    for name, to, source in (("h2d", device, host), ("d2h", host, device)):
        best, issued = float("inf"), 0.0
        for _ in range(6):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            with torch.cuda.stream(stream):
                to.copy_(source, non_blocking=True)
            given = time.perf_counter() - begin
            stream.synchronize()
            if (took := time.perf_counter() - begin) < best:
                best, issued = took, given
        found[name] = round(size / best / 1e9, 2)
        found[f"{name}_issued_us"] = round(issued * 1e6, 1)
    found["pinned"] = host.is_pinned()
    pool.free(host, address, stream)
    return found


def offload(pool, steps=24, layers=24):
    """Activations go to the host in the forward pass, and come back in the backward pass. Returns figures and wrong tensors."""
    stream, wrong, most, first, later = torch.cuda.Stream(), 0, 0, 0.0, 0.0
    for step in range(steps):
        length = (1500, 700, 2040, 1100)[step % 4]
        begin = time.perf_counter()
        kept, live = [], 0
        for layer in range(layers):
            for width in (4096, 11008, 640):
                size = width * length * 2
                value = (step * 31 + layer * 7 + width) % 251
                activation = torch.full((size,), value, dtype=torch.uint8, device="cuda")
                host, address = pool.allocate(size)
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    host.copy_(activation, non_blocking=True)
                activation.record_stream(stream)
                kept.append((host, address, size, value))
                live += size
        most = max(most, live)
        while kept:
            host, address, size, value = kept.pop()
            with torch.cuda.stream(stream):
                back = torch.empty(size, dtype=torch.uint8, device="cuda")
                back.copy_(host, non_blocking=True)
                wrong += int((back != value).any())
            pool.free(host, address, stream)
            del host
        torch.cuda.synchronize()
        took = time.perf_counter() - begin
        first, later = (took, later) if step == 0 else (first, later + took)
    return {
        "requested": most,
        "reserved": pool.reserved(),
        "above": round(pool.reserved() / most, 4),
        "first_step_s": round(first, 4),
        "later_step_s": round(later / (steps - 1), 4),
        "wrong": wrong,
    }


def main():
    """The command."""
    bad = 0
    library = load(os.environ["SEAMALLOC_LIBRARY"])
    for pool in (Theirs(), Ours(library)):
        figures = offload(pool)
        bad += figures["wrong"]
        print(json.dumps({"pool": pool.name, "what": "offload", **figures}), flush=True)
    for pool in (Theirs(), Ours(library), Theirs(), Ours(library)):
        print(json.dumps({"pool": pool.name, "what": "copies", **copies(pool)}), flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()

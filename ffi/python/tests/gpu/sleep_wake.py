"""Tags that sleep and wake on a GPU: python sleep_wake.py [--gib N] [--only sleep|saver|library|rlhf].

Needs a GPU of 80 GB, as much host memory as the tag has twice, PyTorch and seamalloc. Each part is a process of its own:

- `sleep`: a tag of 30 GiB sleeps under a process that also trains, and wakes. Bytes are compared by sums over rows and columns,
  a captured graph is launched right after.
- `saver`: as many bytes by torch_memory_saver's way, call for call: for each allocation cudaMallocHost, cudaMemcpy, cuMemUnmap and
  cuMemRelease; back cuMemCreate, cuMemMap, cuMemSetAccess and cudaMemcpy.
- `library`: as many bytes by torch_memory_saver itself, where it is installed, with its default and with `retain_cpu_backup`.
- `rlhf`: generate, let the cache sleep, train, let what training holds sleep, wake the cache. What is held is compared with what
  the larger of both phases needs.

One line of JSON for each thing that is looked at; exits with 1 where one does not hold.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time

MIB, GIB = 2**20, 2**30
PARTS = ("sleep", "saver", "library", "rlhf")
# What may stay of a tag that sleeps: tables of the driver.
LEFT = 64 * MIB
# The most that is held, to what the larger phase needs.
HELD = 1.01


def tell(part, what, holds=True, **figures):
    """Prints a line."""
    print(json.dumps({"part": part, "what": what, "holds": bool(holds), **figures}), flush=True)
    return bool(holds)


def sizes(gib):
    """Bytes of the tensors of a tag: whole words of 8 bytes, in rows of 4096."""
    row, left, found = 8 * 4096, gib * GIB, []
    for number in range(10_000):
        size = min((100 + number * 37 % 400) * MIB, left) // row * row
        if size == 0:
            break
        found.append(size)
        left -= size
    return found


def sums(tensor):
    """Returns the sums of rows and of columns, which wrap and tell one content from another."""
    table = tensor.view(-1, 4096)
    return table.sum(0), table.sum(1)


def same(tensors, before):
    """Returns whether all bytes are unchanged."""
    import torch

    return all(torch.equal(now, then) for tensor, old in zip(tensors, before) for now, then in zip(sums(tensor), old))


def seconds(work):
    """Runs `work` between two waits for the device. Returns its result and the seconds."""
    import torch

    torch.cuda.synchronize()
    begin = time.perf_counter()
    answer = work()
    torch.cuda.synchronize()
    return answer, time.perf_counter() - begin


def rate(size, spent):
    """Returns the rate in GB/s."""
    return round(size / spent / 1e9, 2)


def link():
    """Measures the link each way, in GB/s: the best of three copies of a GiB of page-locked memory."""
    import torch

    host, device = torch.empty(GIB, dtype=torch.uint8, pin_memory=True), torch.empty(GIB, dtype=torch.uint8, device="cuda")
    out = min(seconds(lambda: host.copy_(device, non_blocking=True))[1] for _ in range(4))
    back = min(seconds(lambda: device.copy_(host, non_blocking=True))[1] for _ in range(4))
    return rate(GIB, out), rate(GIB, back)


def trainer():
    """A step of training, outside of every tag."""
    import torch

    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048, device="cuda") for _ in range(8)])
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        optimizer.zero_grad()
        loss = model(torch.randn(4096, 2048, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        return bool(torch.isfinite(loss))

    return step


def driver_ms(before, after):
    """The time in each kind of driver call between two statistics, in ms, where it is more than one."""
    spent = {
        call: (made["total_ns"] - before.get(call, {}).get("total_ns", 0)) / 1e6
        for call, made in after["driver_calls"].items()
    }
    return {call: round(ms, 1) for call, ms in spent.items() if ms > 1}


def sleep(gib):
    """A tag sleeps under a process that also trains."""
    import seamalloc

    seamalloc.enable()
    import torch

    torch.manual_seed(1)
    step = trainer()
    holds = step()
    with seamalloc.tag("weights"):
        # Free memory in pieces, over which a tensor is stitched.
        pieces = [torch.empty(25 * MIB, dtype=torch.int64, device="cuda") for _ in range(8)]
        del pieces[::2]
        tensors = [torch.empty(75 * MIB, dtype=torch.int64, device="cuda"), *pieces]
        rest = gib - sum(tensor.numel() for tensor in tensors) * 8 // GIB
        tensors += [torch.empty(size // 8, dtype=torch.int64, device="cuda") for size in sizes(rest)]
        weight = torch.randn(4096, 4096, device="cuda")
    for tensor in tensors:
        tensor.random_()
    before = [sums(tensor) for tensor in tensors]
    views = seamalloc.stats()["views"]
    # The graph reads a stitched tensor of the tag, and writes memory of its own.
    given, words = torch.randn(64, 4096, device="cuda"), tensors[0][: 8 * MIB]
    torch.mm(given, weight)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product, moved = torch.mm(given, weight), words + 1
    graph.replay()
    wanted = product.clone(), moved.clone()
    out, back = link()
    holds &= tell("sleep", "link", out_gb_s=out, back_gb_s=back, views=views)
    # The last one page-locks memory that the machine has had in use before, which a virtual machine may have for less.
    for turn, kind in enumerate(("pinned", "pinned", "host", "pinned")):
        if turn in (2, 3):
            released, spent = seconds(seamalloc.release_backups)
            tell("sleep", "release_backups", gib=round(released / GIB, 2), seconds=round(spent, 3))
        free = torch.cuda.mem_get_info()[0]
        stats = seamalloc.stats()
        size, fell = seconds(lambda kind=kind: seamalloc.sleep("weights", pinned=kind == "pinned"))
        left = size - (torch.cuda.mem_get_info()[0] - free)
        falling = driver_ms(stats["driver_calls"], seamalloc.stats())
        trained = all(step() for _ in range(3))
        stats = seamalloc.stats()
        taken, woke = seconds(lambda: seamalloc.wake("weights"))
        waking = driver_ms(stats["driver_calls"], seamalloc.stats())
        product.zero_(), moved.zero_()
        graph.replay()
        replayed = torch.equal(product, wanted[0]) and torch.equal(moved, wanted[1])
        equal = same(tensors, before)
        copied = {"out": falling.get("copy_out", 0) + falling.get("host_wait", 0), "in": waking.get("copy_in", 0) + waking.get("host_wait", 0)}
        holds &= tell(
            "sleep",
            f"{kind} {turn}",
            left <= LEFT and trained and replayed and equal and taken == size and stats["sleep"]["asleep_bytes"] == size,
            gib=round(size / GIB, 3),
            left_mib=round(left / MIB, 2),
            trained=trained,
            equal=equal,
            graph=replayed,
            sleep_s=round(fell, 3),
            sleep_gb_s=rate(size, fell),
            wake_s=round(woke, 3),
            wake_gb_s=rate(size, woke),
            # While the driver copies; with threads beside it the CPU waits less than copies take.
            copies_of_link=[round(size / 1e6 / ms / of, 3) if ms else None for ms, of in zip(copied.values(), (out, back))],
            sleep_driver_ms=falling,
            wake_driver_ms=waking,
        )
    return holds


class Prop(ctypes.Structure):
    """`CUmemAllocationProp`: memory of a device, without handles for others."""

    _fields_ = [(name, ctypes.c_int) for name in ("kind", "handles", "location", "device")] + [
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):
    """`CUmemAccessDesc`."""

    _fields_ = [(name, ctypes.c_int) for name in ("location", "device", "flags")]


class Saved:
    """An allocation as torch_memory_saver has it."""

    def __init__(self, cuda, size):
        self.cuda, self.size, self.host = cuda, size, None
        self.address = ctypes.c_uint64()
        cuda("cuMemAddressReserve", ctypes.byref(self.address), size, 0, 0, 0)
        self.map()

    @property
    def __cuda_array_interface__(self):
        return {"shape": (self.size // 8,), "typestr": "<i8", "data": (self.address.value, False), "version": 3}

    def map(self):
        """Maps memory at the allocation's address."""
        self.handle = ctypes.c_uint64()
        self.cuda("cuMemCreate", ctypes.byref(self.handle), self.size, ctypes.byref(Prop(1, 0, 1, 0)), 0)
        self.cuda("cuMemMap", self.address, self.size, 0, self.handle, 0)
        self.cuda("cuMemSetAccess", self.address, self.size, ctypes.byref(Access(1, 0, 3)), 1)

    def pause(self):
        """Copies the bytes to page-locked memory, which is allocated once, and releases the device's."""
        if self.host is None:
            self.host = ctypes.c_void_p()
            self.cuda("cuMemHostAlloc", ctypes.byref(self.host), self.size, 0)
        self.cuda("cuMemcpyDtoH_v2", self.host, self.address, self.size)
        self.cuda("cuMemUnmap", self.address, self.size)
        self.cuda("cuMemRelease", self.handle)

    def resume(self):
        """Maps device memory again, and copies the bytes back."""
        self.map()
        self.cuda("cuMemcpyHtoD_v2", self.address, self.host, self.size)


def calls():
    """A function that calls libcuda by the names of its functions."""
    library = ctypes.CDLL("libcuda.so.1")

    def call(name, *given):
        # Without types, numbers would go as 32 bits.
        wide = [ctypes.c_uint64(one) if isinstance(one, int) else one for one in given]
        status = getattr(library, name)(*wide)
        if status != 0:
            raise RuntimeError(f"{name}: CUDA error {status}")

    return call


def paused(part, what, size, pause, resume, is_same):
    """Times a pause of so many bytes and what follows it, and prints the line."""
    import torch

    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    _, fell = seconds(pause)
    left = size - (torch.cuda.mem_get_info()[0] - free)
    _, woke = seconds(resume)
    return tell(
        part,
        what,
        is_same(),
        gib=round(size / GIB, 3),
        left_mib=round(left / MIB, 2),
        sleep_s=round(fell, 3),
        sleep_gb_s=rate(size, fell),
        wake_s=round(woke, 3),
        wake_gb_s=rate(size, woke),
    )


def saver(gib):
    """Measures sleep and wake the way torch_memory_saver does it."""
    import torch

    torch.zeros(1, device="cuda")
    granule = 2 * MIB
    cuda = calls()
    allocations = [Saved(cuda, -(-size // granule) * granule) for size in sizes(gib)]
    tensors = [torch.as_tensor(one, device="cuda") for one in allocations]
    for tensor in tensors:
        tensor.random_()
    before = [sums(tensor) for tensor in tensors]
    size, holds = sum(one.size for one in allocations), True
    for turn in range(2):
        pause, resume = (lambda: [one.pause() for one in allocations]), (lambda: [one.resume() for one in allocations])
        holds &= paused("saver", f"pinned {turn}", size, pause, resume, lambda: same(tensors, before))
    return holds


def library(gib):
    """Measures sleep and wake with torch_memory_saver's own code."""
    try:
        import torch_memory_saver as package
    except ImportError as error:
        return tell("library", "left out", why=str(error))
    import torch

    memory = package.torch_memory_saver
    # An allocator of PyTorch's: the other mode has to be preloaded.
    memory.hook_mode = "torch"
    with memory.region(tag="weights", enable_cpu_backup=True):
        tensors = [torch.empty(size // 8, dtype=torch.int64, device="cuda") for size in sizes(gib)]
    for tensor in tensors:
        tensor.random_()
    before = [sums(tensor) for tensor in tensors]
    size, holds = sum(tensor.numel() * 8 for tensor in tensors), True
    for kept in (False, True):
        memory.retain_cpu_backup = kept
        for turn in range(2):
            what = f"{'retain_cpu_backup' if kept else 'default'} {turn}"
            pause, resume = (lambda: memory.pause("weights")), (lambda: memory.resume("weights"))
            holds &= paused("library", what, size, pause, resume, lambda: same(tensors, before))
    # It ends the process with an error where its memory is freed outside of a region, as the interpreter's end does.
    os._exit(0 if holds else 1)


def rlhf(gib):
    """Two phases that take turns, each with what it holds in a tag."""
    import seamalloc

    seamalloc.enable()
    import torch

    held, needed, public = [], {}, 0
    # What cuBLAS keeps for this thread is nobody's tag.
    torch.nn.Linear(8192, 8192, device="cuda", dtype=torch.bfloat16)(torch.ones(256, 8192, device="cuda", dtype=torch.bfloat16))
    with seamalloc.tag("weights"):
        model = torch.nn.Sequential(
            *[part for _ in range(16) for part in (torch.nn.Linear(8192, 8192, device="cuda", dtype=torch.bfloat16), torch.nn.GELU())]
        )

    def changed():
        """Ends the part between two phases."""
        held.append(seamalloc.stats()["reserved_bytes"]["all"]["peak"])
        torch.cuda.reset_peak_memory_stats()

    def phase(name):
        """Ends a phase: notes the most bytes that it held, and the most in blocks that were awake."""
        torch.cuda.synchronize()
        stats = seamalloc.stats()
        held.append(stats["reserved_bytes"]["all"]["peak"])
        in_use = stats["allocated_bytes"]["all"]["peak"] - sum(of["allocated_bytes"] for of in seamalloc.tags().values() if of["asleep_bytes"])
        needed[name] = max(needed.get(name, 0), in_use)
        torch.cuda.reset_peak_memory_stats()

    def generate(cache):
        with torch.no_grad(), seamalloc.tag("generation"):
            tokens = torch.ones(256, 8192, device="cuda", dtype=torch.bfloat16)
            for block in cache:
                block.copy_(model(tokens).mean().expand_as(block))

    def train():
        with seamalloc.tag("training", all_threads=True):
            loss = model(torch.randn(32768, 8192, device="cuda", dtype=torch.bfloat16)).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return bool(torch.isfinite(loss))

    with seamalloc.tag("cache"):
        cache = [torch.zeros(gib * GIB // 80, dtype=torch.bfloat16, device="cuda") for _ in range(40)]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    trained, spent = True, {"sleep_cache": [], "wake_training": [], "sleep_training": [], "wake_cache": []}
    for turn in range(3):
        generate(cache)
        phase("generate")
        spent["sleep_cache"].append(seconds(lambda: [seamalloc.sleep(name, discard=True) for name in ("generation", "cache")])[1])
        if turn > 0:
            spent["wake_training"].append(seconds(lambda: seamalloc.wake("training"))[1])
        changed()
        trained &= train()
        phase("train")
        tags = seamalloc.tags()
        public = seamalloc.stats()["allocated_bytes"]["all"]["current"] - sum(of["allocated_bytes"] for of in tags.values())
        spent["sleep_training"].append(seconds(lambda: seamalloc.sleep("training", pinned=True))[1])
        spent["wake_cache"].append(seconds(lambda: [seamalloc.wake(name) for name in ("generation", "cache")])[1])
        changed()
    larger, peak = max(needed.values()), max(held)
    return tell(
        "rlhf",
        "held",
        # Gradients and activations of the backward pass are not outside of the tag.
        trained and peak <= HELD * larger and public < 160 * MIB,
        held_gib=round(peak / GIB, 3),
        ratio=round(peak / larger, 4),
        phases_gib={name: round(size / GIB, 3) for name, size in needed.items()},
        outside_mib=round(public / MIB, 2),
        seconds={name: [round(one, 3) for one in all_] for name, all_ in spent.items()},
    )


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=int, default=30, help="of the tag that sleeps")
    parser.add_argument("--cache", type=int, default=24, help="GiB of the cache of `rlhf`")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--here", action="store_true", help="in this process")
    given = parser.parse_args()
    if given.here:
        part = {"sleep": sleep, "saver": saver, "library": library, "rlhf": rlhf}[given.only]
        sys.exit(0 if part(given.cache if given.only == "rlhf" else given.gib) else 1)
    failed = False
    for part in PARTS if given.only is None else (given.only,):
        command = [sys.executable, __file__, "--here", "--only", part, "--gib", str(given.gib), "--cache", str(given.cache)]
        begin = time.perf_counter()
        status = subprocess.run(command, check=False).returncode
        failed |= not tell(part, "process", status == 0, status=status, seconds=round(time.perf_counter() - begin, 1))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

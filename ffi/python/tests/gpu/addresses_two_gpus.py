"""Memory that changes under its addresses, on two GPUs: python addresses_two_gpus.py [--gib N] [--only PART].

Needs two GPUs with peer access, PyTorch, CuPy and seamalloc. Each part is a process of its own, `ddp` two:

- `peers`: kernels of the second GPU read a tag's memory on the first one, the tag sleeps and wakes, and they read it again. Then a
  tag on each GPU sleeps and wakes at once, in two threads.
- `growth`: a tensor grows on the first GPU; kernels of the second one read each part right after it was written.
- `spill`: memory of the first GPU lies in host memory when the second one gets access: it comes back, and from then on a
  request that does not fit is refused instead.
- `ddp`: DistributedDataParallel in two processes. Optimizer states and weights sleep between steps; the buffer of an all-reduce lies
  in a tag, is registered with NCCL, and is registered anew when the tag wakes. Losses are compared with those of a run that never sleeps.

One line of JSON for each thing that is looked at; exits with 1 where one does not hold.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

MIB, GIB = 2**20, 2**30
PARTS = ("peers", "growth", "spill", "ddp")
STEPS = 8
# Adds to a count how many words are not `first` and those behind it.
KERNEL = r"""
extern "C" __global__ void wrong(const unsigned long long *words, unsigned long long count, unsigned long long first, unsigned long long *bad) {
    unsigned long long found = 0;
    for (unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; at < count; at += gridDim.x * (unsigned long long)blockDim.x) {
        found += words[at] != first + at;
    }
    if (found) atomicAdd(bad, found);
}
"""


def tell(part, what, holds=True, **figures):
    """Prints a line."""
    print(json.dumps({"part": part, "what": what, "holds": bool(holds), **figures}), flush=True)
    return bool(holds)


def reader(device):
    """A function that counts the wrong words at an address by a kernel of this device, wherever the memory is."""
    import cupy
    import torch

    with cupy.cuda.Device(device):
        kernel = cupy.RawKernel(KERNEL, "wrong")
        kernel.compile()

    def wrong(tensor, first):
        words = tensor.numel() * tensor.element_size() // 8
        bad = torch.zeros(1, dtype=torch.int64, device=f"cuda:{device}")
        torch.cuda.synchronize(tensor.device)
        with cupy.cuda.Device(device):
            kernel((1024,), (256,), (address_of(tensor), cupy.uint64(words), cupy.uint64(first), address_of(bad)))
            cupy.cuda.Device(device).synchronize()
        return int(bad)

    return wrong


def address_of(tensor):
    """Returns a tensor's address as CuPy's kernels take one."""
    import numpy

    return numpy.uint64(tensor.data_ptr())


def numbered(words, device, first):
    """A tensor of `first` and the numbers behind it."""
    import torch

    return torch.arange(first, first + words, dtype=torch.int64, device=f"cuda:{device}")


def give_access():
    """Lets PyTorch give the second GPU access to what the first one has, and the other way round."""
    import torch

    for here, there in ((0, 1), (1, 0)):
        torch.ones(1 << 20, device=f"cuda:{here}").to(f"cuda:{there}")
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)


def stitched(device, gib):
    """Tensors of a tag on this device, one of them stitched over pieces that lie apart: each with its first number."""
    import torch

    pieces = [torch.empty(3 * MIB, dtype=torch.int64, device=f"cuda:{device}") for _ in range(8)]
    del pieces[::2]
    rest = (gib * GIB - 4 * 24 * MIB - 72 * MIB) // 8
    tensors = [torch.empty(9 * MIB, dtype=torch.int64, device=f"cuda:{device}"), *pieces]
    tensors += [torch.empty(rest // 4, dtype=torch.int64, device=f"cuda:{device}") for _ in range(4)]
    for number, tensor in enumerate(tensors):
        tensor.copy_(numbered(tensor.numel(), device, number << 40))
    return tensors


def peers(gib):
    """A tag that another GPU reads sleeps and wakes; then one on each GPU at once."""
    import seamalloc

    seamalloc.enable()
    import torch

    give_access()
    readers = reader(0), reader(1)
    with seamalloc.tag("weights", 0):
        tensors = stitched(0, gib)
    with seamalloc.tag("weights", 1):
        others = stitched(1, gib)

    def wrong(which, device):
        return sum(readers[device](tensor, number << 40) for number, tensor in enumerate(which))

    before = [tensor.data_ptr() for tensor in tensors]
    holds = tell("peers", "before", wrong(tensors, 1) == 0 and wrong(others, 0) == 0, views=seamalloc.stats(0)["views"])
    for kind in ("pinned", "host"):
        torch.cuda.synchronize(1)
        begin = time.perf_counter()
        size = seamalloc.sleep("weights", 0, pinned=kind == "pinned")
        fell = time.perf_counter()
        free = torch.cuda.mem_get_info(0)[0]
        taken = seamalloc.wake("weights", 0)
        woke = time.perf_counter()
        bad = {"here": wrong(tensors, 0), "there": wrong(tensors, 1)}
        copied = sum(
            int((tensor.to("cuda:1") != numbered(tensor.numel(), 1, number << 40)).sum())
            for number, tensor in enumerate(tensors)
        )
        same = before == [tensor.data_ptr() for tensor in tensors]
        holds &= tell(
            "peers",
            f"one tag, {kind}",
            size == taken and same and not any(bad.values()) and copied == 0,
            gib=round(size / GIB, 3),
            free_gib=round(free / GIB, 2),
            wrong=bad,
            copied_wrong=copied,
            sleep_s=round(fell - begin, 3),
            wake_s=round(woke - fell, 3),
        )
    done = {}

    def turn(device):
        begin = time.perf_counter()
        for _ in range(3):
            seamalloc.sleep("weights", device, pinned=True)
            seamalloc.wake("weights", device)
        done[device] = round(time.perf_counter() - begin, 3)

    threads = [threading.Thread(target=turn, args=(device,)) for device in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bad = {f"{of} by {by}": wrong(which, by) for of, which in ((0, tensors), (1, others)) for by in (0, 1)}
    holds &= tell(
        "peers",
        "a tag on each, at once, three times",
        len(done) == 2 and not any(bad.values()),
        wrong=bad,
        seconds=done,
    )
    return holds


def growth(gib):
    """A tensor grows on one GPU and is read on the other."""
    import seamalloc

    seamalloc.enable()
    import torch

    give_access()
    wrong = reader(1)
    rows, words = gib * GIB // (320 << 10), (320 << 10) // 8
    cache = seamalloc.growing_tensor((rows, words), torch.int64, 0, rows=1)
    address, bad, step = cache.tensor.data_ptr(), 0, 64
    begin = time.perf_counter()
    for first in range(0, rows, step):
        count = min(step, rows - first)
        fresh = cache.grow(first + count)[first:]
        fresh.copy_(numbered(count * words, 0, first * words).view(count, words))
        bad += wrong(fresh, first * words)
    spent = time.perf_counter() - begin
    moved = address != cache.tensor.data_ptr()
    whole = wrong(cache.tensor, 0)
    cache.shrink(rows // 10)
    cache.grow(rows)[rows // 10 :].copy_(numbered((rows - rows // 10) * words, 0, rows // 10 * words).view(-1, words))
    again = wrong(cache.tensor, 0)
    return tell(
        "growth",
        "read there as it grows",
        bad == whole == again == 0 and not moved,
        gib=gib,
        growths=-(-rows // step),
        seconds=round(spent, 3),
        wrong=[bad, whole, again],
        moved=moved,
        held_gib=round(seamalloc.stats(0)["reserved_bytes"]["all"]["current"] / GIB, 3),
    )


def spill(gib):
    """Spilled memory comes back when another GPU gets access, and nothing is spilled after that."""
    os.environ["SEAMALLOC_CONF"] = f"spill:host=16GiB,memory_limit:{gib}GiB"
    import seamalloc

    seamalloc.enable()
    import torch

    # Four fit, with some to spare; five do not.
    size = gib * GIB // 8 * 24 // 100
    first = [numbered(size, 0, number << 40) for number in range(3)]
    extra = numbered(size, 0, 3 << 40)
    more = numbered(size, 0, 4 << 40)
    # What is to come back has to find room.
    del extra
    spilled = seamalloc.stats(0)["spilled_bytes"]["current"]
    holds = tell("spill", "before", spilled > 0, spilled_gib=round(spilled / GIB, 3))
    give_access()
    left = seamalloc.stats(0)["spilled_bytes"]["current"]
    wrong = [reader(device) for device in (0, 1)]
    tensors = [(tensor, number << 40) for number, tensor in enumerate(first)] + [(more, 4 << 40)]
    bad = [sum(count(tensor, at) for tensor, at in tensors) for count in wrong]
    holds &= tell("spill", "after access", left == 0 and not any(bad), spilled_gib=round(left / GIB, 3), wrong=bad)
    try:
        held = [numbered(size, 0, 5 << 40), numbered(size, 0, 6 << 40)]
        refused = False
        del held
    except torch.OutOfMemoryError as error:
        refused = "memory" in str(error)
    bad = [sum(count(tensor, at) for tensor, at in tensors) for count in wrong]
    now = seamalloc.stats(0)["spilled_bytes"]["current"]
    return holds & tell(
        "spill", "a request that does not fit", refused and now == 0 and not any(bad), refused=refused, wrong=bad
    )


class Registered:
    """A buffer that NCCL knows, by ncclCommRegister."""

    def __init__(self, tensor):
        import torch
        import torch.distributed as dist

        self.nccl = ctypes.CDLL("libnccl.so.2")
        self.nccl.ncclCommRegister.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        self.nccl.ncclCommDeregister.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))
        self.comm, self.tensor, self.handle, self.times = backend._comm_ptr(), tensor, None, 0

    def register(self):
        handle = ctypes.c_void_p()
        status = self.nccl.ncclCommRegister(
            self.comm, self.tensor.data_ptr(), self.tensor.numel() * self.tensor.element_size(), ctypes.byref(handle)
        )
        if status != 0:
            raise RuntimeError(f"ncclCommRegister: {status}")
        self.handle, self.times = handle, self.times + 1

    def deregister(self):
        status = self.nccl.ncclCommDeregister(self.comm, self.handle)
        if status != 0:
            raise RuntimeError(f"ncclCommDeregister: {status}")
        self.handle = None


def rank(sleeps, out):
    """One process of `ddp`."""
    import seamalloc

    seamalloc.enable()
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    number = int(os.environ["RANK"])
    torch.cuda.set_device(number)
    dist.init_process_group("nccl", device_id=torch.device("cuda", number))
    torch.manual_seed(0)
    # Workspaces of libraries are nobody's tag.
    torch.nn.Linear(2048, 2048, device="cuda")(torch.ones(64, 2048, device="cuda")).sum().backward()
    with seamalloc.tag("weights"):
        layers = [part for _ in range(12) for part in (torch.nn.Linear(2048, 2048, device="cuda"), torch.nn.GELU())]
        model = torch.nn.Sequential(*layers)
    with seamalloc.tag("buffer"):
        buffer = torch.zeros(64 * MIB // 4, device="cuda")
    model = DistributedDataParallel(model, device_ids=[number])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dist.all_reduce(torch.ones(1, device="cuda"))
    known, told = Registered(buffer), []
    known.register()

    def notice(stage, name, size):
        told.append((stage, name))
        if name == "buffer" and stage == "before_sleep":
            known.deregister()
        elif name == "buffer" and stage == "awake":
            known.register()

    end = seamalloc.on_sleep(notice)
    losses, sums, spent, freed = [], [], [], []
    for step in range(STEPS):
        generator = torch.Generator(device="cuda").manual_seed(100 * step + number)
        x = torch.randn(2048, 2048, device="cuda", generator=generator)
        loss = model(x).square().mean()
        loss.backward()
        with seamalloc.tag("states"):
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        buffer.fill_(step + 1 + number)
        dist.all_reduce(buffer)
        sums.append(float(buffer.double().mean()))
        losses.append(loss.item().hex())
        if sleeps:
            torch.cuda.synchronize()
            dist.barrier()
            begin = time.perf_counter()
            tags = ("weights", "states", "buffer")
            freed.append(sum(seamalloc.sleep(name, pinned=name != "buffer", discard=name == "buffer") for name in tags))
            for name in tags:
                seamalloc.wake(name)
            spent.append(time.perf_counter() - begin)
            dist.barrier()
    line = {
        "rank": number,
        "losses": losses,
        "sums": sums == [2.0 * step + 3 for step in range(STEPS)],
        "registered": known.times,
        "told": len(told),
        "freed_mib": round(max(freed) / MIB, 1) if freed else 0,
        "turn_s": round(sorted(spent)[len(spent) // 2], 3) if spent else None,
    }
    with open(f"{out}.{number}", "w", encoding="utf-8") as file:
        json.dump(line, file)
    known.deregister()
    end()
    dist.destroy_process_group()
    return True


def ddp(_):
    """Two processes, without and with sleep."""
    import tempfile

    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("awake", "sleeps"):
            out = os.path.join(folder, name)
            command = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nproc-per-node",
                "2",
                __file__,
                "--rank",
                name,
                "--out",
                out,
            ]
            status = subprocess.run(command, check=False, timeout=150).returncode
            if status != 0:
                return tell("ddp", name, False, status=status)
            runs[name] = [json.loads(Path(f"{out}.{number}").read_text(encoding="utf-8")) for number in (0, 1)]
    equal = all(one["losses"] == other["losses"] for one, other in zip(runs["awake"], runs["sleeps"]))
    sums = all(one["sums"] for of in runs.values() for one in of)
    again = all(one["registered"] == 1 + STEPS for one in runs["sleeps"])
    last = [{name: value for name, value in one.items() if name != "losses"} for one in runs["sleeps"]]
    return tell(
        "ddp",
        "sleeps between steps",
        equal and sums and again,
        equal_losses=equal,
        ranks=last,
        last_loss=float.fromhex(runs["sleeps"][0]["losses"][-1]),
    )


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=int, default=8, help="of each tag, and of what grows")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--here", action="store_true", help="in this process")
    parser.add_argument("--rank", choices=("awake", "sleeps"), help="a process of `ddp`")
    parser.add_argument("--out")
    given = parser.parse_args()
    if given.rank:
        sys.exit(0 if rank(given.rank == "sleeps", given.out) else 1)
    if given.here:
        sys.exit(0 if {"peers": peers, "growth": growth, "spill": spill, "ddp": ddp}[given.only](given.gib) else 1)
    failed = False
    for part in PARTS if given.only is None else (given.only,):
        begin = time.perf_counter()
        status = subprocess.run(
            [sys.executable, __file__, "--here", "--only", part, "--gib", str(given.gib)], check=False
        ).returncode
        failed |= not tell(part, "process", status == 0, status=status, seconds=round(time.perf_counter() - begin, 1))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

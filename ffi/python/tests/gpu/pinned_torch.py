"""PyTorch's page-locked memory, seamalloc's in its place: python pinned_torch.py [--steps N] [--width N] [--layers N].

Needs a GPU, PyTorch 2.9 or newer, and seamalloc. Each allocator has a process of its own: `torch` (all is PyTorch's), `seamalloc`
(enable(pinned=True)), and `gpu-only` (seamalloc without it). One line of JSON for each thing that is looked at; exits with 1
where one does not hold.
"""

import argparse
import json
import subprocess
import sys
import time

MIB = 2**20
ALLOCATORS = ("torch", "gpu-only", "seamalloc")


def is_ours(allocator):
    """Returns whether page-locked memory is seamalloc's."""
    return allocator == "seamalloc"


def held(allocator):
    """The most bytes that were page-locked, and the most that were asked for where that is known."""
    import torch

    if is_ours(allocator):
        import seamalloc

        stats = seamalloc.stats("pinned")
        return {
            "reserved": stats["reserved_bytes"]["all"]["peak"],
            "requested": stats["requested_bytes"]["all"]["peak"],
        }
    return {"reserved": torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0)}


def is_pinned(allocator):
    """Requested tensors and their views are page-locked, and other tensors are not."""
    import torch

    made = [torch.empty(5, pin_memory=True), torch.zeros(1000, 1000, pin_memory=True), torch.ones(3).pin_memory()]
    views = [made[1][7, 3:], made[1].t(), made[1].view(torch.uint8)[1:]]
    holds = all(tensor.is_pinned() for tensor in made + views) and not torch.empty(5).is_pinned()
    return {"holds": holds and made[2].sum().item() == 3 and torch.empty(0, pin_memory=True).numel() == 0}


def contents(allocator):
    """Copies both ways on several streams. Each tensor is freed with its copy under way, and the next one of that size is
    written by the CPU at once: a memory that serves too early shows."""
    import torch

    streams = [torch.cuda.Stream() for _ in range(3)]
    wrong, sizes = 0, (40 * MIB, 3 * MIB + 5, 1000, 17 * MIB, 40 * MIB)
    for turn in range(30):
        arrived = []
        for number, size in enumerate(sizes):
            value = (turn * 7 + number * 31) % 251
            host = torch.empty(size, dtype=torch.uint8, pin_memory=True).fill_(value)
            with torch.cuda.stream(streams[(turn + number) % 3]):
                # What delays the copy.
                torch.cuda._sleep(3_000_000)
                arrived.append((host.to("cuda", non_blocking=True), value, streams[(turn + number) % 3]))
            del host
        for tensor, value, stream in arrived:
            back = torch.empty(tensor.shape, dtype=torch.uint8, pin_memory=True)
            with torch.cuda.stream(stream):
                wrong += int((tensor != value).any())
                back.copy_(tensor, non_blocking=True)
            stream.synchronize()
            wrong += int((back != value).any())
            # A view, and a copy of it.
            with torch.cuda.stream(stream):
                part = back[size // 3 :].to("cuda", non_blocking=True) if (size := back.numel()) > 3 else tensor
                del back
                torch.empty(size, dtype=torch.uint8, pin_memory=True).fill_(252)
                wrong += int((part != value).any())
    return {"holds": wrong == 0, "wrong": wrong}


def dataloader(allocator):
    """A DataLoader's batches, by worker processes, page-locked by its own thread."""
    import torch
    from pinned_jobs import Sequences, batches

    expected, right, locked = Sequences(24), 0, 0
    for number, ids in enumerate(batches(12)):
        locked += ids.is_pinned()
        both = torch.stack([expected[2 * number], expected[2 * number + 1]])
        right += bool((ids.to("cuda", non_blocking=True).cpu() == both).all())
    return {"holds": (right, locked) == (12, 12), "right": right, "locked": locked}


def save_on_cpu(allocator):
    """Gradients with activations on the CPU are those without."""
    import torch
    from pinned_jobs import loss_of, model

    torch.use_deterministic_algorithms(True, warn_only=True)
    trained = model(512, 4, "cuda").float()
    different = 0
    for length in (300, 700, 513):
        ids = torch.randint(0, 32000, (2, length), device="cuda")
        loss_of(trained, ids).backward()
        expected = [p.grad.clone() for p in trained.parameters()]
        trained.zero_grad(set_to_none=True)
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = loss_of(trained, ids)
        loss.backward()
        for p, gradient in zip(trained.parameters(), expected):
            # Some kernels add in any order.
            different += not torch.allclose(p.grad, gradient, rtol=1e-4, atol=1e-5)
        trained.zero_grad(set_to_none=True)
    torch.use_deterministic_algorithms(False)
    return {"holds": different == 0, "different": different}


def graphs(allocator):
    """A captured copy reads its page-locked memory at each replay, when the tensor is gone long since."""
    import torch

    target = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        source = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
        target.copy_(source, non_blocking=True)
    source.fill_(77)
    del source
    others = [torch.empty(MIB, dtype=torch.uint8, pin_memory=True).fill_(13) for _ in range(4)]
    graph.replay()
    torch.cuda.synchronize()
    found = sorted(set(target.tolist()))
    del graph, others
    torch.empty(MIB, dtype=torch.uint8, pin_memory=True).fill_(1)
    return {"holds": found == [77], "found": found[:4]}


def devices(allocator):
    """Every device copies from it and to it, whichever it was page-locked with."""
    import torch

    wrong = 0
    for turn in range(3):
        for device in range(torch.cuda.device_count()):
            host = torch.empty(8 * MIB, dtype=torch.uint8, pin_memory=True).fill_(10 * turn + device)
            there = host.to(f"cuda:{device}", non_blocking=True)
            del host
            torch.empty(8 * MIB, dtype=torch.uint8, pin_memory=True).fill_(200)
            wrong += int((there != 10 * turn + device).any())
    return {"holds": wrong == 0, "devices": torch.cuda.device_count(), "wrong": wrong}


def pools(allocator):
    """Tensors over a pool of Python's, where PyTorch's page-locked memory is its own."""
    import seamalloc
    import torch

    if allocator != "gpu-only":
        return {"holds": True, "left_out": "it is for gpu-only"}
    stream, wrong, locked = torch.cuda.Stream(), 0, 0
    for turn in range(30):
        names = (None, [stream])[turn % 2]
        if turn % 3 == 2:
            with seamalloc.pinned():
                host = torch.empty(20 * MIB, dtype=torch.uint8, pin_memory=True)
        else:
            host = seamalloc.empty_pinned(20 * MIB, dtype=torch.uint8, streams=names)
        locked += host.fill_(turn).is_pinned()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(3_000_000)
            there = host.to("cuda", non_blocking=True)
        del host
        seamalloc.empty_pinned(20 * MIB, dtype=torch.uint8).fill_(200)
        with torch.cuda.stream(stream):
            wrong += int((there != turn).any())
    with seamalloc.HostPool("pinned:0", memory_limit="64MiB") as pool:
        block = pool.allocate(40 * MIB)
        tensor = torch.frombuffer(block.view(), dtype=torch.uint8).fill_(5)
        wrong += int((tensor.to("cuda", non_blocking=True) != 5).any())
        block.record_stream(torch.cuda.current_stream())
        del tensor
        block.free()
        reserved = pool.stats()["reserved_bytes"]["all"]["current"]
    return {"holds": (wrong, locked, reserved) == (0, 30, 40 * MIB), "wrong": wrong, "locked": locked}


def statistics(allocator):
    """Figures go up and down with tensors, and `empty_cache` gives all back that is free."""
    import torch

    active = lambda: torch.cuda.host_memory_stats()["active_bytes.current"]
    owned = lambda: torch.cuda.host_memory_stats()["allocated_bytes.current"]
    empty = torch._C._host_emptyCache
    torch.cuda.synchronize()
    empty()
    before = active()
    kept = torch.empty(100 * MIB + 4096, dtype=torch.uint8, pin_memory=True)
    with_it, owned_with_it = active() - before, owned()
    del kept
    # The page-locked memory of a graph is PyTorch's to keep.
    found = {"with_it": with_it, "without": active() - before, "owned": owned_with_it, "before": before}
    empty()
    found["owned_empty"] = owned()
    expected = 100 * MIB + 4096 if is_ours(allocator) else 128 * MIB
    # PyTorch's own counts a freed block until the next request looks for blocks that the GPU has passed.
    gone = found["without"] == 0 or not is_ours(allocator)
    holds = with_it == expected and gone and owned_with_it >= expected
    return {"holds": holds and found["owned_empty"] < owned_with_it - 90 * MIB, **found}


def copies(allocator):
    """GB/s of copies of 256 MiB, the best of six, and when the call returned."""
    import torch

    size = 256 * MIB
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True).fill_(1)
    device = torch.empty(size, dtype=torch.uint8, device="cuda")
    found = {}
    for name, to, source in (("h2d", device, host), ("d2h", host, device)):
        best, issued = float("inf"), 0.0
        for _ in range(6):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            to.copy_(source, non_blocking=True)
            given = time.perf_counter() - begin
            torch.cuda.synchronize()
            if (took := time.perf_counter() - begin) < best:
                best, issued = took, given
        found[name] = round(size / best / 1e9, 2)
        found[f"{name}_issued_us"] = round(issued * 1e6, 1)
    return {"holds": True, **found}


def hits(allocator):
    """Measures a request that the cache serves, with its free: us, the median of 2,000."""
    import torch

    found = {}
    for size in (4096, 10 * MIB):
        times = []
        torch.empty(size, dtype=torch.uint8, pin_memory=True)
        for _ in range(2000):
            begin = time.perf_counter()
            torch.empty(size, dtype=torch.uint8, pin_memory=True)
            times.append(time.perf_counter() - begin)
        found[f"us_{size}"] = round(sorted(times)[1000] * 1e6, 2)
    return {"holds": True, **found}


def job(allocator):
    """Steps that offload activations, gradients and parameters: what is page-locked, and how long steps take."""
    import pinned_jobs
    import torch

    torch._C._host_emptyCache()
    times, losses, began = [], [], time.perf_counter()
    for loss in pinned_jobs.train(ARGUMENTS.steps, ARGUMENTS.width, ARGUMENTS.layers):
        now = time.perf_counter()
        times.append(now - began)
        losses.append(round(loss, 3))
        began = now
    later = sorted(times[4:]) or times
    return {
        "holds": all(loss == loss for loss in losses),
        **held(allocator),
        "first_step_s": round(times[0], 3),
        "median_step_s_from_the_fifth": round(later[len(later) // 2], 4),
        "losses": losses,
    }


# The job first: the peaks are those of the process.
CHECKS = (job, is_pinned, contents, dataloader, save_on_cpu, graphs, devices, pools, statistics, copies, hits)


def worker(allocator):
    """Runs every check with one allocator. Returns whether all hold."""
    if allocator != "torch":
        import seamalloc

        seamalloc.enable(pinned=is_ours(allocator), quiet=True)
    import torch

    torch.cuda.init()
    all_hold = True
    for check in CHECKS:
        if ARGUMENTS.only and check.__name__ not in ARGUMENTS.only:
            continue
        try:
            found = check(allocator)
        except Exception as error:  # noqa: BLE001 - the other checks are still to be made
            found = {"holds": False, "error": f"{type(error).__name__}: {error}"[:500]}
        all_hold &= found["holds"]
        print(json.dumps({"allocator": allocator, "what": check.__name__, **found}), flush=True)
    return all_hold


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--only", nargs="+", choices=[check.__name__ for check in CHECKS])
    parser.add_argument("--worker", choices=ALLOCATORS, help="one allocator, in this process")
    return parser.parse_args()


def main():
    """The command."""
    if ARGUMENTS.worker:
        sys.exit(0 if worker(ARGUMENTS.worker) else 1)
    command = [sys.executable, __file__, *sys.argv[1:], "--worker"]
    codes = [subprocess.run([*command, allocator], check=False).returncode for allocator in ALLOCATORS]
    sys.exit(1 if any(codes) else 0)


if __name__ == "__main__":
    ARGUMENTS = parse()
    main()

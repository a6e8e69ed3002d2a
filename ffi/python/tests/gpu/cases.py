"""Behaviour that PyTorch's users rely on, on a real GPU: one case a process, under one allocator.

    python cases.py CASE native|expandable|seamalloc|pluggable

Prints one line of JSON. `values` must be equal under every allocator, `figures` may differ. run.py runs all cases and
compares.
"""

import ctypes
import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time

import torch
from models import Transformer, mlp
from sharing import processes
from torch import nn

MIB = 1 << 20


def peaks():
    """Peaks of this process, by PyTorch's own statistics where they are to be had."""
    try:
        stats = torch.cuda.memory_stats()
    except RuntimeError:
        import seamalloc

        stats = {
            f"{name}.all.peak": seamalloc.stats()[name]["all"]["peak"]
            for name in ("requested_bytes", "allocated_bytes", "reserved_bytes")
        }
    live, allocated, reserved = (stats[f"{name}_bytes.all.peak"] for name in ("requested", "allocated", "reserved"))
    return {"live": live, "allocated": allocated, "reserved": reserved, "utilization": round(live / reserved, 5)}


def timed(steps, step):
    """Runs steps, and what they took."""
    values, seconds = [], []
    for index in range(steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        values.append(step(index))
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    late = sorted(seconds[len(seconds) // 2 :])
    return values, {
        "first_s": round(seconds[0], 4),
        "worst_late_s": round(late[-1], 4),
        "median_s": round(late[len(late) // 2], 5),
    }


def train_lengths(allocator):
    """A transformer with recompute, a batch of another length in each step."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    model, rng = Transformer().cuda(), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)

    def step(_):
        ids = torch.randint(0, 32000, (8, rng.randrange(300, 1900)), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    losses, times = timed(40, step)
    return {"losses": losses}, {**times, **peaks()}


def train_images(allocator):
    """Convolutions over images of changing size; cudnn.benchmark asks for the largest free block."""
    torch.backends.cudnn.benchmark = True
    rng = random.Random(0)
    layers, channels = [], 3
    for width in (64, 128, 256, 512, 512):
        layers += [
            nn.Conv2d(channels, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            nn.ReLU(),
        ]
        channels = width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sizes = [(rng.choice((16, 24, 32, 48)), rng.randrange(128, 449, 64)) for _ in range(6)]

    def step(index):
        batch, side = sizes[index % len(sizes)]
        loss = nn.functional.cross_entropy(
            model(torch.randn(batch, 3, side, side, device="cuda")), torch.zeros(batch, dtype=torch.long, device="cuda")
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.isfinite().item()

    finite, times = timed(24, step)
    return {"finite": finite}, {**times, **peaks()}


def small_train(allocator):
    """A training that needs no statistics of the allocator."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    side, losses = torch.cuda.Stream(), []
    for _ in range(20):
        with torch.cuda.stream(side):
            x = torch.randn(256, 512, device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        x.record_stream(torch.cuda.current_stream())
        loss = (model(x) - x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    torch.cuda.empty_cache()
    return {"losses": losses, "empty": torch.empty(0, device="cuda").numel()}, {}


def out_of_memory(allocator):
    """A batch that cannot fit raises, and training goes on with a smaller one."""
    torch.cuda.set_per_process_memory_fraction(0.1)
    model, seen, losses = Transformer(layers=4).cuda(), [], []
    torch._C._cuda_attach_out_of_memory_observer(
        lambda device, size, total, free: seen.append((device, size > 0, total > 0 and free > 0))
    )
    batch, text = 1 << 12, ""
    while len(losses) < 3:
        try:
            ids = torch.randint(0, 32000, (batch, 512), device="cuda", generator=torch.Generator("cuda").manual_seed(1))
            loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            loss.backward()
            losses.append(loss.isfinite().item())
        except torch.OutOfMemoryError as error:
            text, loss = str(error), None
            batch //= 4
        model.zero_grad(set_to_none=True)
    ours = allocator != "seamalloc" or "What would have helped" in text
    known = seen and all(entry == (0, True, True) for entry in seen)
    ooms = torch.cuda.memory_stats()["num_ooms"]
    return {"went_on": losses, "told": bool(known), "report": ours, "counted": ooms >= 1}, {
        "text": text[:600],
        "batch": batch,
        "num_ooms": ooms,
    }


def churn(rounds=200, seed=0):
    """Leaves holes everywhere, and asks for what fits in none."""
    rng, live = random.Random(seed), []
    for _ in range(rounds):
        live.append(torch.empty(rng.randrange(1, 60) * MIB, dtype=torch.uint8, device="cuda").fill_(7))
        if len(live) > 40:
            for _ in range(20):
                live.pop(rng.randrange(len(live)))
    del live[::2]
    return [torch.empty(rng.randrange(200, 400) * MIB, dtype=torch.uint8, device="cuda").fill_(9) for _ in range(4)]


def graphs(allocator):
    """Graphs give the same results before and after others have taken and given all memory there was."""
    model, x = mlp(), torch.randn(64, 512, device="cuda")
    loss_of = nn.MSELoss()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            loss_of(model(x), x).backward()
    torch.cuda.current_stream().wait_stream(stream)
    held = churn()
    graph = torch.cuda.CUDAGraph()
    model.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        out = model(x)
        loss = loss_of(out, x)
        loss.backward()
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=graph.pool()):
        twice = model(out) * 2
    sums = []
    for seed in range(6):
        x.copy_(torch.randn(64, 512, device="cuda", generator=torch.Generator("cuda").manual_seed(seed)))
        graph.replay()
        second.replay()
        sums.append(
            [
                out.double().sum().item(),
                loss.item(),
                model[0].weight.grad.double().sum().item(),
                twice.double().sum().item(),
            ]
        )
        eager = model(x)
        assert torch.allclose(eager, out, atol=1e-5) and torch.allclose(model(out) * 2, twice, atol=1e-4)
        del held, eager
        held = churn(seed=seed)
    del graph, second, out, loss, twice
    graphed = torch.cuda.make_graphed_callables(mlp(), (torch.randn(32, 512, device="cuda", requires_grad=True),))
    for seed in range(4):
        held = churn(seed=seed)
        y = torch.randn(32, 512, device="cuda", requires_grad=True, generator=torch.Generator("cuda").manual_seed(seed))
        result = graphed(y).pow(2).mean()
        result.backward()
        sums.append([result.item(), y.grad.double().sum().item()])
    del graphed, result, y, held
    torch.cuda.empty_cache()
    return {"sums": sums}, peaks()


def compiled(allocator):
    """Trees of graphs: forward and backward, and paths that part, so that pools are restored from checkpoints."""
    model = mlp(256)
    f = torch.compile(model, mode="reduce-overhead")
    g = torch.compile(lambda x: (x @ x.T).relu().sum(1), mode="reduce-overhead")
    h = torch.compile(lambda x: torch.cat([x, x.sin()]).cumsum(0), mode="reduce-overhead")
    optimizer, sums = torch.optim.SGD(model.parameters(), lr=0.01), []
    for step in range(12):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.randn(64, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(step))
        loss = (f(x) - x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        sums.append(loss.item())
    with torch.no_grad():
        for step in range(24):
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.randn(64, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(step))
            y = f(x)
            # Another path through the tree in each step.
            z = (g, h, h, g)[step % 4](y)
            w = (h, g)[step // 4 % 2](y)
            sums.append([y.double().sum().item(), z.double().sum().item(), w.double().sum().item()])
            del y, z, w
            held = churn(20, step)
    del held
    from torch._inductor import cudagraph_trees

    nodes = cudagraph_trees.get_container(0).tree_manager
    return {"sums": sums, "graphed": nodes is not None}, {
        "graphs": nodes.debug_checkpointing_counter if nodes else 0,
        **peaks(),
    }


def statistics(allocator):
    """Statistics, summaries, history and snapshots, and PyTorch's own viewer over them."""
    torch.cuda.memory._record_memory_history(max_entries=10000, stacks="python")
    keep = torch.zeros(3 * MIB, dtype=torch.uint8, device="cuda")
    passing = torch.zeros(50 * MIB, dtype=torch.uint8, device="cuda")
    del passing
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated() == 3 * MIB
    assert torch.cuda.max_memory_allocated() == 53 * MIB and torch.cuda.memory_reserved() >= 53 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 3 * MIB
    assert "Allocated memory" in torch.cuda.memory_summary()
    snapshot = torch.cuda.memory._snapshot()
    blocks = [
        block for segment in snapshot["segments"] for block in segment["blocks"] if block["state"] == "active_allocated"
    ]
    assert sum(block["size"] for block in blocks) == 3 * MIB
    actions = [event["action"] for event in snapshot["device_traces"][0]]
    names = {frame["name"] for block in blocks for frame in block["frames"]}
    assert "statistics" in names, names
    assert all(abs(event["time_us"] / 1e6 - time.time()) < 600 for event in snapshot["device_traces"][0])
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/shot.pickle"
        torch.cuda.memory._dump_snapshot(path)
        for what in ("stats", "trace", "trace_plot", "segment_plot"):
            out = [] if what in ("stats", "trace") else ["-o", f"{folder}/{what}.html"]
            subprocess.run(
                [sys.executable, "-m", "torch.cuda._memory_viz", what, path, *out], check=True, capture_output=True
            )
        sizes = os.path.getsize(f"{folder}/trace_plot.html") > 1000
    torch.cuda.memory._record_memory_history(enabled=None)
    with torch.profiler.profile(profile_memory=True) as profile:
        del keep
        torch.ones(MIB, device="cuda")
    moved = sum(abs(event.self_device_memory_usage) for event in profile.key_averages())
    kinds = [actions.count(kind) for kind in ("alloc", "free_requested", "free_completed")]
    return {"kinds": kinds, "viewed": sizes, "keys": len(stats), "profiled": moved >= 4 * MIB}, {
        "actions": actions[:20]
    }


def pools(allocator):
    """MemPool and use_mem_pool."""
    pool, other = torch.cuda.MemPool(), torch.cuda.MemPool()
    counts = [pool.use_count()]
    with torch.cuda.use_mem_pool(pool):
        inside = torch.ones(30 * MIB, dtype=torch.uint8, device="cuda")
        with torch.cuda.use_mem_pool(other):
            nested = torch.ones(5 * MIB, dtype=torch.uint8, device="cuda")
        counts.append(pool.use_count())
    outside = torch.ones(30 * MIB, dtype=torch.uint8, device="cuda")
    held = lambda of: sum(segment["total_size"] for segment in of.snapshot())
    sizes = [held(pool) >= 30 * MIB, held(pool) < 60 * MIB, 5 * MIB <= held(other) < 30 * MIB]
    counts.append(pool.use_count())
    del inside
    kept = held(pool) >= 30 * MIB
    del pool, other
    torch.cuda.empty_cache()
    rest = torch.cuda.memory_reserved() < 60 * MIB
    return {
        "counts": counts,
        "sizes": sizes,
        "kept": kept,
        "rest": rest,
        "sums": [outside.sum().item(), nested.sum().item()],
    }, {}


SEGMENTS = r"""
#include <cstddef>
extern "C" {
int cudaMalloc(void** address, size_t size);
int cudaFree(void* address);
int allocs = 0, frees = 0, is_short = 0;
void* segments_alloc(size_t size, int, void*) {
  void* address = nullptr;
  if (is_short || cudaMalloc(&address, size) != 0) {
    return nullptr;
  }
  allocs++;
  return address;
}
void segments_free(void* address, size_t, int, void*) {
  frees++;
  cudaFree(address);
}
}
"""


def compiled_segments(folder):
    """A library with the two functions of a pluggable allocator."""
    path = os.path.join(folder, "segments.so")
    with open("/proc/self/maps", encoding="utf-8") as maps:
        cudart = next(line.split(maxsplit=5)[5].strip() for line in maps if "libcudart" in line)
    command = [os.environ.get("CXX", "g++"), "-shared", "-fPIC", "-o", path, "-x", "c++", "-", "-x", "none", cudart]
    subprocess.run(command, input=SEGMENTS, text=True, check=True)
    return path


def own_pools(allocator):
    """MemPools with an allocator of their own, in eager work and in graphs, and unsplit ones."""
    ones = lambda size: torch.ones(size, dtype=torch.uint8, device="cuda")
    torch.cuda.init()
    with tempfile.TemporaryDirectory() as folder:
        path = compiled_segments(folder)
        library = ctypes.CDLL(path)
        count = lambda name: ctypes.c_int.in_dll(library, name)
        own = torch.cuda.memory.CUDAPluggableAllocator(path, "segments_alloc", "segments_free")
        pool, calls = torch.cuda.MemPool(own.allocator()), []
        del own
        with torch.cuda.use_mem_pool(pool):
            inside = []
            for size in (MIB, MIB, 30 * MIB):
                inside.append(ones(size))
                calls.append(count("allocs").value)
            uses = pool.use_count()
        outside = ones(30 * MIB)
        segments = sorted((at["total_size"], at["is_expandable"], len(at["blocks"])) for at in pool.snapshot())
        static, graph = torch.zeros(5 * MIB, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool.id):
            result = static * 2 + 1
        calls.append(count("allocs").value)
        replayed = []
        for value in (3, 5):
            static.fill_(value)
            graph.replay()
            replayed.append(result.sum().item())
        count("is_short").value = 1
        raised = False
        try:
            with torch.cuda.use_mem_pool(pool):
                ones(300 * MIB)
        except torch.OutOfMemoryError:
            raised = True
        count("is_short").value = 0
        sums = [block.sum().item() for block in (*inside, outside)]
        kept = inside.pop()
        del inside, result, graph, pool
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        # One segment is in use.
        left = count("allocs").value - count("frees").value
        alive = kept.sum().item()
        del kept
        torch.cuda.empty_cache()
        frees = count("frees").value
        whole = None
        if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10):
            unsplit = torch.cuda.MemPool(no_split=True)
            with torch.cuda.use_mem_pool(unsplit):
                blocks = [ones(3 * MIB), ones(3 * MIB)]
            whole = [(at["total_size"], len(at["blocks"])) for at in unsplit.snapshot()]
            del blocks
    values = {
        "calls": calls,
        "uses": uses,
        "segments": segments,
        "replayed": replayed,
        "raised": raised,
        "sums": sums,
        "left": left,
        "alive": alive,
        "frees": frees,
        "whole": whole,
    }
    return values, {}


def limits(allocator):
    """The free memory that the device reports, a limit on PyTorch's memory, and the bytes given back."""
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    before = torch.cuda.mem_get_info()[0]
    held = torch.zeros(1024 * MIB, dtype=torch.uint8, device="cuda")
    taken = before - torch.cuda.mem_get_info()[0]
    del held
    torch.cuda.empty_cache()
    back = torch.cuda.mem_get_info()[0]
    torch.cuda.set_per_process_memory_fraction(0.02)
    half = torch.cuda.get_device_properties(0).total_memory // 50
    fits = torch.empty(half - 64 * MIB, dtype=torch.uint8, device="cuda")
    try:
        torch.empty(128 * MIB, dtype=torch.uint8, device="cuda")
        refused = False
    except torch.OutOfMemoryError:
        refused = True
    torch.cuda.set_per_process_memory_fraction(1.0)
    more = torch.empty(128 * MIB, dtype=torch.uint8, device="cuda")
    fine = fits.numel() + more.numel() <= torch.cuda.memory_allocated() <= torch.cuda.memory_reserved()
    close = abs(taken - 1024 * MIB) <= 64 * MIB and abs(back - before) <= 64 * MIB
    raw = torch.cuda.caching_allocator_alloc(5 * MIB)
    torch.cuda.caching_allocator_delete(raw)
    return {"close": close, "refused": refused, "fine": fine}, {"taken": taken, "lost": before - back}


def contents(allocator):
    """Random requests, on three streams, with a pattern in each block that is looked at before it is freed."""
    rng, live = random.Random(5), []
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")

    def drop():
        block, value, stream = live.pop(rng.randrange(len(live)))
        torch.cuda.current_stream().wait_stream(stream)
        wrong.add_((block != value).sum())
        block.record_stream(torch.cuda.current_stream())

    for index in range(3000):
        stream = rng.choice(streams)
        with torch.cuda.stream(stream):
            most = rng.choice((4096, MIB, 20 * MIB, 150 * MIB))
            live.append(
                (
                    torch.full((rng.randrange(1, most),), index % 251, dtype=torch.uint8, device="cuda"),
                    index % 251,
                    stream,
                )
            )
        while len(live) > 60 or (live and rng.random() < 0.45):
            drop()
        if index % 1000 == 999:
            torch.cuda.empty_cache()
    while live:
        drop()
    torch.cuda.synchronize()
    return {"wrong": wrong.item()}, {}


def peers(allocator):
    """Copies and kernels between two GPUs, and frees on both."""
    if torch.cuda.device_count() < 2:
        return {"sums": "one GPU"}, {}
    sums = []
    for round in range(20):
        here = torch.arange(round, round + 4 * MIB, device="cuda:0", dtype=torch.int32).view(2048, 2048)
        there = here.to("cuda:1", non_blocking=True)
        # What is not contiguous is read in place by a kernel of the other device.
        turned = torch.empty(2048, 2048, dtype=torch.int32, device="cuda:1").t()
        turned.copy_(here)
        back = (there * 2).to("cuda:0")
        sums.append(
            [there.sum().item(), turned.sum().item(), bool((back == here * 2).all()), bool((turned == there).all())]
        )
        held = churn(20, round)
    del held
    torch.cuda.empty_cache()
    return {"sums": sums}, {"second": torch.cuda.memory_stats(1)["allocated_bytes.all.current"]}


CASES = [
    train_lengths,
    train_images,
    small_train,
    out_of_memory,
    graphs,
    compiled,
    statistics,
    pools,
    own_pools,
    limits,
    contents,
    peers,
    processes,
]


def main():
    name, allocator = sys.argv[1:]
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if allocator in ("seamalloc", "pluggable"):
        import seamalloc

        if allocator == "pluggable":
            # It is had only where the shim cannot be.
            os.environ.update(CXX="no-such-compiler", SEAMALLOC_CACHE=tempfile.mkdtemp())
            importlib.import_module("seamalloc._prebuilt").find = lambda torch: None
            seamalloc.enable(fallback="pluggable")
        else:
            seamalloc.enable()
    torch.manual_seed(0)
    case = next(case for case in CASES if case.__name__ == name)
    values, figures = case(allocator)
    torch.cuda.synchronize()
    if allocator == "seamalloc":
        import seamalloc

        stats = seamalloc.stats()
        figures["seamalloc"] = {
            key: stats[key]
            for key in (
                "views_built",
                "views_reused",
                "stream_waits",
                "num_sync_all_streams",
                "stall_total_ns",
                "stall_worst_ns",
            )
        }
    print(json.dumps({"values": values, "figures": figures}))


if __name__ == "__main__":
    main()

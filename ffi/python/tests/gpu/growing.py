"""A tensor that grows along its first dimension on a GPU, beside `torch.cat` and doubling copies.

    python3 ffi/python/tests/gpu/growing.py [--gib 8]

One line of JSON for each way. Every row is written by a kernel as the tensor grows, all of them are read by kernels at the end, and
`data_ptr()` is looked at after each growth. `held` are bytes of the allocator's at the peak. The ways take turns.
"""

import argparse
import json
import time

import torch

import seamalloc

ROW = (80, 2, 8, 128)
"""A token's keys and values: 80 layers of 8 heads of 128, in 16 bits: 320 KiB."""
ROW_BYTES = 320 << 10
GIB = 1 << 30
STEP = 16


def held():
    return seamalloc.stats()["reserved_bytes"]["all"]["peak"]


def driver_ms():
    """Returns the time of all driver calls so far, in ms."""
    return sum(call["total_ns"] for call in seamalloc.stats()["driver_calls"].values()) / 1e6


def number(rows, first, count):
    """Writes into each of these rows which one it is, modulo what 16 bits hold exactly."""
    numbers = torch.arange(first, first + count, device="cuda") % 251
    rows.copy_(numbers.to(torch.bfloat16).view(-1, 1, 1, 1, 1).expand(count, *ROW))


def wrong(tensor):
    """Returns the number of elements that are not those of their row."""
    found = 0
    for first in range(0, len(tensor), 512):
        rows = tensor[first : first + 512]
        numbers = (torch.arange(first, first + len(rows), device="cuda") % 251).to(torch.bfloat16)
        found += int((rows != numbers.view(-1, 1, 1, 1, 1)).sum())
    return found


def tell(way, rows, seconds, bad, **more):
    line = {"way": way, "rows": rows, "bytes": rows * ROW_BYTES, "seconds": seconds, "wrong": bad, "held": held(), **more}
    line["utilization"] = rows * ROW_BYTES / line["held"]
    print(json.dumps(line), flush=True)


def fresh():
    torch.cuda.synchronize()
    seamalloc.trim()
    torch.cuda.reset_peak_memory_stats()


def grow(total):
    cache = seamalloc.growing_tensor((total, *ROW), torch.bfloat16)
    # PyTorch gives a tensor without rows no address.
    pointer, moved, most, calls, spent = cache.grow(1).data_ptr(), 0, 0.0, 0.0, driver_ms()
    began = time.perf_counter()
    for first in range(0, total, STEP):
        count = min(STEP, total - first)
        call = time.perf_counter()
        rows = cache.grow(first + count)
        call = time.perf_counter() - call
        most, calls = max(most, call), calls + call
        moved += rows.data_ptr() != pointer
        number(rows[first:], first, count)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    figures = {"grow_s": calls, "driver_ms": driver_ms() - spent, "most_us": most * 1e6}
    bad = wrong(cache.tensor)
    tell("growing_tensor", total, seconds, bad, moved=moved, mapped=cache.memory.mapped, **figures)
    cache.shrink(total // 10)
    bad = wrong(cache.tensor)
    rows = cache.grow(total)
    number(rows[total // 10 :], total // 10, total - total // 10)
    tell("shrunk and grown", total, 0.0, bad + wrong(cache.tensor), moved=int(rows.data_ptr() != pointer))


def cat(total, every):
    """A new tensor each so many rows: every row at a time would copy 100 TiB."""
    cache = torch.empty((0, *ROW), dtype=torch.bfloat16, device="cuda")
    began, moved = time.perf_counter(), 0
    for first in range(0, total, every):
        count = min(every, total - first)
        more = torch.empty((count, *ROW), dtype=torch.bfloat16, device="cuda")
        number(more, first, count)
        before = cache.data_ptr()
        cache = torch.cat((cache, more))
        moved += cache.data_ptr() != before
    torch.cuda.synchronize()
    tell(f"torch.cat each {every} rows", total, time.perf_counter() - began, wrong(cache), moved=moved)


def double(total):
    cache, moved = torch.empty((STEP, *ROW), dtype=torch.bfloat16, device="cuda"), 0
    began, spent = time.perf_counter(), driver_ms()
    for first in range(0, total, STEP):
        count = min(STEP, total - first)
        if first + count > len(cache):
            larger = torch.empty((min(2 * len(cache), total), *ROW), dtype=torch.bfloat16, device="cuda")
            larger[:first].copy_(cache[:first])
            cache, moved = larger, moved + 1
        number(cache[first : first + count], first, count)
    torch.cuda.synchronize()
    seconds, spent = time.perf_counter() - began, driver_ms() - spent
    tell("doubling", total, seconds, wrong(cache[:total]), moved=moved, driver_ms=spent)


def warm_up():
    """Runs each kernel once: CUDA loads a kernel when it is launched first, which the first way alone would pay."""
    rows = torch.empty((2 * STEP, *ROW), dtype=torch.bfloat16, device="cuda")
    number(rows, 0, len(rows))
    rows[:STEP].copy_(rows[STEP:])
    number(torch.cat((rows[:STEP], rows)), 0, 3 * STEP)
    wrong(rows)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3, help="how often the ways take turns")
    given = parser.parse_args()
    total = int(given.gib * GIB) // ROW_BYTES
    seamalloc.enable()
    warm_up()
    for _ in range(given.rounds):
        for way in (grow, double, lambda rows: cat(rows, 1024)):
            fresh()
            way(total)


if __name__ == "__main__":
    main()

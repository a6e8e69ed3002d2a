"""The largest batch that fits, by bisection: python largest.py [--fraction PART] [--start BATCH] [JOB ...].

Needs a GPU, PyTorch and seamalloc.

A process for each job and allocator (native, expandable, seamalloc). A batch fits if a few steps of different lengths run,
the cache emptied before the first; what the card may give is limited to a part of it, so that a step is short. One line of
JSON for each.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time

ALLOCATORS = ("native", "expandable", "seamalloc")
LENGTHS = [512, 640, 768, 896, 1024]
STEPS = 4
LIMIT_S = 300


def jobs():
    """Returns functions that make the model of each job, and a batch for it."""
    import torch
    from models import Transformer

    def ids(batch, rng, shortest=300, longest=1900):
        return torch.randint(0, 32000, (batch, rng.randrange(shortest, longest)), device="cuda")

    def plain_ids(batch, rng):
        return torch.randint(0, 32000, (batch, rng.choice(LENGTHS)), device="cuda")

    return {
        "recompute": (lambda: Transformer(width=1536, layers=24), ids),
        "plain": (lambda: Transformer(width=1280, layers=24, recompute=False), plain_ids),
        "long": (lambda: Transformer(width=1024, layers=12), lambda batch, rng: ids(batch, rng, 2000, 8000)),
    }


def step(model, optimizer, ids):
    import torch

    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def fits(model, optimizer, batch, make):
    import torch

    torch.cuda.empty_cache()
    rng = random.Random(batch)
    try:
        for _ in range(STEPS):
            step(model, optimizer, make(batch, rng))
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        optimizer.zero_grad(set_to_none=True)
        return False
    return True


def search(job, allocator, fraction, start_at):
    """The largest batch, as one line. The search begins at one of this size."""
    if allocator == "seamalloc":
        import seamalloc

        seamalloc.enable()
    import torch

    torch.manual_seed(0)
    torch.cuda.set_per_process_memory_fraction(fraction)
    make_model, make = jobs()[job]
    model = make_model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    start = time.monotonic()
    fitting = {}

    def does_fit(batch):
        if batch not in fitting:
            fitting[batch] = fits(model, optimizer, batch, make)
        return fitting[batch]

    # The optimizer's state is there from the first step on.
    if not does_fit(1):
        return {"batch": 0}
    low = high = start_at
    while not does_fit(low):
        low, high = low * 3 // 4, low
    while does_fit(high):
        low, high = high, high * 5 // 4 + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if does_fit(middle) else (low, middle)
    return {"batch": low, "tries": len(fitting), "seconds": round(time.monotonic() - start, 1)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs", nargs="*", default=["recompute", "plain", "long"])
    parser.add_argument("--fraction", type=float, default=0.3)
    parser.add_argument("--allocator", choices=ALLOCATORS, help="search in this process, with one")
    parser.add_argument(
        "--start", type=int, default=16, help="a batch near the largest that fits: the search is shorter"
    )
    args = parser.parse_args()
    if args.allocator:
        print(json.dumps(search(args.jobs[0], args.allocator, args.fraction, args.start)))
        return
    for job in args.jobs:
        for allocator in ALLOCATORS:
            environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTORCH_")}
            if allocator == "expandable":
                environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
            command = [sys.executable, "-W", "ignore", __file__, job, "--allocator", allocator]
            result = {"job": job, "allocator": allocator, "fraction": args.fraction}
            try:
                done = subprocess.run(
                    [*command, "--fraction", str(args.fraction), "--start", str(args.start)],
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=LIMIT_S,
                )
                if done.returncode == 0:
                    result.update(json.loads(done.stdout.splitlines()[-1]))
                else:
                    result["error"] = done.stderr[-1000:]
            except subprocess.TimeoutExpired:
                result["error"] = "took too long"
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

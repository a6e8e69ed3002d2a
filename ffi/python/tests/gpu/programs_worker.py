"""Runs one of the programs in this process: python programs_worker.py PROGRAM ALLOCATOR DEVICE STEPS [CYCLE [FILE]].

It writes a line of JSON after each step, and one at its end, which programs.py reads. DEVICE is cuda, or cpu with tiny models.
Of a program on two GPUs each process has RANK, WORLD_SIZE and PROGRAMS_STORE, a file, and all begin a step together.
After CYCLE steps (0: never) the program's inputs begin anew. FILE gets a recording of the last steps (timeline_record.py).
PROGRAMS_LIMIT: how many bytes of the device it may hold.
"""

import json
import os
import sys
import time

PROGRAM, ALLOCATOR, DEVICE, STEPS = sys.argv[1:5]
CYCLE = int(sys.argv[5]) if len(sys.argv) > 5 else 0
RECORDING = sys.argv[6] if len(sys.argv) > 6 else None
if ALLOCATOR.startswith("seamalloc"):
    import seamalloc

    seamalloc.enable()

import torch


# Of seamalloc's statistics.
OURS = ("stream_waits", "stalls", "stall_total_ns", "stall_worst_ns", "stall_histogram", "views_built", "views_reused")


class Run:
    """The steps of a program, and its reports on them."""

    def __init__(self, out, device, steps, untold, cycle=0, recorder=None):
        self.out, self.device, self.steps = out, device, steps + untold
        # How many different inputs there are.
        self.inputs = min(cycle, self.steps) if cycle else self.steps
        self._recorder = recorder
        self.rank = int(os.environ.get("RANK", "0"))
        # Of the next step; steps before 0 are not told.
        self._number = -untold
        self._start = 0.0
        # What a program has to say at its end.
        self.facts = {}

    def size(self, full, tiny):
        """Returns the size for models on a GPU, or the tiny one for the CPU."""
        return full if self.device == "cuda" else tiny

    def say(self, **report):
        """A line for programs.py."""
        self.out.write(json.dumps(report) + "\n")
        self.out.flush()

    def cyclic(self, inputs):
        """An input for each step, of `self.inputs` different ones."""
        return [inputs[number % len(inputs)] for number in range(self.steps)]

    def begin(self):
        """A step begins."""
        if "RANK" in os.environ:
            torch.distributed.barrier()
        if self._recorder:
            self._recorder.begin(self._number)
        self._start = time.perf_counter()

    def end(self, loss):
        """The step is over."""
        value = float(loss) if loss is not None else None
        if self.device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - self._start
        if self._recorder:
            self._recorder.end(self._number)
        if self._number >= 0:
            self.say(step=self._number, seconds=round(seconds, 5), loss=value, **held())
        self._number += 1


def held():
    """Returns the bytes that seamalloc holds after a step, and its driver calls and views so far."""
    if DEVICE != "cuda" or not ALLOCATOR.startswith("seamalloc"):
        return {}
    stats = seamalloc.stats()
    calls = sum(one["count"] for one in stats["driver_calls"].values())
    return {"held": stats["reserved_bytes"]["all"]["current"], "calls": calls, "views": stats["views_built"]}


def peaks():
    """The most that the process had of the device, in bytes, and who served it."""
    if DEVICE != "cuda":
        return {}
    stats = torch.cuda.memory_stats()
    found = {name: stats.get(f"{name}_bytes.all.peak", 0) for name in ("requested", "allocated", "active", "reserved")}
    found.update(allocations=stats.get("allocation.all.allocated", 0), retries=stats.get("num_alloc_retries", 0))
    if ALLOCATOR.startswith("seamalloc"):
        # By its own count; an allocator that served nothing would say so.
        found["served"] = seamalloc.stats()["allocation"]["all"]["allocated"]
        found["enabled"] = seamalloc.enabled()
        ours = seamalloc.stats()
        found.update({name: ours[name] for name in OURS})
        found["splits"] = ours["splits"]["chunks"]
        found["driver_calls"] = {name: one for name, one in ours["driver_calls"].items() if one["count"]}
    return found


def join():
    """Joins the group of processes."""
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = None
    if DEVICE == "cuda":
        torch.cuda.set_device(rank)
        device = torch.device("cuda", rank)
    dist.init_process_group(
        "nccl" if DEVICE == "cuda" else "gloo",
        init_method=f"file://{os.environ['PROGRAMS_STORE']}",
        rank=rank,
        world_size=world,
        device_id=device,
    )


def main():
    """The command."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.manual_seed(0)
    # Losses are to be the same under all allocators.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cuda.matmul.allow_tf32 = True
    if "RANK" in os.environ:
        from programs_two_gpus import PROGRAMS

        join()
    else:
        from programs_one_gpu import PROGRAMS
    if limit := os.environ.get("PROGRAMS_LIMIT"):
        torch.cuda.set_per_process_memory_fraction(int(limit) / torch.cuda.get_device_properties().total_memory)
    program, untold = PROGRAMS[PROGRAM]
    recorder = None
    if RECORDING:
        from timeline_record import Recorder

        recorder = Recorder(RECORDING, PROGRAM, int(STEPS), max(1, CYCLE))
    run = Run(out, DEVICE, int(STEPS), untold, CYCLE, recorder)
    program(run)
    run.say(end=True, **peaks(), **run.facts, torch=torch.__version__)
    if "RANK" in os.environ:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

"""Runs programs of users under native, expandable segments and seamalloc, side by side: python programs.py --json FILE [...].

The programs are in programs_one_gpu.py and, for `--gpus 2`, programs_two_gpus.py. Each has a process (on two GPUs two) for
each allocator. The allocators take turns, step by step, and begin in another order each time: whose turn it is has the GPU
and half of the cores to itself but for programs that are starting meanwhile on the other half. FILE gets a line of JSON for
each step and for the end of each process; programs_table.py makes a table of it.

Near the limit: `seamalloc@1.02` and the like may hold 1.02 times what the program had live in an earlier run, whose FILE
`--live` names. PyTorch's set_per_process_memory_fraction says so to each of them.
"""

import argparse
import contextlib
import json
import os
import queue
import sys
import tempfile
import time
from pathlib import Path

from json_process import JsonProcess, seamalloc_options

WORKER = Path(__file__).resolve().with_name("programs_worker.py")
ALLOCATORS = ("native", "expandable", "seamalloc")
NAMES = {
    1: (
        "hf_trainer",
        "accelerate",
        "lightning",
        "peft",
        "diffusers",
        "geometric",
        "serving",
        "compile_default",
        "compile_reduce_overhead",
    ),
    2: ("ddp", "fsdp2", "pipeline"),
}
# Run where they are named: not all allocators fit on a GPU at once, or little is shown of what they can go wrong by.
LARGE = {1: ("launch_bound", "large_trainer", "fixed", "fixed_recomputed"), 2: ("fsdp2_1b", "fsdp2_8b")}
# Started at once, in programs; beginning with those that compile, which takes longest.
STARTING = 4
STEP_S = 60
# A step at whose end a recording is written.
RECORDED_STEP_S = 180
START_S = 240
ERROR_CHARACTERS = 1500


def limited(allocator):
    """An allocator's name without its limit, and the limit, part of what is live; None: it has none."""
    name, _, factor = allocator.partition("@")
    return name, float(factor) if factor else None


def live_of(path):
    """{program: bytes}: the most that was live without a limit, by an earlier run. PyTorch's allocators count alike."""
    live = {}
    for line in map(json.loads, path.read_text().splitlines()):
        if "end" in line and "@" not in line["allocator"]:
            live[line["program"]] = max(live.get(line["program"], 0), line["allocated"])
    return live


class Process(JsonProcess):
    """A program under one allocator, or one rank of it."""

    def __init__(self, program, allocator, options, rank, store):
        self.name = {"program": program, "allocator": allocator, "rank": rank}
        # What meets in a file, or keeps compiled code there, is one allocator with one limit.
        place = f"{store}-{allocator}"
        allocator, factor = limited(allocator)
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "SEAMALLOC_CONF"))}
        env["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        env["TORCHINDUCTOR_CACHE_DIR"] = f"{place}-inductor"
        env["TRITON_CACHE_DIR"] = f"{place}-triton"
        env["OMP_NUM_THREADS"] = "2"
        if (conf := seamalloc_options(allocator)) is not None:
            env["SEAMALLOC_CONF"] = conf
        if allocator == "expandable":
            env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        if factor:
            env["PROGRAMS_LIMIT"] = str(int(factor * options.live[program]))
        if options.gpus > 1:
            env.update(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(options.gpus),
                PROGRAMS_STORE=place,
            )
        else:
            env["CUDA_VISIBLE_DEVICES"] = env.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        arguments = [program, allocator, options.device, str(options.steps), str(options.cycle)]
        if options.record and allocator == "native":
            arguments.append(str(options.record / f"{program}.{rank}.json.gz"))
        super().__init__(WORKER, arguments, env)

    def pin(self, cores):
        """Puts all of its threads on these cores, and those that they will start."""
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{self.process.pid}/task"):
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(thread), cores)

    def go(self):
        """Its turn."""
        self.say("go")

    def answer(self, limit_s):
        """Its next line. Raises RuntimeError where it has ended, or says nothing in time."""
        try:
            line = super().answer(limit_s)
        except queue.Empty:
            raise RuntimeError(f"said nothing for {limit_s:.0f} s. {self.errors(ERROR_CHARACTERS)}") from None
        if line is None:
            raise RuntimeError(f"ended with exit status {self.process.returncode}. {self.errors(ERROR_CHARACTERS)}")
        return line


class Programs:
    """A program under every allocator."""

    def __init__(self, program, options, folder, cores):
        self.program, self.options = program, options
        self.started = time.monotonic()
        self.ranks = {
            allocator: [
                Process(program, allocator, options, rank, Path(folder) / program) for rank in range(options.gpus)
            ]
            for allocator in options.allocators
        }
        for process in self.all():
            process.pin(cores)

    def all(self):
        """Its processes."""
        return [process for ranks in self.ranks.values() for process in ranks]

    def drop(self, allocator, error, write):
        """Goes on without an allocator under which it failed."""
        for process in self.ranks.pop(allocator):
            process.end()
        write(program=self.program, allocator=allocator, error=str(error))

    def hear(self, allocator, limit_s, write):
        """The next lines of all ranks under an allocator; None where one failed, which ends the others."""
        try:
            deadline = time.monotonic() + limit_s
            return [process.answer(deadline - time.monotonic()) for process in self.ranks[allocator]]
        except RuntimeError as error:
            self.drop(allocator, error, write)
            return None

    def measure(self, cores, write):
        """All steps, in turns."""
        ready = {}
        for allocator in list(self.ranks):
            left = START_S - (time.monotonic() - self.started)
            ready[allocator] = self.hear(allocator, left, write)
        limit_s = RECORDED_STEP_S if self.options.record else STEP_S
        each = max(1, len(cores) // self.options.gpus)
        for ranks in self.ranks.values():
            for rank, process in enumerate(ranks):
                process.pin(cores[rank * each : (rank + 1) * each] or cores)
        for number in range(self.options.steps):
            left = list(self.ranks)
            for allocator in left[number % max(1, len(left)) :] + left[: number % max(1, len(left))]:
                for process in self.ranks[allocator]:
                    process.go()
                for rank, line in enumerate(self.hear(allocator, limit_s, write) or ()):
                    write(program=self.program, allocator=allocator, rank=rank, **line)
        for allocator in list(self.ranks):
            for rank, line in enumerate(self.hear(allocator, limit_s, write) or ()):
                write(program=self.program, allocator=allocator, rank=rank, **line)
        self.end()

    def end(self):
        """Ends what is left of it."""
        for process in self.all():
            process.end()


def fit_beside(name, running):
    """Whether a program can be started beside others: a large one has the GPUs to itself."""
    large = LARGE[1] + LARGE[2]
    return not running or (name not in large and all(one.program not in large for one in running))


def run(options, out):
    """All programs. Returns whether each went to its end under every allocator."""
    cores = sorted(os.sched_getaffinity(0))
    half = max(1, len(cores) // 2)
    measured, starting = cores[:half], cores[half:] or cores
    start, fine = time.monotonic(), True

    def write(**line):
        nonlocal fine
        if "error" in line:
            fine = False
            print(line["program"], line["allocator"], line["error"], sep="\t", flush=True)
        out.write(json.dumps({**line, "gpus": options.gpus}) + "\n")
        out.flush()

    # Those that compile start first and are measured last.
    waiting = sorted(options.programs, key=lambda name: not name.startswith("compile"))
    running = []
    with tempfile.TemporaryDirectory(prefix="programs-", ignore_cleanup_errors=True) as folder:
        try:
            while waiting or running:
                while waiting and len(running) < STARTING and fit_beside(waiting[0], running):
                    running.append(Programs(waiting.pop(0), options, folder, starting))
                running.sort(key=lambda one: one.program.startswith("compile"))
                one = running.pop(0)
                if time.monotonic() - start > options.seconds:
                    one.end()
                    write(program=one.program, allocator="all", error="not reached: the time is over")
                    continue
                one.measure(measured, write)
                write(program=one.program, seconds=round(time.monotonic() - start, 1))
        finally:
            for one in running:
                one.end()
    return fine


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda text: text.split(",")
    parser.add_argument(
        "--json", type=Path, required=True, help="gets a line for each step; is added to if it is there"
    )
    parser.add_argument("--gpus", type=int, choices=(1, 2), default=1)
    parser.add_argument("--programs", type=names, help="of " + ", ".join(NAMES[1] + LARGE[1] + NAMES[2] + LARGE[2]))
    parser.add_argument(
        "--allocators",
        type=names,
        default=list(ALLOCATORS),
        help="of native, expandable, seamalloc, and seamalloc:OPTIONS; in options + stands for a comma; each may have a limit",
    )
    parser.add_argument("--live", type=Path, metavar="FILE", help="what --json wrote without limits, for @FACTOR")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cycle", type=int, default=0, help="inputs begin anew after so many steps; 0: never")
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FOLDER",
        help="native's last steps, twice --cycle and 2, are recorded in FOLDER/PROGRAM.RANK.json.gz: timeline_record.py",
    )
    parser.add_argument("--seconds", type=float, default=3600, help="after which no further program is measured")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny models, to try the programs"
    )
    options = parser.parse_args()
    options.programs = options.programs or list(NAMES[options.gpus])
    for name in options.programs:
        known = NAMES[options.gpus] + LARGE[options.gpus]
        if name not in known:
            parser.error(f"{name} is no program on {options.gpus} GPUs; expected some of {', '.join(known)}")
    options.live = live_of(options.live) if options.live else {}
    limits = [name for name in options.allocators if limited(name)[1]]
    unknown = [name for name in options.programs if name not in options.live]
    if limits and unknown:
        parser.error(f"{limits[0]} needs --live, a file in which {unknown[0]} came to its end without a limit")
    if options.record:
        if options.device != "cuda" or options.steps < 2 * (max(1, options.cycle) + 1):
            parser.error("--record needs a GPU, and --steps of at least twice --cycle and 2")
        options.record.mkdir(parents=True, exist_ok=True)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    with open(options.json, "a") as out:
        fine = run(options, out)
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()

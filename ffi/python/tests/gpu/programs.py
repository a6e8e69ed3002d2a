"""Runs programs of users under native, expandable segments and seamalloc, each alone: python programs.py --json FILE [...].

The programs are in programs_one_gpu.py and, for `--gpus 2`, programs_two_gpus.py. A process (on two GPUs two) runs a program
under one allocator from its start to its end, with the machine to itself; then comes the next allocator. All allocators make
a round, and there are several: processes that run side by side, and single runs, differ by more than allocators do. FILE
gets a line of JSON for each step and for the end of each process; programs_table.py makes a table of it.

Near the limit: `seamalloc@1.02` and the like may hold 1.02 times what the program had live in an earlier run, whose FILE
`--live` names. PyTorch's set_per_process_memory_fraction says so to each of them.
"""

import argparse
import itertools
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
# Run where they are named: they take long, or little is shown of what they can go wrong by.
NAMED = {1: ("launch_bound", "large_trainer", "fixed", "fixed_recomputed"), 2: ("fsdp2_1b", "fsdp2_8b")}
# Before the first line of a process, and before each later one.
START_S = 300
STEP_S = 60
# Where a recording may be written at a step's end.
RECORDED_STEP_S = 180
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


def process(about, rank, options, folder):
    """Starts a program under one allocator, or one rank of it. In round 0 its last steps are recorded."""
    program, allocator, number = about["program"], about["allocator"], about["round"]
    # Compiled code is kept for one allocator with one limit; ranks meet in a file of their round.
    place = f"{folder}/{program}-{allocator}"
    store = f"{place}-{number}-store"
    allocator, factor = limited(allocator)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "SEAMALLOC_CONF"))}
    env["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    env["TORCHINDUCTOR_CACHE_DIR"] = f"{place}-inductor"
    env["TRITON_CACHE_DIR"] = f"{place}-triton"
    if (conf := seamalloc_options(allocator)) is not None:
        env["SEAMALLOC_CONF"] = conf
    if allocator == "expandable":
        env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if factor:
        env["PROGRAMS_LIMIT"] = str(int(factor * options.live[program]))
    if options.gpus > 1:
        env.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(options.gpus), PROGRAMS_STORE=store)
    else:
        env["CUDA_VISIBLE_DEVICES"] = env.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    arguments = [program, allocator, options.device, str(options.steps), str(options.cycle)]
    if number == 0:
        arguments.append(str(options.record / f"{program}.{rank}.json.gz"))
    return JsonProcess(WORKER, arguments, env)


def lines_of(one, step_s):
    """The lines of a process, up to that of its end. Raises RuntimeError where it ends before, or says nothing in time."""
    limit_s, line = START_S, {}
    while "end" not in line:
        try:
            line = one.answer(limit_s)
        except queue.Empty:
            raise RuntimeError(f"said nothing for {limit_s} s. {one.errors(ERROR_CHARACTERS)}") from None
        if line is None:
            raise RuntimeError(f"ended too early. {one.errors(ERROR_CHARACTERS)}")
        yield line
        limit_s = step_s


def lines_of_all(processes, step_s):
    """The lines of all processes of a program, and of what failed. In the end none of them runs."""
    try:
        for rank, one in enumerate(processes):
            for line in lines_of(one, step_s):
                yield {"rank": rank, **line}
    except RuntimeError as error:
        # Of several, the one that crashed is the cause, and not the one that waited for it.
        crashed = (one for one in processes if one.process.poll())
        causes = (f"exit status {one.process.returncode}. {one.errors(ERROR_CHARACTERS)}" for one in crashed)
        yield {"error": next(causes, str(error))}
    finally:
        for one in processes:
            one.end()


def run(options, out):
    """Runs all programs. Returns whether each went to its end under every allocator in every round."""
    start, fine = time.monotonic(), True
    step_s = RECORDED_STEP_S if options.record else STEP_S
    runs = [(number, allocator) for number in range(1, options.rounds + 1) for allocator in options.allocators]
    if options.record:
        runs.insert(0, (0, "native"))
    with tempfile.TemporaryDirectory(prefix="programs-", ignore_cleanup_errors=True) as folder:
        for program, (number, allocator) in itertools.product(options.programs, runs):
            about = {"program": program, "allocator": allocator, "round": number, "gpus": options.gpus}
            lines = [{"error": "not reached: the time is over"}]
            if time.monotonic() - start <= options.seconds:
                ranks = range(options.gpus)
                lines = lines_of_all([process(about, rank, options, folder) for rank in ranks], step_s)
            for line in lines:
                if "error" in line:
                    fine = False
                    print(program, allocator, f"round {number}", line["error"], sep="\t", flush=True)
                elif number == 0:
                    # Recorded steps measure nothing.
                    continue
                out.write(json.dumps({**about, **line}) + "\n")
                out.flush()
    return fine


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda text: text.split(",")
    parser.add_argument(
        "--json", type=Path, required=True, help="gets a line for each step; is added to if it is there"
    )
    parser.add_argument("--gpus", type=int, choices=(1, 2), default=1)
    parser.add_argument("--programs", type=names, help="of " + ", ".join(NAMES[1] + NAMED[1] + NAMES[2] + NAMED[2]))
    parser.add_argument(
        "--allocators",
        type=names,
        default=list(ALLOCATORS),
        help="of native, expandable, seamalloc, and seamalloc:OPTIONS; in options + stands for a comma; each may have a limit",
    )
    parser.add_argument("--live", type=Path, metavar="FILE", help="what --json wrote without limits, for @FACTOR")
    parser.add_argument("--rounds", type=int, default=3, help="how often each program runs under each allocator")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cycle", type=int, default=0, help="inputs begin anew after so many steps; 0: never")
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FOLDER",
        help="before the rounds native runs once more, and its last steps, twice --cycle and 2, are recorded in"
        " FOLDER/PROGRAM.RANK.json.gz: timeline_record.py",
    )
    parser.add_argument("--seconds", type=float, default=7200, help="after which no further process is started")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny models, to try the programs"
    )
    options = parser.parse_args()
    options.programs = options.programs or list(NAMES[options.gpus])
    for name in options.programs:
        known = NAMES[options.gpus] + NAMED[options.gpus]
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

#!/usr/bin/env python3
"""A thousand copies of real snapshots through `seamalloc fleet`, by both engines, with seconds, memory and a comparison.

    measure.py --copies 500 A.pickle --copies 500 B.pickle.gz -- --quick > measured.json

Each copy is a file of its own, and each is looked at. What stands behind `--` are options of the command. Memory is sampled
twice a second: the proportional set size of the command with all that it has started (files that are shared count once), the
resident set size of the command alone, and the largest one of a process that looks at a file. Needs psutil.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

MIB = 1 << 20


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--copies", nargs=2, action="append", metavar=("N", "FILE"), required=True)
    parser.add_argument("--engine", action="append", help="processes, ray [default: both]")
    parser.add_argument("--cores", type=int, default=2)
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args, options = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    with tempfile.TemporaryDirectory() as folder:
        size = copy(args.copies, Path(folder))
        about = {"ranks": sum(int(count) for count, _ in args.copies), "bytes": size, "options": options, "load_before": os.getloadavg()}
        results = {}
        for engine in args.engine or ["processes", "ray"]:
            results[engine] = measured(engine, folder, args.cores, options)
        digests = {result["sha256"] for result in results.values()}
        about["equal"] = len(digests) == 1
        print(json.dumps({**about, "load_after": os.getloadavg(), "engines": results}, indent=1))


def copy(wanted, folder):
    """Copies of the files, one kind after the other in turns, and their bytes in all."""
    left = [[int(count), Path(file)] for count, file in wanted]
    total, number, size = sum(count for count, _ in left), 0, 0
    while number < total:
        for kind in left:
            if kind[0] > 0:
                kind[0] -= 1
                ending = "".join(kind[1].suffixes[-2:]) if kind[1].suffix == ".gz" else kind[1].suffix
                made = folder / f"rank-{number:04}{ending}"
                shutil.copy(kind[1], made)
                size, number = size + made.stat().st_size, number + 1
    return size


def measured(engine, folder, cores, options):
    command = [sys.executable, "-m", "seamalloc", "fleet", f"{folder}/rank-*", "--engine", engine]
    command += ["--workers", str(cores), "--json", *options]
    with open(f"{folder}/{engine}.json", "wb") as out:
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True)
        samples, said = [], []
        reader = threading.Thread(target=lambda: said.extend(process.stderr))
        reader.start()
        while process.poll() is None:
            samples.append(sample(psutil.Process(process.pid), time.monotonic() - start))
            time.sleep(0.5)
        seconds = time.monotonic() - start
        reader.join()
    content = Path(f"{folder}/{engine}.json").read_bytes()
    job = json.loads(content)["job"] if content else {}
    # Folders differ between runs of this program; the engines of one have the same.
    half = [one for one in samples if one["at"] > seconds / 2]
    return {
        "seconds": round(seconds, 1),
        "code": process.returncode,
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes_of_json": len(content),
        "ranks": job.get("ranks"),
        "broken": job.get("broken"),
        "held": {name: of["reserved"] for name, of in job.get("strategies", {}).items()},
        "largest_step": {name: of["largest_step"] for name, of in job.get("strategies", {}).items()},
        "peak_all_pss_mib": most(samples, "all"),
        "peak_all_pss_mib_second_half": most(half, "all"),
        "peak_command_rss_mib": most(samples, "command"),
        "command_rss_mib_by_tenths": [round(at(samples, seconds * tenth / 10)["command"] / MIB, 1) for tenth in range(1, 11)],
        "peak_one_whatif_rss_mib": most(samples, "whatif"),
        "most_whatif_at_a_time": max((one["count"] for one in samples), default=0),
        "samples": len(samples),
        "said": [line.strip() for line in said if "left" not in line][:5],
    }


def sample(command, now):
    found = {"at": now, "all": 0, "command": 0, "whatif": 0, "count": 0}
    try:
        processes = [command, *command.children(recursive=True)]
    except psutil.Error:
        processes = []
    for process in processes:
        try:
            rss, line = process.memory_info().rss, process.cmdline()
            found["all"] += process.memory_full_info().pss
        except (psutil.Error, OSError):
            continue
        if process.pid == command.pid:
            found["command"] = rss
        if line[1:2] == ["whatif"]:
            found["whatif"], found["count"] = max(found["whatif"], rss), found["count"] + 1
    return found


def most(samples, key):
    return round(max((one[key] for one in samples), default=0) / MIB, 1)


def at(samples, moment):
    """The last sample before a moment that has the command."""
    before = [one for one in samples if one["at"] <= moment and one["command"]]
    return before[-1] if before else {"command": 0}


if __name__ == "__main__":
    main()

"""Compares allocators on the same traces, in one run on one machine: PyTorch's own in three configurations, cudaMalloc,
and seamalloc's strategies through the C library. README.md beside this file says how, and what the columns mean.

    python3 compare.py --library libseamalloc.so --out results traces/*.csv.gz
"""
import argparse
import gzip
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time

import table

HERE = pathlib.Path(__file__).resolve().parent
STRATEGIES = ("stitch", "expandable", "caching", "gmlake")
TORCH = {
    "torch-native": "",
    "torch-expandable": "expandable_segments:True",
    "torch-async": "backend:cudaMallocAsync",
}
CHANGES_RESULTS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "SEAMALLOC_CONF")
# In seconds.
PASS_LIMIT_S = 5.0
# cudaMalloc takes some 40 us a call and cudaFree as much, in every pass: one timed pass after the first must do, and of
# the largest trace a part of the first.
RAW = {"timed": 2, "plain": 0, "limit": 3.0}
# A process is ended where it is this much later than its passes may be: a driver that hangs ends one candidate only.
START_LIMIT_S = 60


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=pathlib.Path, help="csv traces, .csv or .csv.gz; smallest first")
    parser.add_argument("--library", type=pathlib.Path, help="libseamalloc.so, for seamalloc's strategies")
    parser.add_argument("--pair", action="append", default=[], metavar="NAME=PATH.so,ALLOCATE,FREE",
                        help="another library with the pluggable signature; may be given again")
    parser.add_argument("--only", help="candidates by name, separated by commas")
    parser.add_argument("--conf", default="", help="options of seamalloc beside the strategy, such as chunk_size_mb:8")
    parser.add_argument("--replay", type=pathlib.Path, help="the replay program, where it was built elsewhere")
    parser.add_argument("--no-cuda", action="store_true",
                        help="libraries only, without a GPU: seamalloc on the simulated device SEAMALLOC_DEVICE")
    parser.add_argument("--timed", type=int, default=4, help="passes in which each operation is timed (4)")
    parser.add_argument("--plain", type=int, default=3, help="passes after those that are timed as a whole (3)")
    parser.add_argument("--budget", type=float, default=280, help="seconds after which no process is begun (280)")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for raw.jsonl and table.md")
    return parser.parse_args()


def candidates(args):
    """Name, what `replay` calls it, and its environment."""
    found = []
    if not args.no_cuda:
        found += [(name, "torch", {"PYTORCH_CUDA_ALLOC_CONF": conf}) for name, conf in TORCH.items()]
        found.append(("cudaMalloc", "cuda", {}))
    if args.library:
        spec = f"{args.library.resolve()},seamalloc_malloc,seamalloc_free"
        more = f",{args.conf}" if args.conf else ""
        found += [(kind, spec, {"SEAMALLOC_CONF": f"strategy:{kind}{more}"}) for kind in STRATEGIES]
    for pair in args.pair:
        name, _, spec = pair.partition("=")
        found.append((name, spec, {}))
    if args.only:
        names = args.only.split(",")
        unknown = set(names) - {name for name, _, _ in found}
        if unknown:
            sys.exit(f"no such candidate: {', '.join(sorted(unknown))}")
        found = [one for one in found if one[0] in names]
    return found


def torch_folders():
    """PyTorch's version, where its headers and libraries are, and the CUDA runtime that it has loaded."""
    import torch

    here = pathlib.Path(torch.__file__).parent
    with open("/proc/self/maps", encoding="utf-8") as maps:
        runtime = sorted({line.split(maxsplit=5)[5].strip() for line in maps if "/libcudart" in line})
    if not runtime:
        sys.exit("PyTorch has loaded no libcudart: is this build of it for CUDA?")
    runtime = pathlib.Path(runtime[0])
    compiler = shutil.which("nvcc")
    toolkit = compiler and pathlib.Path(compiler).resolve().parent.parent
    homes = [os.environ.get("CUDA_HOME"), toolkit, "/usr/local/cuda"]
    # Those of the runtime's own package come first; where they lack a part, a toolkit has it.
    includes = [here / "include", runtime.parent.parent / "include"]
    includes += [pathlib.Path(home) / "include" for home in homes if home]
    includes = [path for path in includes if path.is_dir()]
    for header in ("c10/cuda/CUDACachingAllocator.h", "cuda_runtime_api.h", "crt/host_defines.h"):
        if not any((path / header).exists() for path in includes):
            folders = ", ".join(map(str, includes))
            sys.exit(f"{header} is in none of {folders}; CUDA_HOME names the toolkit's folder")
    return torch.__version__, includes, [here / "lib", runtime.parent], runtime


def prepare(args, scratch):
    """The replay program, the environment that it needs, and PyTorch's version."""
    environment = {key: value for key, value in os.environ.items() if key not in CHANGES_RESULTS}
    compiler = os.environ.get("CXX", "c++").split()
    command = [*compiler, "-O2", "-std=c++17", "-Wall", str(HERE / "replay.cpp")]
    version = None
    if args.no_cuda:
        command.append("-DNO_CUDA")
    else:
        environment.pop("SEAMALLOC_DEVICE", None)
        version, includes, folders, runtime = torch_folders()
        # -isystem: their warnings are not ours.
        command += [part for path in includes for part in ("-isystem", str(path))]
        command += [f"-L{folders[0]}", "-lc10_cuda", "-lc10", str(runtime)]
        before = environment.get("LD_LIBRARY_PATH", "").split(":")
        environment["LD_LIBRARY_PATH"] = ":".join(path for path in [*map(str, folders), *before] if path)
    if args.replay:
        return args.replay.resolve(), environment, version
    program = scratch / "replay"
    subprocess.run([*command, "-ldl", "-o", str(program)], check=True)
    return program, environment, version


def unpacked(path, scratch):
    if path.suffix != ".gz":
        return path
    plain = scratch / path.name.removesuffix(".gz")
    with gzip.open(path, "rb") as packed, open(plain, "wb") as out:
        shutil.copyfileobj(packed, out)
    return plain


def replay(command, environment, longest):
    """The lines that it printed, and what it said beside them."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=longest)
        text, said = done.stdout, {"stderr": done.stderr.strip()[:2000]} if done.stderr.strip() else {}
        if done.returncode != 0:
            said["error"] = f"exit code {done.returncode}"
    except subprocess.TimeoutExpired as expired:
        text, said = (expired.stdout or b"").decode(), {"error": f"ended after {longest:.0f} s"}
    whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [json.loads(line) for line in whole], said


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def main():
    args = arguments()
    begin = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder, open(args.out / "raw.jsonl", "w", encoding="utf-8") as raw:
        scratch = pathlib.Path(folder)
        program, environment, version = prepare(args, scratch)

        def keep(row):
            rows.append(row)
            print(json.dumps(row), file=raw, flush=True)

        keep({"machine": processor(), "cores": os.cpu_count(), "torch": version, "date": time.strftime("%Y-%m-%d")})
        for path in sorted(args.traces, key=lambda path: path.stat().st_size):
            trace = unpacked(path, scratch)
            name = path.name.removesuffix(".gz").removesuffix(".csv")
            for candidate, spec, extra in candidates(args):
                row = {"trace": name, "candidate": candidate}
                if time.monotonic() - begin > args.budget:
                    keep({**row, "error": "left out: no time left"})
                    continue
                passes = {"timed": args.timed, "plain": args.plain, "limit": PASS_LIMIT_S}
                passes = RAW if spec == "cuda" else passes
                command = [str(program), spec, str(trace)]
                command += [part for name, value in passes.items() for part in (f"--{name}", str(value))]
                longest = START_LIMIT_S + (passes["timed"] + passes["plain"]) * passes["limit"]
                lines, said = replay(command, {**environment, **extra}, longest)
                for line in lines:
                    keep({**row, **line})
                if said:
                    keep({**row, **said})
            print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)
            if trace != path:
                trace.unlink()
    (args.out / "table.md").write_text(table.render(rows), encoding="utf-8")
    if not any("pass" in row for row in rows):
        sys.exit(f"nothing was measured; {args.out}/table.md says why")


main()

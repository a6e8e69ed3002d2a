"""Runs cases.py under native and seamalloc, and compares: python run.py [CASE ...]. Needs a GPU, PyTorch, and seamalloc.

One line of JSON for each run, one for each comparison; exits with 1 where one fails. About four minutes.
"""

import concurrent.futures
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Alone on the GPU, because they measure; the rest runs side by side.
ALONE = {
    "train_lengths": ("native", "native", "expandable", "seamalloc"),
    "train_images": ("native", "seamalloc"),
    "limits": ("native", "seamalloc"),
}
TOGETHER = {
    "compiled": ("native", "native", "seamalloc"),
    "graphs": ("native", "seamalloc"),
    "contents": ("seamalloc",),
    "out_of_memory": ("native", "seamalloc"),
    "statistics": ("native", "seamalloc"),
    "pools": ("native", "seamalloc"),
    "own_pools": ("native", "seamalloc"),
    "peers": ("native", "seamalloc"),
    "processes": ("native", "expandable", "seamalloc", "command"),
    "small_train": ("native", "seamalloc", "command", "pluggable"),
}
OURS = ("seamalloc", "command", "pluggable")
LIMIT_S = {"compiled": 150}
DEFAULT_LIMIT_S = 70
AT_ONCE = 5


def run(case, allocator):
    """One case in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTORCH_")}
    if allocator == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    command = [sys.executable, "-W", "ignore", str(HERE / "cases.py"), case, allocator]
    if allocator == "command":
        # The program switches nothing on itself.
        command = [sys.executable, "-m", "seamalloc", "run", str(HERE / "cases.py"), case, "native"]
    start = time.monotonic()
    result = {"case": case, "allocator": allocator, "ok": False}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_S.get(case, DEFAULT_LIMIT_S)
        )
        if done.returncode == 0:
            result.update(json.loads(done.stdout.splitlines()[-1]), ok=True)
        else:
            result["error"] = (done.stderr or done.stdout)[-2500:]
    except subprocess.TimeoutExpired:
        result["error"] = "took too long"
    except (ValueError, IndexError) as error:
        result["error"] = f"no result: {error}"
    result["seconds"] = round(time.monotonic() - start, 1)
    print(json.dumps(result), flush=True)
    return result


def compare(results):
    """Compares seamalloc's result of each case with native's."""
    fine = True
    for case in dict.fromkeys(result["case"] for result in results):
        of = lambda allocator: [
            result for result in results if result["case"] == case and result["allocator"] == allocator and result["ok"]
        ]
        native, ours = of("native"), [result for allocator in OURS for result in of(allocator)]
        wanted = [result for result in results if result["case"] == case and result["allocator"] in OURS]
        line = {"compare": case, "ran": len(ours) == len(wanted)}
        reproducible = len({json.dumps(result["values"]) for result in native}) == 1
        if native and ours:
            line["native_reproduces_itself"] = reproducible if len(native) > 1 else None
            line["equal"] = all(result["values"] == native[0]["values"] for result in ours)
        if case == "contents" and ours:
            line["equal"] = ours[0]["values"]["wrong"] == 0
        line["ok"] = line["ran"] and (line.get("equal", False) or (len(native) > 1 and not reproducible))
        for name in ("median_s", "first_s", "reserved", "live", "utilization"):
            figures = {
                result["allocator"]: result["figures"].get(name)
                for result in results
                if result["case"] == case and result["ok"]
            }
            if any(figures.values()):
                line[name] = figures
        fine &= line["ok"]
        print(json.dumps(line), flush=True)
    return fine


def main():
    chosen = sys.argv[1:] or [*ALONE, *TOGETHER]
    # Compiles the shim, which the others find.
    first = run("small_train", "seamalloc")
    if not first["ok"]:
        sys.exit(1)
    results = [run(case, allocator) for case, allocators in ALONE.items() if case in chosen for allocator in allocators]
    jobs = [(case, allocator) for case, allocators in TOGETHER.items() if case in chosen for allocator in allocators]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as workers:
        results += workers.map(run, *zip(*jobs)) if jobs else []
    sys.exit(0 if compare(results) else 1)


if __name__ == "__main__":
    main()

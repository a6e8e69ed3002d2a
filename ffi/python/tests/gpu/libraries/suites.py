"""The libraries' own tests over their own allocators and over seamalloc, on one GPU; the long ones at the same time.

    python suites.py --tests FOLDER --out FOLDER [--only numba cupy rmm cuda_core] [--select EXPRESSION] [--budget SECONDS]

FOLDER has `cupy/` (CuPy's tests), `rmm/` (those of python/rmm/rmm/tests); Numba's are in its package, cuda.core's are here.
Beside the libraries: pip install pytest pytest-xdist filecheck cffi (the last two are what Numba's tests import).
Prints a line of JSON for each suite, and for each test that differs one more.
"""

import argparse
import collections
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Seconds for the start and the end of a suite's processes.
ENDS = 12
CUPY = [
    *(f"core_tests/test_{name}.py" for name in (
        "core", "dlpack", "elementwise", "flags", "function", "iter", "multithreading", "ndarray", "ndarray_adv_indexing",
        "ndarray_complex_ops", "ndarray_contiguity", "ndarray_conversion", "ndarray_copy_and_view",
        "ndarray_cuda_array_interface", "ndarray_elementwise_op", "ndarray_get", "ndarray_indexing", "ndarray_math",
        "ndarray_owndata", "ndarray_reduction", "ndarray_scatter", "ndarray_ufunc", "ndarray_unary_op", "reduction", "scan",
        "syncdetect", "ufunc_methods", "userkernel",
    )),
    *(f"cuda_tests/test_{name}.py" for name in ("device", "graph", "memory", "memory_hook", "pinned_memory", "stream")),
    *(f"creation_tests/test_{name}.py" for name in ("basic", "from_data", "matrix", "ranges")),
    "manipulation_tests", "indexing_tests",
]
# In the order in which they are run: what is about memory first.
NUMBA = [
    "cudadrv",
    *(f"cudapy/test_{name}" for name in (
        "array", "array_alignment", "array_args", "array_methods", "array_reductions", "cuda_array_interface",
        "device_array_capture", "ipc", "multithreads", "multiprocessing", "multigpu", "stream_api", "reduction", "ufuncs",
        "gufunc", "gufunc_scalar", "gufunc_scheduling", "vectorize", "vectorize_complex", "vectorize_decor",
        "vectorize_device", "record_dtype", "datetime", "retrieve_autoconverted_arrays", "serialize", "slicing", "sm",
        "sync", "transpose", "montecarlo", "matmul", "laplace", "mandel", "blackscholes", "atomics", "random", "localmem",
        "constmem", "forall", "globals", "dispatcher", "cupy_bfloat16_interop", "numba_interop", "casting", "complex",
        "boolean", "enums", "exception", "freevar", "idiv", "intrinsics", "iterators", "lang", "operator", "nondet",
    )),
    "nrt",
]


def numba_tests():
    """Numba's tests are a package below another one without a name, which pytest would put on the path: files that import them."""
    spec = importlib.util.find_spec("numba.cuda.tests")
    found = [Path(folder) for folder in spec.submodule_search_locations if (Path(folder) / "cudadrv").is_dir()]
    folder = Path("/tmp") / "numba-tests"
    folder.mkdir(exist_ok=True)
    files = []
    for name in NUMBA:
        path = found[0] / name
        for file in sorted(path.glob("test_*.py")) if path.is_dir() else [path.with_name(path.name + ".py")]:
            if not file.is_file():
                continue
            part = file.parent.name
            name_here = f"test_{len(files):03}_{part}_{file.stem[5:]}.py"
            (folder / name_here).write_text(f"from numba.cuda.tests.{part}.{file.stem} import *\n")
            files.append(name_here)
    return folder, files


def suites(tests):
    numba, numba_files = numba_tests()
    return {
        "cuda_core": (HERE, ["cuda_core_memory.py"], 40, 0),
        "rmm": (tests / "rmm", ["."], 50, 0),
        "numba": (numba, numba_files, 140, 7),
        "cupy": (tests / "cupy", [f"cupy_tests/{name}" for name in CUPY], 110, 7),
    }


def start(name, over, out, suite, limit, select=None):
    folder, files, _, workers = suite
    outcomes = out / f"{name}-{over}.jsonl"
    for name_known in ("used", "left"):
        outcomes.with_name(f"{outcomes.name}.{name_known}").unlink(missing_ok=True)
    environment = dict(
        os.environ, LIBRARY=name, OVER=over, OUTCOMES=str(outcomes), SECONDS_AT_MOST=str(limit), SEAMALLOC_QUIET="1",
        PYTHONPATH=os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]), CUPY_CACHE_DIR=f"/tmp/cupy-{over}",
    )
    if over == "ours":
        # Several processes at once; RMM's pools take half of what is free.
        environment["SEAMALLOC_CONF"] = "memory_limit:16GiB" if workers else ""
        if name == "numba":
            environment["NUMBA_CUDA_MEMORY_MANAGER"] = "seamalloc.numba"
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "suites_plugin", "-p", "no:cacheprovider", "--tb=short", "-W", "ignore",
        "-o", "addopts=", "-o", "filterwarnings=", "--continue-on-collection-errors", "--rootdir", str(folder),
        *(["-c", str(folder / "pytest.ini")] if (folder / "pytest.ini").exists() else ["-c", "/dev/null"]),
        *(["-k", select] if select else []), *(["-n", str(workers), "--dist", "loadfile"] if workers else []), *files,
    ]
    log = open(out / f"{name}-{over}.log", "w")
    return subprocess.Popen(["timeout", "-s", "INT", "-k", "8", str(limit + 12), *command], cwd=folder, env=environment,
                            stdout=log, stderr=subprocess.STDOUT)


def read(path):
    found = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            found[entry["test"]] = entry
    return found


def left(path):
    """Returns how many tests there was no time for, in processes that ended by themselves; None if none did."""
    path = path.with_name(path.name + ".left")
    return sum(map(int, path.read_text().split())) if path.exists() else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tests", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--select", help="pytest's -k: only tests whose names have it")
    parser.add_argument("--budget", type=float, help="seconds for all of them, more or less than they have; each gets its share")
    chosen = parser.parse_args()
    chosen.out = chosen.out.resolve()
    chosen.out.mkdir(parents=True, exist_ok=True)
    missing = [name for name in ("pytest", "xdist", "filecheck", "cffi") if importlib.util.find_spec(name) is None]
    if missing:
        parser.error(f"not installed: {', '.join(missing)}")
    known = suites(chosen.tests.resolve())
    picked = {name: known[name] for name in chosen.only or known}
    # Beside what a suite may take, its processes start and end.
    needed = sum(suite[2] + ENDS for suite in picked.values())
    part = chosen.budget / needed if chosen.budget else 1.0
    for name, suite in picked.items():
        limit = max(5, int(suite[2] * part))
        if suite[3]:
            running = {over: start(name, over, chosen.out, suite, limit, chosen.select) for over in ("own", "ours")}
            codes = {over: process.wait() for over, process in running.items()}
        else:
            codes = {over: start(name, over, chosen.out, suite, limit // 2, chosen.select).wait() for over in ("own", "ours")}
        found = {over: read(chosen.out / f"{name}-{over}.jsonl") for over in codes}
        both = found["own"].keys() & found["ours"].keys()
        counts = {over: collections.Counter(found[over][test]["outcome"] for test in both) for over in found}
        differing = [test for test in sorted(both) if found["own"][test]["outcome"] != found["ours"][test]["outcome"]]
        used = chosen.out / f"{name}-ours.jsonl.used"
        print(json.dumps({
            "suite": name, "tests": len(both), "own": counts["own"], "ours": counts["ours"], "differ": len(differing),
            "only_own": len(found["own"].keys() - both), "only_ours": len(found["ours"].keys() - both), "codes": codes,
            "left": {over: left(chosen.out / f"{name}-{over}.jsonl") for over in codes},
            "requests_ours": used.read_text().splitlines() if used.exists() else None,
        }), flush=True)
        for test in differing:
            print(json.dumps({"suite": name, "test": test, "own": found["own"][test]["outcome"],
                              "ours": found["ours"][test]["outcome"],
                              "text": found["ours"][test]["text"][-600:] or found["own"][test]["text"][-300:]}), flush=True)
        for test in sorted(both):
            if test not in differing and found["ours"][test]["outcome"] in ("failed", "error"):
                print(json.dumps({"suite": name, "both_fail": test, "text": found["own"][test]["text"][-160:]}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

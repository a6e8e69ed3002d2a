"""The rows that the tables are made of.

Owns: the runs of the command, some at once, and the rows that `.ci/figures` stores.
"""

import concurrent.futures
import gzip
import json
import os
import subprocess

# The recorded jobs, in the order of the tables.
JOBS = ["gpt2xl-N", "resnet-multi", "moe-R", "opt1.3b-R", "opt13b-LR", "llama1b-ppo", "llama8b-fsdp2"]
STRATEGIES = ["caching", "expandable", "gmlake", "stitch"]
# The one with several streams, and how many operations its CPU runs ahead of the GPU.
STREAMS, AHEAD = "llama8b-fsdp2", 1500
# The jobs, and the last of them once more as the real one runs.
CASES = [*((job, 0) for job in JOBS), (STREAMS, AHEAD)]
# The sizes of chunks that are studied, in MiB, beside the default.
SIZES = [2, 4, 6, 8, 10, 12, 16, 20, 28, 32, 40, 48, 64]
FRAG_LIMITS = [2, 20, 64, 128, 256, 512, 1024]
FORTY_PASSES = [("wait", lag) for lag in (0, 1000, AHEAD, 12000)] + [("completed", lag) for lag in (100, AHEAD, 3000)]
# How much more than its live bytes a device has that is nearly too small, in percent.
NEARLY = 3
# A run did not have enough memory, which is in its row.
OUT_OF_MEMORY = 3
_THREE = ["--strategy", "caching,expandable,stitch", "--passes", "3"]
# Pictures of docs/why.md and docs/planning.md.
DRAWN = {
    "holes": ["replay", "docs/holes.csv", "--device", "sim:h200,capacity=4GiB", *_THREE],
    "cliff": ["fit", "llama1b-ppo", "gpt2xl-N", *_THREE, "--times-live", "1.02,1.05,1.2"],
    "buffers": ["plan", "docs/buffers.csv", "--method", "first-fit"],
    # A busy machine needs longer for the proof.
    "plan": ["plan", "resnet-multi", "--time-limit", "120"],
    "plan-first-fit": ["plan", "opt1.3b-R", "--method", "first-fit"],
    "plan-chainer": ["plan", "opt1.3b-R", "--method", "chainer"],
}


class Runs:
    """The rows of all runs, those in `more` among them: command lines by name."""

    def __init__(self, root, command, folder, more):
        self.folder = folder
        self._root = root
        self._command = command
        stored = root / "crates/cli/tests/data/figures.jsonl.gz"
        with gzip.open(stored, "rt", encoding="utf-8") as lines:
            rows = map(json.loads, lines)
            self.stored = {(row["lag"], row["trace"], row["strategy"], row["pass"]): row for row in rows}
        # The longest first.
        asked = {
            "chunks": ["study", "chunks", "--sizes", ",".join(map(str, SIZES)), "--json",
                       "--svg", str(folder / "chunk-sizes.svg")],
            **{f"fit-{kind}": ["fit", "recorded", "--strategy", kind, "--json"] for kind in reversed(STRATEGIES)},
            "recorded-picture": ["stress", "recorded", "--svg", str(folder / "stress.svg")],
            "passes-20": ["stress", "recorded", "--strategy", "stitch", "--passes", "20", "--json"],
            "lag": ["study", "lag", "--json", "--svg", str(folder / "run-ahead.svg")],
            "chunks-ahead": ["study", "chunks", "--lag", str(AHEAD), "--json", STREAMS],
            **{f"forty-{sharing}-{lag}": [*self._stitch(STREAMS, 40), "--lag", str(lag), "--conf", f"sharing:{sharing}"]
               for sharing, lag in FORTY_PASSES},
            **{f"frag-{mib}": ["replay", "recorded", "--strategy", "gmlake", "--passes", "3", "--json",
                               "--conf", f"fragLimit:{mib << 20}"] for mib in FRAG_LIMITS},
            **more,
            # Pictures alone. The pages that show them say how they are made.
            **{name: [*words, "--svg", str(folder / f"{name}.svg")] for name, words in DRAWN.items()},
            **{f"near-{job}-{lag}": ["replay", job, "--passes", "3", "--lag", str(lag), "--json",
                                     "--device", self._nearly(job)] for job, lag in CASES},
        }
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            self._rows = dict(zip(asked, pool.map(self._run, asked.values())))

    @staticmethod
    def _stitch(job, passes):
        return ["replay", job, "--strategy", "stitch", "--passes", str(passes), "--json"]

    def _nearly(self, job):
        return f"sim:h200,capacity={self.live(job) * (100 + NEARLY) // 100}B"

    def _run(self, arguments):
        run = [self._command, *arguments]
        done = subprocess.run(run, cwd=self._root, capture_output=True, text=True, check=False)
        if done.returncode not in (0, OUT_OF_MEMORY):
            raise SystemExit(f"seamalloc {' '.join(arguments)}: ended with {done.returncode}: {done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines()] if "--json" in arguments else []

    def live(self, job):
        """The most bytes requested and not freed."""
        return self.row(job, "stitch")["peak_live"]

    def row(self, job, strategy, number=1, lag=0):
        """A stored row: of a job or a generated workload, a strategy, a pass."""
        return self.stored[lag, job, strategy, number]

    def workloads(self):
        """The names of all recorded jobs and generated workloads, in their order."""
        return list(dict.fromkeys(trace for _, trace, _, _ in self.stored))

    def of(self, name, *keys):
        """The rows of a run, by the values of these keys."""
        return {tuple(row[key] for key in keys): row for row in self._rows[name]}

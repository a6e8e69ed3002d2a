"""Replays csv traces through PyTorch's own allocator, native and with expandable segments, and prints what it reserved.

    seamalloc convert kv-batch kv-batch.csv.gz          # here, no GPU needed
    python3 torch_replay.py kv-batch.csv.gz ...         # on a machine with a GPU and PyTorch

One JSON object a line. A free that waited for another stream is made where the trace says that it completed.
"""
import gzip
import json
import os
import subprocess
import sys

CONFIGURATIONS = ("", "expandable_segments:True")


def replay(path):
    import torch

    torch.cuda.init()
    torch.zeros(1, device="cuda").cpu()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    streams, live = {}, {}
    with gzip.open(path, "rt") as lines:
        for line in lines:
            field = line.rstrip().split(",")
            if field[0] == "a":
                _, block, size, stream = field
                if stream not in streams:
                    streams[stream] = 0 if stream == "0" else torch.cuda.Stream()
                live[block] = torch.cuda.caching_allocator_alloc(int(size), 0, streams[stream])
            elif field[0] == "f":
                torch.cuda.caching_allocator_delete(live.pop(field[1]))
    stats = torch.cuda.memory_stats()
    print(json.dumps({
        "trace": os.path.basename(path).removesuffix(".csv.gz"),
        "conf": os.environ["PYTORCH_CUDA_ALLOC_CONF"],
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "peak_reserved": stats["reserved_bytes.all.peak"],
        "retries": stats["num_alloc_retries"],
        "device_alloc": stats["num_device_alloc"] - before["num_device_alloc"],
    }), flush=True)


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--one":
        return replay(sys.argv[2])
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    # A process each: the configuration is read once, and nothing is left cached from another trace.
    for conf in CONFIGURATIONS:
        for path in sys.argv[1:]:
            environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf}
            subprocess.run([sys.executable, sys.argv[0], "--one", path], env=environment, check=True)


main()

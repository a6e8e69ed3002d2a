"""Trains a Llama of about a billion parameters on less memory than it has live: python spill.py [--steps N] [--parts 0.9 0.8].

First under PyTorch's own allocator, for the losses, the time of a step, and the most bytes that are live. Then each allocator may
hold only a part of these: PyTorch's die, and seamalloc with `spill:host=SIZE` runs to the end. Losses must be equal to the bit.
With `advise` the program says that the optimizer's states are cold.

Each run has a process of its own and prints a line of JSON; the last line has the slowdown for the bytes spilled. `--device cpu`
with `--tiny` tries the program without a GPU, without limits.
"""

import argparse
import json
import os
import subprocess
import sys
import time

SPILL = "spill:host=48GiB"
TIMEOUT_S = 80
LAST = 4


def model_of(tiny, device):
    """A decoder like Llama's, by PyTorch alone."""
    import torch
    from torch import nn
    from torch.nn import functional

    width, layers, heads, inner, vocabulary = (64, 2, 4, 128, 100) if tiny else (2048, 16, 32, 5632, 32000)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.out = nn.Linear(width, width, bias=False)
            self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
            self.down = nn.Linear(inner, width, bias=False)

        def forward(self, x):
            batch, length, _ = x.shape
            qkv = self.qkv(self.first(x)).view(batch, length, 3, heads, width // heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
            y = self.second(x)
            return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(vocabulary, width)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.norm = nn.RMSNorm(width)
            self.head = nn.Linear(width, vocabulary, bias=False)

        def forward(self, ids):
            x = self.embedding(ids)
            for layer in self.layers:
                x = layer(x)
            logits = self.head(self.norm(x))
            return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())

    torch.manual_seed(0)
    with torch.device(device):
        return Model(), vocabulary


def worker(options):
    """Runs the training once, and prints its line."""
    cuda = options.device == "cuda"
    if options.allocator == "seamalloc" and cuda:
        import seamalloc

        seamalloc.enable()
    import torch

    torch.use_deterministic_algorithms(True)
    line = {"allocator": options.allocator, "part": options.part, "advise": options.advise, "conf": os.environ.get("SEAMALLOC_CONF")}
    if cuda:
        total = torch.cuda.get_device_properties(0).total_memory
        line["gpu"] = torch.cuda.get_device_name(0)
        if options.limit:
            torch.cuda.set_per_process_memory_fraction(options.limit / total)
    losses, times = [], []
    try:
        model, vocabulary = model_of(options.tiny, options.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=cuda, foreach=False)
        generator = torch.Generator().manual_seed(1)
        batch, length = (2, 16) if options.tiny else (8, 1024)
        for step in range(options.steps):
            ids = torch.randint(0, vocabulary, (batch, length), generator=generator).to(options.device)
            begun = time.monotonic()
            with torch.autocast(options.device, torch.bfloat16):
                loss = model(ids)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item().hex())
            times.append(time.monotonic() - begun)
            if step == 0 and options.advise:
                states = (value for state in optimizer.state.values() for value in state.values())
                for value in states:
                    # Counters of steps are the CPU's, or small.
                    if value.is_cuda and value.numel() > 1:
                        seamalloc.advise(value, "cold")
    except torch.OutOfMemoryError as error:
        line["died"] = f"step {len(losses)}: {str(error)[:160]}"
    line.update(losses=losses, seconds=[round(one, 4) for one in times], median_s=sorted(times[-LAST:])[len(times[-LAST:]) // 2] if times else None)
    if cuda:
        stats = torch.cuda.memory_stats()
        line.update({name: stats.get(f"{name}_bytes.all.peak", 0) for name in ("requested", "allocated", "reserved")})
    if options.allocator == "seamalloc" and cuda:
        ours = seamalloc.stats()
        line.update(enabled=seamalloc.enabled(), spilled=ours["spilled_bytes"], spills=ours["spills"], stall_ms=ours["stall_total_ns"] / 1e6)
        line["returned"] = seamalloc.unspill()
    print(json.dumps(line), flush=True)


def run(options, allocator, part=None, live=None, conf=None, advise=False):
    """Starts a run. Returns its process."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "SEAMALLOC_CONF"))}
    env["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    if allocator == "expandable":
        env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if conf is not None:
        env["SEAMALLOC_CONF"] = conf
    command = [sys.executable, __file__, "--allocator", allocator, "--device", options.device, "--steps", str(options.steps)]
    if part:
        command += ["--part", str(part), "--limit", str(int(part * live))]
    command += ["--advise"] * advise + ["--tiny"] * options.tiny
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def line_of(process):
    """Prints and returns the line of a run that has ended."""
    try:
        out, errors = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate()
    lines = [line for line in out.splitlines() if line.startswith("{")]
    found = json.loads(lines[-1]) if lines else {"failed": process.returncode, "errors": errors[-1500:]}
    print(json.dumps(found), flush=True)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--parts", type=float, nargs="*", default=[0.9, 0.8])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--allocator", help="one run, in this process")
    parser.add_argument("--part", type=float)
    parser.add_argument("--limit", type=int, help="bytes")
    parser.add_argument("--advise", action="store_true")
    options = parser.parse_args()
    if options.allocator:
        return worker(options)
    native = line_of(run(options, "native"))
    plenty = line_of(run(options, "seamalloc", conf=""))
    if options.device != "cuda":
        return 0 if native.get("losses") == plenty.get("losses") and native.get("losses") else 1
    live, good = native["requested"] or native["allocated"], native["losses"] == plenty.get("losses")
    # Those that die are soon gone, and are not timed: together.
    dying = [run(options, name, part, live) for part in options.parts for name in ("native", "expandable")]
    died = [("died" in line_of(process)) for process in dying]
    summary = []
    for part in options.parts:
        for advise in (True, False):
            found = line_of(run(options, "seamalloc", part, live, SPILL, advise))
            same = found.get("losses") == native["losses"]
            good &= same and "died" not in found
            if found.get("spilled"):
                slower = found["median_s"] - plenty["median_s"]
                spilled = found["spilled"]["current"]
                summary.append(
                    {
                        "part": part,
                        "advise": advise,
                        "equal_losses": same,
                        "spilled_gib": spilled / 2**30,
                        "times_slower": found["median_s"] / plenty["median_s"],
                        "s_per_gib_and_step": slower / (spilled / 2**30) if spilled else None,
                        "spilling_ms": found["spills"]["total_ns"] / 1e6,
                    }
                )
    print(json.dumps({"live_gib": live / 2**30, "pytorch_dies": all(died), "good": good, "runs": summary}), flush=True)
    return 0 if good and all(died) else 1


if __name__ == "__main__":
    sys.exit(main())

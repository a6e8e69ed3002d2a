"""Records what a job that offloads asks of page-locked memory, as a trace: python pinned_record.py OUTPUT.seam [options].

Needs a GPU, PyTorch 2.9 or newer, and seamalloc, whose recorder notes each allocation and free, and when its streams had passed.
`seamalloc pinned OUTPUT.seam` says what caches hold for it. Prints a line of JSON.

With --shapes it needs no GPU: it writes what `save_on_cpu` alone would ask for, generated from the model's shapes on the CPU, not
recorded. Attention keeps there what FlashAttention does: query, key, value, output, and a number for each row.
"""

import argparse
import json
import sys
import time

import pinned_jobs
import torch


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", help="the trace: .seam, .csv or .csv.gz (with --shapes: .csv)")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2, help="of the DataLoader")
    parser.add_argument("--no-optimizer", action="store_true", help="activations and batches alone")
    parser.add_argument("--shapes", action="store_true", help="generate from shapes, without a GPU")
    return parser.parse_args()


def record(arguments):
    """Runs the job, and records it."""
    import seamalloc

    seamalloc.enable(pinned=True)
    began = time.perf_counter()
    with seamalloc.record(arguments.output, device="pinned"):
        losses = list(
            pinned_jobs.train(
                arguments.steps, arguments.width, arguments.layers, arguments.workers, not arguments.no_optimizer
            )
        )
        torch.cuda.synchronize()
    stats = seamalloc.stats("pinned")
    return {
        "trace": arguments.output,
        "source": "recorded",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "seconds": round(time.perf_counter() - began, 2),
        "losses": [round(loss, 4) for loss in losses],
        "requested": stats["requested_bytes"]["all"]["peak"],
        "reserved": stats["reserved_bytes"]["all"]["peak"],
    }


class Kept:
    """A tensor that `save_on_cpu` would have copied. Autograd drops it when it would drop the copy."""

    def __init__(self, lines, tensor):
        self.lines, self.tensor = lines, tensor
        self.number = lines.number
        lines.number += 1
        self.size = tensor.numel() * tensor.element_size()
        if self.size:
            lines.write(f"a,{self.number},{self.size},0\n")

    def __del__(self):
        if self.size:
            self.lines.write(f"r,{self.number}\nf,{self.number}\n")


class Attention(torch.autograd.Function):
    """A layer that keeps what FlashAttention keeps for its backward pass, without the arithmetic."""

    @staticmethod
    def forward(ctx, query, key, value):
        rows = torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device)
        out = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, out, rows)
        return out

    @staticmethod
    def backward(ctx, gradient):
        return tuple(map(torch.empty_like, ctx.saved_tensors[:3]))


class Lines:
    """The lines of a trace in csv."""

    def __init__(self, file, meta):
        self.file, self.number = file, 0
        self.write(f"# {json.dumps(meta)}\n")

    def write(self, text):
        self.file.write(text)


def shapes(arguments):
    """Writes what `save_on_cpu` would ask for, by the model's shapes."""
    meta = {
        "job": f"save_on_cpu-w{arguments.width}-l{arguments.layers}",
        "source": "generated from the model's shapes on the CPU, not recorded",
        "torch": torch.__version__,
    }
    shaped = pinned_jobs.model(arguments.width, arguments.layers, "meta")
    torch.nn.functional.scaled_dot_product_attention = lambda q, k, v, is_causal: Attention.apply(q, k, v)
    with open(arguments.output, "w", encoding="utf-8") as file:
        lines = Lines(file, meta)
        for step in range(arguments.steps):
            length = pinned_jobs.LENGTHS[step % len(pinned_jobs.LENGTHS)]
            ids = torch.zeros((2, length), dtype=torch.long, device="meta")
            with torch.autograd.graph.saved_tensors_hooks(lambda t: Kept(lines, t), lambda kept: kept.tensor):
                loss = pinned_jobs.loss_of(shaped, ids)
            loss.backward()
            shaped.zero_grad(set_to_none=True)
            del loss
    return {"trace": arguments.output, **meta}


def main():
    """The command."""
    arguments = parse()
    if not arguments.shapes and not torch.cuda.is_available():
        sys.exit("there is no GPU; --shapes needs none")
    print(json.dumps(shapes(arguments) if arguments.shapes else record(arguments)), flush=True)


if __name__ == "__main__":
    main()

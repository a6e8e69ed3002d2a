"""Graphs whose memory is exchanged between launches: python split_graphs.py [--rounds N].

A graph of kernels, copies and fills works on blocks that share chunks with free ones. A large request then has those chunks
split, so other physical memory lies under the addresses in the graph's nodes. It is launched again, and each block must hold
what the launches make of it. Prints a line of JSON for each round; exits with 1 where a block is wrong or nothing was split.
"""

import argparse
import json
import os
import sys

import seamalloc
import torch

OPTIONS = "split:last_resort,memory_limit:640MiB,chunk_size_mb:32"
MIB = 2**20
WORDS = MIB  # of four bytes: a block of 4 MiB
BLOCKS = 128
# The chunks that are not wholly free must be split for it: half of 512 MiB and 128 more are free.
LARGE = 360 * MIB


def block(value):
    """Returns 4 MiB of a value."""
    return torch.full((WORDS,), value, dtype=torch.int32, device="cuda")


def capture(kept):
    """A graph that in each three blocks adds 1 to the first, copies it to the second, and fills the third with zeros."""
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=side):
        for first, second, third in zip(kept[::3], kept[1::3], kept[2::3], strict=False):
            scratch = first + 1
            first.copy_(scratch)
            second.copy_(first)
            third.zero_()
    return graph


def holds(tensor, value):
    """Returns whether all elements are `value`. The comparison allocates nothing of the tensor's size: no memory is free."""
    return int(tensor.min()) == int(tensor.max()) == value


def wrong(kept, starts, launches):
    """The numbers of the blocks that do not hold what so many launches make of them."""
    found = []
    for number in range(len(kept) // 3 * 3):
        first = starts[number // 3 * 3] + launches
        expected = (first, first, 0)[number % 3]
        if not holds(kept[number], expected):
            found.append(number)
    return found


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    rounds = parser.parse_args().rounds
    os.environ["SEAMALLOC_CONF"] = OPTIONS
    seamalloc.enable()
    bad = False
    for number in range(rounds):
        # Chunks as large as may be, of which the blocks are parts.
        torch.empty(BLOCKS * WORDS, dtype=torch.int32, device="cuda")
        every = [block(value) for value in range(BLOCKS)]
        # Other blocks each round.
        kept = [one for place, one in enumerate(every) if (place + number) % 2]
        starts = [value for value in range(BLOCKS) if (value + number) % 2]
        graph = capture(kept)
        graph.replay()
        for third in kept[2::3]:
            # What the launch after the exchange has to put right.
            third.fill_(7)
        torch.cuda.synchronize()
        before = seamalloc.stats()["splits"]["chunks"]
        del every
        large = torch.empty(LARGE, dtype=torch.uint8, device="cuda")
        large.fill_(0xAB)
        splits = seamalloc.stats()["splits"]["chunks"] - before
        for _ in range(3):
            graph.replay()
        found = wrong(kept, starts, 4)
        intact = holds(large, 0xAB)
        print(json.dumps({"round": number, "splits": splits, "blocks": len(kept), "wrong": found, "large": intact}), flush=True)
        bad |= bool(found) or not intact or splits == 0
        del graph, large, kept
        torch.cuda.empty_cache()
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()

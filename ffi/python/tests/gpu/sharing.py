"""Tensors that go to another process and come back (CUDA IPC): the case `processes` of cases.py."""

import random

import torch
import torch.multiprocessing as mp

MIB = 1 << 20
ROUNDS = 12
SIZES = [1 << 10, 3 * MIB, 20 * MIB, 90 * MIB, 300 * MIB]


def numbers(size, seed):
    """`size` bytes that differ from place to place and from seed to seed."""
    return torch.arange(size // 4, dtype=torch.int32, device="cuda") * 3 + seed


def worker(received, answers):
    """The other process: looks at what it gets, changes it in place, and sends something of its own."""
    held = [torch.empty(random.Random(index).randrange(1, 60) * MIB, device="cuda") for index in range(10)]
    del held[::2]
    while True:
        message = received.get()
        if message is None:
            break
        seed, tensors = message
        sums = []
        for tensor in tensors:
            size = tensor.numel() * 4
            sums.append([bool((tensor == numbers(size, seed)).all()), tensor[-1].item()])
            tensor.add_(1)
        torch.cuda.synchronize()
        mine = numbers(40 * MIB, seed + 7)
        answers.put((sums, mine))
        # Kept until the other side has seen it.
        received.get()
        del message, tensors, tensor, mine
    torch.cuda.ipc_collect()
    answers.put(torch.cuda.memory_allocated())


def processes(allocator):
    """Sends tensors that lie in one chunk, in many, and in views, again and again."""
    context = mp.get_context("spawn")
    to, back = context.Queue(), context.Queue()
    child = context.Process(target=worker, args=(to, back))
    child.start()
    rng = random.Random(0)
    sums = []
    held = []
    for round in range(ROUNDS):
        # Holes of all sizes: what is large then is stitched.
        held += [torch.empty(rng.randrange(1, 80) * MIB, dtype=torch.uint8, device="cuda") for _ in range(30)]
        rng.shuffle(held)
        del held[20:]
        tensors = [numbers(size, round) for size in SIZES]
        expected = [tensor.clone() for tensor in tensors]
        torch.cuda.synchronize()
        to.put((round, tensors))
        found, theirs = back.get()
        right = [bool((tensor == before + 1).all()) for tensor, before in zip(tensors, expected)]
        sums.append([found, right, bool((theirs == numbers(40 * MIB, round + 7)).all())])
        del theirs
        to.put("seen")
        del tensors, expected
    to.put(None)
    left = back.get()
    child.join()
    del held
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    return {"sums": sums, "exit": child.exitcode}, {"left_in_child": left, "left": torch.cuda.memory_allocated()}

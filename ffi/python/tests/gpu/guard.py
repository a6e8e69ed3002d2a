"""Guard mode on a real GPU: planted mistakes are found, and correct programs are not blamed. One case a process, since an
illegal address ends the context.

    python guard.py            runs all cases
    python guard.py CASE       runs one

Prints a line for each case: what was found, or what was not.
"""

import subprocess
import sys

import torch

import seamalloc
import seamalloc.guard

# Of the clock of a kernel that does nothing: about a second.
LONG = 2_000_000_000


class Raw:
    """Addresses as a tensor takes them, however far they go."""

    def __init__(self, address, bytes_):
        self.__cuda_array_interface__ = {
            "shape": (bytes_,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 2,
        }


def raw(size):
    """An allocation without a tensor."""
    return torch.cuda.caching_allocator_alloc(size)


def over(address, size):
    """A tensor over addresses that begin in an allocation."""
    return torch.as_tensor(Raw(address, size), device="cuda")


def illegal(use, address, part):
    """A kernel that uses an address illegally, and what seamalloc says of it."""
    try:
        use()
        torch.cuda.synchronize()
    except RuntimeError as error:
        assert "illegal memory access" in str(error), error
    else:
        raise AssertionError("the kernel ran")
    text = seamalloc.explain(address)
    assert part in text, text
    return text


def overrun():
    address = raw(1000)
    return illegal(lambda: over(address, 1024 + 64).fill_(1), address + 1024, "behind the end of allocation #")


def use_after_free():
    address = raw(5 << 20)
    stale = over(address, 5 << 20)
    stale.fill_(1)
    torch.cuda.caching_allocator_delete(address)
    seamalloc.check_guards()
    return illegal(lambda: stale.add_(1), address, "unmapped since")


def into_the_rounding():
    address = raw(1000)
    over(address, 1003).fill_(1)
    assert seamalloc.check_guards() == 1
    (found,) = seamalloc.findings()
    assert found["kind"] == "overrun", found
    return found["text"]


def before_the_beginning():
    address = raw(1000)
    over(address - 8, 8).fill_(1)
    assert seamalloc.check_guards() == 1
    return seamalloc.findings()[0]["text"]


def write_after_free():
    address = raw(1000)
    stale = over(address, 1000)
    torch.cuda._sleep(LONG)
    torch.cuda.caching_allocator_delete(address)
    stale.fill_(1)
    seamalloc.check_guards()
    (found,) = seamalloc.findings()
    assert found["kind"] == "write_after_free", found
    return found["text"]


def missing_record_stream():
    # A kernel's first launch loads its code, and may wait for the device: then the side stream would have passed.
    torch.ones(8, device="cuda") * 2
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with seamalloc.guard.watch():
        tensor = torch.ones(1 << 20, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG)
            result = tensor * 2
        del tensor
    torch.cuda.synchronize()
    assert result.sum().item() == 2 << 20
    (found,) = seamalloc.findings()
    assert found["kind"] == "missing_record_stream", found
    return found["text"]


def correct():
    """Training with a side stream that is named or waited for, and a graph."""
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    side = torch.cuda.Stream()
    with seamalloc.guard.watch():
        for index in range(20):
            batch = torch.randn(64 + index, 512, device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                norm = batch.norm()
            if index % 2:
                batch.record_stream(side)
            loss = model(batch).square().mean()
            torch.cuda.current_stream().wait_stream(side)
            (loss + norm * 0).backward()
            optimizer.step()
            optimizer.zero_grad()
            del batch
    graph, static = torch.cuda.CUDAGraph(), torch.randn(64, 512, device="cuda")
    with torch.cuda.graph(graph):
        out = model(static)
    for _ in range(3):
        graph.replay()
    expected = model(static)
    assert torch.allclose(out, expected, atol=1e-5)
    assert seamalloc.check_guards() == 0, seamalloc.findings()
    stats = seamalloc.stats()["guard"]
    assert stats["guarded"] > 100, stats
    return str(stats)


CASES = [
    overrun,
    use_after_free,
    into_the_rounding,
    before_the_beginning,
    write_after_free,
    missing_record_stream,
    correct,
]


def main(names):
    if names:
        seamalloc.enable(guard=True, quiet=True)
        (case,) = [case for case in CASES if case.__name__ == names[0]]
        print(case())
        return 0
    failed = 0
    for case in CASES:
        done = subprocess.run(
            [sys.executable, __file__, case.__name__], capture_output=True, text=True, timeout=300, check=False
        )
        said = done.stdout.strip() if done.returncode == 0 else "FAILED\n" + done.stderr
        failed += done.returncode != 0
        print(f"{case.__name__}: {said}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""torch, CuPy, Numba, RMM and Triton in one process, interleaved on several streams, exchanging by dlpack: what they hold
together, and whether every word is right.

    python one_memory.py --mode ours --limit-gib 12 --seconds 40
    python one_memory.py --mode own  --limit-gib 12 --seconds 40 [--only-limit]

`ours`: all over seamalloc, with the limit. `own`: each over its own allocator (PyTorch's, CuPy's pool, Numba's cudaMalloc, RMM's
pool). --only-limit leaves no more of the device than the limit free, by one cudaMalloc of the rest.

Prints lines of JSON; the last is the result. CuPy compiles a kernel where it is needed first and keeps it on the disk, a second each: to
compare modes, run one once before.
"""

import argparse
import collections
import contextlib
import gc
import json
import random
import sys
import time

MIB = 1 << 20
LIBRARIES = ("torch", "cupy", "numba", "rmm")


def switch_on(mode, limit):
    """Imports the libraries, and puts them over seamalloc or leaves them theirs."""
    import cupy
    import numba.cuda  # noqa: F401
    import rmm
    import torch
    import triton

    if mode == "ours":
        import seamalloc

        print(json.dumps({"enabled": seamalloc.enable_all(memory_limit=f"{limit >> 20}MiB")}), flush=True)
        return
    pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=1 << 20)
    rmm.mr.set_current_device_resource(pool)
    assert cupy.cuda.get_allocator() is not None
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))


def of_memory(error):
    """The text of a refusal; raises what is none."""
    text = f"{type(error).__name__}: {error}"
    if "memory" not in text.lower():
        raise error
    return text


class Program:
    def __init__(self, seed, live_bytes):
        import cupy
        import numba.cuda
        import numpy
        import rmm
        import torch
        from one_memory_kernels import kernels

        self.torch, self.cupy, self.cuda, self.rmm = torch, cupy, numba.cuda, rmm
        self.random = random.Random(seed)
        self.fill, self.check, self.double = kernels()
        self.t_streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        self.c_streams = [cupy.cuda.Stream.null, cupy.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)]
        self.n_streams = [numba.cuda.default_stream(), numba.cuda.stream(), numba.cuda.stream(),
                          numba.cuda.external_stream(torch.cuda.Stream().cuda_stream)]
        self.r_streams = [rmm.pylibrmm.stream.Stream() for _ in range(3)]
        self.t_wrong = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.c_wrong = cupy.zeros(1, dtype=cupy.uint64)
        self.n_wrong = numba.cuda.to_device(numpy.zeros(1, dtype=numpy.int64))
        # They are added to on all streams.
        torch.cuda.synchronize()
        self.live, self.live_bytes, self.most_live = [], 0, live_bytes
        self.done = dict.fromkeys((*(f"{name} alloc" for name in LIBRARIES), "torch to cupy", "cupy to torch", "torch to numba",
                                   "rmm to cupy", "cupy to numba", "triton"), 0)
        # Seconds of the CPU's time in each kind of call, waits included, and how many calls.
        self.seconds, self.calls = collections.Counter(), collections.Counter()
        self.most_held = 0
        self.base = self.used_now()
        self.refused = {}

    def used_now(self):
        free, total = self.torch.cuda.mem_get_info()
        return total - free

    def look(self):
        self.most_held = max(self.most_held, self.used_now() - self.base)

    @contextlib.contextmanager
    def timed(self, what):
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - started
            self.calls[what] += 1

    # ---- Arrays of n words, that hold first, first + 1, ...

    def make(self, name, n):
        first = self.random.randrange(1 << 20)
        with self.timed(f"make {name}"):
            made = getattr(self, f"make_{name}")(n, first)
        self.done[f"{name} alloc"] += 1
        self.live.append((name, n, first, made))
        self.live_bytes += 4 * n

    def make_torch(self, n, first):
        stream = self.random.choice(self.t_streams)
        with self.torch.cuda.stream(stream):
            return self.torch.arange(first, first + n, dtype=self.torch.int32, device="cuda"), stream

    def make_cupy(self, n, first):
        stream = self.random.choice(self.c_streams)
        with stream:
            return self.cupy.arange(first, first + n, dtype=self.cupy.int32), stream

    def make_numba(self, n, first):
        stream = self.random.choice(self.n_streams)
        array = self.cuda.device_array(n, dtype="int32")
        self.fill[(n + 255) // 256, 256, stream](array, first)
        return array, stream

    def make_rmm(self, n, first):
        stream = self.random.choice(self.r_streams)
        buffer = self.rmm.DeviceBuffer(size=4 * n, stream=stream)
        handle = stream.__cuda_stream__()[1]
        with self.cupy.cuda.ExternalStream(handle) as external:
            self.seen(buffer, n)[:] = self.cupy.arange(first, first + n, dtype=self.cupy.int32)
        return buffer, stream, external

    def seen(self, buffer, n):
        """An RMM buffer as an array of CuPy's."""
        memory = self.cupy.cuda.UnownedMemory(buffer.ptr, buffer.size, buffer, 0)
        return self.cupy.ndarray(n, self.cupy.int32, self.cupy.cuda.MemoryPointer(memory, 0))

    # ---- Checking: on the stream of the array; wrong words are counted on the GPU, and nobody waits.

    def right_torch(self, tensor, n, first):
        torch = self.torch
        wrong = (tensor != torch.arange(first, first + n, dtype=torch.int32, device="cuda")).sum()
        # index_add_ is atomic; += is not.
        self.t_wrong.index_add_(0, torch.zeros(1, dtype=torch.int64, device="cuda"), wrong.reshape(1))

    def right_cupy(self, array, n, first):
        cupy = self.cupy
        wrong = (array != cupy.arange(first, first + n, dtype=cupy.int32)).sum(dtype=cupy.uint64)
        cupy.add.at(self.c_wrong, cupy.zeros(1, dtype=cupy.int64), wrong.reshape(1))

    def drop(self, position=None):
        position = self.random.randrange(len(self.live)) if position is None else position
        with self.timed(f"check and free {self.live[position][0]}"):
            self.drop_one(position)

    def drop_one(self, position):
        """Frees an array by deleting its last reference, so no other may exist."""
        name, n, first, made = self.live.pop(position)
        self.live_bytes -= 4 * n
        if name == "torch":
            tensor, stream = made
            with self.torch.cuda.stream(stream):
                self.right_torch(tensor, n, first)
                del tensor, made
        elif name == "cupy":
            array, stream = made
            with stream:
                self.right_cupy(array, n, first)
                del array, made
        elif name == "numba":
            array, stream = made
            self.check[(n + 255) // 256, 256, stream](array, first, self.n_wrong)
        else:
            buffer, stream, external = made
            with external:
                self.right_cupy(self.seen(buffer, n), n, first)
            del buffer, made

    # ---- Exchange. Who lends waits for who borrowed before it frees, as dlpack asks.

    def find(self, name):
        found = [entry for entry in self.live if entry[0] == name]
        return self.random.choice(found) if found else None

    def between(self, first, second):
        """The second stream's further work waits for what the first has."""
        event = self.torch.cuda.Event()
        as_torch = lambda handle: self.torch.cuda.ExternalStream(handle) if handle else self.torch.cuda.default_stream()
        event.record(as_torch(first))
        as_torch(second).wait_event(event)

    def exchange(self):
        kind = self.random.choice(("torch to cupy", "cupy to torch", "torch to numba", "rmm to cupy", "cupy to numba", "triton"))
        entry = self.find("torch" if kind == "triton" else kind.split()[0])
        if entry is None:
            return
        name, n, first, made = entry
        self.done[kind] += 1
        if kind == "torch to cupy":
            tensor, stream = made
            other = self.random.choice(self.c_streams)
            with self.torch.cuda.stream(stream), other:
                array = self.cupy.from_dlpack(tensor)
                self.right_cupy(array, n, first)
                del array
            self.between(other.ptr, stream.cuda_stream)
        elif kind == "cupy to torch":
            array, stream = made
            other = self.random.choice(self.t_streams)
            with stream, self.torch.cuda.stream(other):
                tensor = self.torch.from_dlpack(array)
                self.right_torch(tensor, n, first)
                del tensor
            self.between(other.cuda_stream, stream.ptr)
        elif kind == "torch to numba":
            tensor, stream = made
            external = self.cuda.external_stream(stream.cuda_stream)
            array = self.cuda.as_cuda_array(tensor, sync=False)
            self.check[(n + 255) // 256, 256, external](array, first, self.n_wrong)
        elif kind == "cupy to numba":
            array, stream = made
            external = self.cuda.external_stream(stream.ptr)
            seen = self.cuda.as_cuda_array(array, sync=False)
            self.check[(n + 255) // 256, 256, external](seen, first, self.n_wrong)
        elif kind == "rmm to cupy":
            buffer, stream, external = made
            other = self.random.choice(self.c_streams)
            handle = stream.__cuda_stream__()[1]
            self.between(handle, other.ptr)
            with other:
                self.right_cupy(self.seen(buffer, n), n, first)
            self.between(other.ptr, handle)
        else:
            tensor, stream = made
            rows = n // 64 // 64 * 64
            if rows == 0:
                return
            with self.torch.cuda.stream(stream):
                copy = tensor[: rows * 64].clone()
                self.double[(rows // 64,)](copy, rows)
                wanted = 2 * self.torch.arange(first, first + rows * 64, dtype=self.torch.int32, device="cuda")
                wrong = (copy != wanted).sum()
                self.t_wrong.index_add_(0, self.torch.zeros(1, dtype=self.torch.int64, device="cuda"), wrong.reshape(1))
                del copy

    # ---- The program

    def size(self):
        return max(1, int(2 ** self.random.uniform(8, 25.5)))

    def attempt(self, what, work):
        """Runs `work`. A refusal is counted, and all live arrays are dropped."""
        try:
            work()
            return True
        except Exception as error:
            text = of_memory(error)
            entry = self.refused.setdefault(what, {"times": 0, "first": text[:300]})
            entry["times"] += 1
            while self.live:
                try:
                    self.drop()
                except Exception as again:
                    of_memory(again)
            return False

    def mix(self, seconds):
        """Requests of all sizes, of all libraries, by turns."""
        end, rounds = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            for _ in range(20):
                n = self.size()
                while self.live and self.live_bytes + 4 * n > self.most_live:
                    self.attempt("check", self.drop)
                name = self.random.choice(LIBRARIES)
                self.attempt(name, lambda: self.make(name, n))
                if self.random.random() < 0.5:
                    with self.timed("exchange"):
                        self.attempt("exchange", self.exchange)
                if self.live and self.random.random() < 0.45:
                    self.attempt("check", self.drop)
            rounds += 20
            self.look()
        while self.live:
            self.attempt("check", self.drop)
        return rounds

    def by_turns(self, part):
        """Each library in turn holds a part of the limit, in pieces, and frees it."""
        served = {}
        for name in LIBRARIES:
            def hold(name=name):
                for _ in range(16):
                    self.make(name, int(part) // 16 // 4)
                self.look()
            served[name] = self.attempt(f"{name}'s turn", hold)
            while self.live:
                self.attempt("check", self.drop)
            self.look()
        return served

    def wrong(self):
        self.torch.cuda.synchronize()
        return {"torch": int(self.t_wrong.item()), "cupy": int(self.c_wrong[0]), "numba": int(self.n_wrong.copy_to_host()[0])}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=("ours", "own"), required=True)
    parser.add_argument("--limit-gib", type=float, default=12)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only-limit", action="store_true")
    chosen = parser.parse_args()
    limit = int(chosen.limit_gib * (1 << 30))
    switch_on(chosen.mode, limit)
    program = Program(chosen.seed, limit * 0.4)
    # Kernels are compiled, and libraries load their own, before anything is measured.
    for name in LIBRARIES:
        program.make(name, 100_000)
    for _ in range(60):
        program.exchange()
    while program.live:
        program.drop()
    program.torch.cuda.synchronize()
    base_wrong = program.wrong()
    gc.collect()
    if chosen.only_limit:
        free, _ = program.torch.cuda.mem_get_info()
        from cuda.bindings import runtime

        # CUDA itself and the libraries' kernels need some.
        status, ballast = runtime.cudaMalloc(free - limit)
        assert int(status) == 0 and ballast
    program.base = program.used_now()
    if chosen.mode == "ours":
        import seamalloc

        program.base -= seamalloc.stats()["reserved_bytes"]["all"]["current"]
    program.seconds.clear()
    program.calls.clear()
    started = time.monotonic()
    turns = program.by_turns(limit * 0.7)
    print(json.dumps({"turns": turns, "held_gib": round(program.most_held / (1 << 30), 3)}), flush=True)
    rounds = program.mix(chosen.seconds)
    again = program.by_turns(limit * 0.7)
    seconds = time.monotonic() - started
    result = {
        "mode": chosen.mode, "limit_gib": chosen.limit_gib, "only_limit": chosen.only_limit, "wrong_words": program.wrong(),
        "wrong_before": base_wrong, "first_turns": turns, "last_turns": again, "requests": rounds, "seconds": round(seconds, 2),
        "most_held_gib": round(program.most_held / (1 << 30), 3), "refused": program.refused, "done": program.done,
        "seconds_in": {what: [round(spent, 2), program.calls[what]] for what, spent in program.seconds.most_common()},
    }
    if chosen.mode == "ours":
        stats = seamalloc.stats()
        result["reserved_peak_gib"] = round(stats["reserved_bytes"]["all"]["peak"] / (1 << 30), 3)
        result["in_use_peak_gib"] = round(stats["allocated_bytes"]["all"]["peak"] / (1 << 30), 3)
        print(seamalloc.report(), flush=True)
    print(json.dumps(result), flush=True)
    is_right = not any(result["wrong_words"].values())
    if chosen.mode == "ours":
        is_right = is_right and result["reserved_peak_gib"] <= chosen.limit_gib and not result["refused"]
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())

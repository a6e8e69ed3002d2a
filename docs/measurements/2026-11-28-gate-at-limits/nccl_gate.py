"""Collectives of two ranks while both split chunks: torchrun --nproc-per-node 2 -m seamalloc run nccl_gate.py OUT SECONDS.

A thread all-reduces blocks at random, the same blocks in the same order on both ranks, and works on others on two streams. The main
thread frees every second block and makes requests that only splits can serve. Every word is checked at the end of each round."""
import json, os, random, sys, threading, time
import torch, torch.distributed as dist
import seamalloc

out, seconds = sys.argv[1], float(sys.argv[2]); rank = int(os.environ["RANK"]); torch.cuda.set_device(rank); dev = torch.device("cuda", rank)
dist.init_process_group("nccl", device_id=dev); warm = torch.ones(1024, device=dev); dist.all_reduce(warm); torch.cuda.synchronize(); del warm
both = random.Random(1); own = random.Random(100 + rank)
rounds = served = refused = wrong = collectives = 0; took = []; begin = time.perf_counter()
store = dist.distributed_c10d._get_default_store()
while True:
    store.set(f"{rounds}-{rank}", "1" if time.perf_counter() - begin < seconds else "0")
    if any(store.get(f"{rounds}-{r}") != b"1" for r in range(2)): break
    size = both.randint(5, 37) * 250_000; blocks = []
    while True:
        try: blocks.append(torch.empty(size, dtype=torch.int32, device=dev))
        except torch.OutOfMemoryError: break
    store.set(f"n{rounds}-{rank}", str(len(blocks))); n = min(int(store.get(f"n{rounds}-{r}")) for r in range(2))
    kept = blocks[0:n:2]; del blocks
    for b in kept: b.zero_()
    want = [0] * len(kept); torch.cuda.synchronize(); stop = threading.Event(); order = random.Random(7 + rounds); streams = [torch.cuda.Stream(dev) for _ in range(2)]; ended = []
    half = len(kept) // 2
    def work():
        # The first half is all-reduced, in groups of one to eight. The second half is worked on alone. Both ranks end after the same group.
        torch.cuda.set_device(rank); group = 0
        while True:
            if group % 8 == 0:
                store.set(f"g{rounds}-{group}-{rank}", "0" if stop.is_set() else "1")
                if any(store.get(f"g{rounds}-{group}-{r}") != b"1" for r in range(2)): break
            group += 1; waits = []
            for i in order.sample(range(half), order.randint(1, 8)):
                want[i] = order.randint(1, 1000); kept[i].fill_(want[i] if rank == 0 else 1); want[i] += 1
                waits.append(dist.all_reduce(kept[i], async_op=True))
            for s in streams:
                with torch.cuda.stream(s):
                    for _ in range(own.randint(1, 4)):
                        i = own.randrange(half, len(kept))
                        if i % 2 == streams.index(s): kept[i].add_(1); want[i] += 1
            for w in waits: w.wait()
            if own.random() < .2: time.sleep(own.random() * .004)
            if own.random() < .1: torch.cuda.current_stream().synchronize()
        ended.append(group)
    t = threading.Thread(target=work); t.start(); time.sleep(.01)
    for mib in (400, 900, 1400, 1600):
        u = time.perf_counter(); time.sleep(own.random() * .01)
        try:
            p = torch.empty(mib << 20, dtype=torch.uint8, device=dev); took.append(time.perf_counter() - u); served += 1; p.fill_(255); del p
        except torch.OutOfMemoryError: refused += 1
    stop.set(); t.join(); torch.cuda.synchronize(); collectives += ended[0]
    for b, w in zip(kept, want): wrong += int((b != w).sum())
    del kept, b; torch.cuda.empty_cache(); rounds += 1
s = seamalloc.stats()["splits"]; took.sort()
r = {"case": "nccl_gate", "rank": rank, "conf": os.environ.get("SEAMALLOC_CONF", ""), "rounds": rounds, "splits": s["chunks"], "copied_gib": round(s["copied_bytes"] / 2**30, 2), "groups_of_collectives": collectives, "served": served, "refused": refused, "request_ms": {"median": round(1000 * took[len(took) // 2], 1), "p90": round(1000 * took[len(took) * 9 // 10], 1), "max": round(1000 * took[-1], 1)}, "wrong_words": wrong, "seconds": round(time.perf_counter() - begin, 1)}
open(f"{out}/nccl.{rank}.jsonl", "a").write(json.dumps(r) + "\n"); print(json.dumps(r), flush=True)
dist.destroy_process_group()

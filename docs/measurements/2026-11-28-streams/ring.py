"""Two ranks that send and receive in opposite orders, over a communicator for each direction: torchrun ring.py LABEL OUT ROUNDS CASE LIVE_MIB [LIMIT_MIB].
CASE: recorded (buffers of the main stream, used by the stream that sends, record_stream), freed (allocated on the stream that sends, the receiver's on another),
batch4 (four sends, then four receives, recorded), batch4freed, planted (the program waits for the send itself before it receives: must hang)."""
import json, os, sys, threading, time
import torch, torch.distributed as dist
label, out, rounds, case, live = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]); limit = int(sys.argv[6]) if len(sys.argv) > 6 else 0
rank = int(os.environ["RANK"]); torch.cuda.set_device(rank); d = torch.device("cuda", rank)
if limit: torch.cuda.set_per_process_memory_fraction(limit * 2**20 / torch.cuda.get_device_properties(rank).total_memory)
dist.init_process_group("nccl", device_id=d)
there, back = dist.new_group([0, 1]), dist.new_group([0, 1]); mine, other = (there, back) if rank == 0 else (back, there)
M = 2**20; weights = torch.empty(live * M, dtype=torch.uint8, device=d); sends, receives, main = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.current_stream()
N = int(os.environ.get("N_MIB", 16)) * M; done = [0]; last = [time.time()]
def watch():
    while done[0] < rounds:
        time.sleep(1)
        if time.time() - last[0] > 15: report("hang"); os._exit(3)
def report(what):
    m = torch.cuda.memory_stats(); r = {"program": "ring", "case": case, "label": label, "rank": rank, "rounds": done[0], "end": what, "s": round(time.time() - begun, 2), "held_mib": m["reserved_bytes.all.peak"] // M, "live_mib": m["allocated_bytes.all.peak"] // M, "limit_mib": limit, "n_mib": N // M}
    open(f"{out}/ring.jsonl", "a").write(json.dumps(r) + "\n")
    if rank == 0: print(json.dumps(r), flush=True)
k = 4 if case.startswith("batch4") else 1; freed = case.endswith("freed")
begun = time.time(); threading.Thread(target=watch, daemon=True).start(); wrong = 0
for g, sender in ((there, 0), (back, 1)): # both communicators exist before, made in one order
    t = torch.ones(8, device=d); dist.all_reduce(t, group=g); w = dist.isend(t, 1 - rank, group=g) if rank == sender else dist.irecv(t, 1 - rank, group=g); w.wait()
torch.cuda.synchronize(); begun = last[0] = time.time()
for r in range(rounds):
    for i in range(k):
        if freed:
            with torch.cuda.stream(sends): x = torch.full((N,), r % 100 + i, dtype=torch.uint8, device=d); w = dist.isend(x, 1 - rank, group=mine); w.wait()
        else:
            x = torch.full((N,), r % 100 + i, dtype=torch.uint8, device=d); sends.wait_stream(main)
            with torch.cuda.stream(sends): w = dist.isend(x, 1 - rank, group=mine); w.wait()
            x.record_stream(sends)
        del x, w
    if case == "planted": receives.wait_stream(sends); 
    for i in range(k):
        if freed:
            with torch.cuda.stream(receives): y = torch.empty(N, dtype=torch.uint8, device=d); w = dist.irecv(y, 1 - rank, group=other); w.wait(); s = y[::4096].sum(dtype=torch.int64)
        else:
            y = torch.empty(N, dtype=torch.uint8, device=d); receives.wait_stream(main) if case == "after" else None
            e = torch.cuda.Event(); e.record(main); receives.wait_event(e)
            with torch.cuda.stream(receives): w = dist.irecv(y, 1 - rank, group=other); w.wait(); s = y[::4096].sum(dtype=torch.int64)
            y.record_stream(receives)
        del y, w
    if r % 100 == 99:
        receives.synchronize(); wrong += int(s.item() != (r % 100 + k - 1) * (N // 4096)); last[0] = time.time()
    done[0] = r + 1
torch.cuda.synchronize(); report("wrong" if wrong else "done"); dist.destroy_process_group()

"""A job with a limit on what may be held: [torchrun --nproc-per-node 2] [-m seamalloc run] limits.py JOB OUT LABEL [TIMES].

JOB is trainer, gpt2xl, maskrcnn, dlrm, torchrec, or fsdp (two ranks). TRACE=FILE writes PyTorch's record of allocations. With TIMES the limit is that many times the largest live bytes of the runs in OUT that had
none and the label `ours`."""
import json, os, random, sys, time
HERE = os.path.dirname(os.path.abspath(__file__)); sys.path[:0] = [f"{HERE}/../2026-11-28-streams", f"{HERE}/../2026-11-27-rounds"]
import torch
job, out, label = sys.argv[1:4]; times = float(sys.argv[4]) if len(sys.argv) > 4 else None
rank = int(os.environ.get("RANK", 0)); torch.cuda.set_device(rank); path = f"{out}/limits.jsonl"; steps = 16; T = []; limit = None
if times:
    live = max(r["live"] for r in map(json.loads, open(path)) if r["job"] == job and r["label"] == "ours" and r["ok"])
    limit = int(times * live); torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(rank).total_memory)
def tick(): torch.cuda.synchronize(); T.append(time.perf_counter())
def trainer():
    import transformers as T; from jobs2 import trainer
    # The model is made on the device: on the CPU that takes half a minute.
    of = T.LlamaForCausalLM
    def made(cfg):
        with torch.device("cuda"): return of(cfg)
    T.LlamaForCausalLM = made; trainer(steps, tick)
def gpt2xl(): from workloads import train_lm; train_lm("gpt2xl", steps, 8, [512, 640, 768, 896, 1024], tick=tick)
def fsdp():
    import torch.distributed as dist; from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy; from workloads import build
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank)); rng = random.Random(0)
    m, cfg = build("llama1b", recompute=False); m.config.use_cache = False; mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for l in m.model.layers: fully_shard(l, mp_policy=mp, reshard_after_forward=True)
    fully_shard(m, mp_policy=mp); o = torch.optim.AdamW(m.parameters(), lr=1e-5, foreach=True)
    for _ in range(steps):
        ids = torch.randint(0, cfg.vocab_size, (6, 128 * rng.randint(24, 32)), device="cuda"); m(input_ids=ids, labels=ids).loss.backward(); o.step(); o.zero_grad(set_to_none=True); tick()
    dist.barrier()
def maskrcnn(): from jobs2 import maskrcnn; maskrcnn(steps, tick)
def dlrm(): from jobs2 import dlrm; dlrm(steps, tick)
def torchrec():
    """Three batches at once on three streams, as in torchrec's TrainPipelineSparseDist: copies, distribution of ragged features, training."""
    import torch.nn as nn, torch.nn.functional as F
    tables, rows, dim = 26, 200_000, 64; copies, dist, main = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.current_stream(); rng = random.Random(0)
    W = nn.Parameter(torch.randn(tables * rows, dim, device="cuda") * .01); d = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, dim)).cuda(); n = (tables + 1) ** 2
    f = nn.Sequential(nn.Linear(n + dim, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)).cuda(); o = torch.optim.SGD([W], lr=.01); p = torch.optim.AdamW([*d.parameters(), *f.parameters()])
    def copied():
        B = rng.randrange(4096, 24576); l = torch.randint(0, 2 * rng.randint(2, 12), (tables * B,)); v = torch.randint(0, rows, (int(l.sum()),)); x = torch.rand(B, 13)
        with torch.cuda.stream(copies): return [t.cuda(non_blocking=True) for t in (l, v, x)]
    def distributed(b):
        dist.wait_stream(copies)
        with torch.cuda.stream(dist):
            for t in b: t.record_stream(dist)
            l, v, x = b; of = torch.repeat_interleave(torch.arange(l.numel(), device="cuda"), l, output_size=v.numel()); v = v + of // x.shape[0] * rows; sent = torch.cat([c.clone() for c in v.chunk(4)]); return l, sent, x
    batches = [copied(), copied()]; batches[0] = distributed(batches[0])
    for _ in range(steps):
        main.wait_stream(dist); l, v, x = batches.pop(0); [t.record_stream(main) for t in (l, v, x)]; batches.append(copied()); batches[0] = distributed(batches[0]); B = x.shape[0]
        e = F.embedding_bag(v, W, torch.cumsum(l, 0) - l, mode="sum", sparse=True).view(tables, B, dim).transpose(0, 1); y = d(x); z = torch.cat([y[:, None], e], 1); f(torch.cat([torch.bmm(z, z.transpose(1, 2)).flatten(1), y], 1)).mean().backward()
        o.step(); p.step(); o.zero_grad(set_to_none=True); p.zero_grad(set_to_none=True); tick()
trace = os.environ.get("TRACE"); trace and torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=2_000_000)
torch.manual_seed(0); r = {"job": job, "label": label, "rank": rank, "limit": limit, "ok": True, "steps": steps}
try: {"trainer": trainer, "gpt2xl": gpt2xl, "fsdp": fsdp, "maskrcnn": maskrcnn, "dlrm": dlrm, "torchrec": torchrec}[job]()
except Exception as e: r.update(ok=False, error=repr(e)[:400])
s = torch.cuda.memory_stats(); g = lambda k: s.get(k, 0)
r.update(rest_s=round(T[-1] - T[1], 3) if len(T) == steps else None, done=len(T), live=g("active_bytes.all.peak"), held=g("reserved_bytes.all.peak"), retries=g("num_alloc_retries"), allocations=g("allocation.all.allocated"), step_s=[round(b - a, 4) for a, b in zip(T, T[1:])])
if trace: from workloads import write_trace; write_trace(trace, torch.cuda.memory._snapshot(), {"job": job, "torch": torch.__version__, "device": torch.cuda.get_device_name()})
if "seamalloc" in sys.modules: import seamalloc; n = seamalloc.stats(); r.update({k: n[k] for k in ("splits", "spilled_bytes")})
line = json.dumps(r) + "\n"; f = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT); os.write(f, line.encode())
print(line[:420], flush=True); r["ok"] and job == "fsdp" and torch.distributed.destroy_process_group(); r["ok"] or os._exit(1)

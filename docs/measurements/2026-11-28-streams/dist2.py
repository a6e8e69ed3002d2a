"""Two GPUs: ddp | pp | hsdp-offload under one allocator. torchrun --nproc-per-node 2 [-m memquilt run] dist2.py MODE OUT LABEL."""
import json, os, random, sys, time
import torch, torch.nn as nn, torch.distributed as dist
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
mode, out, label = sys.argv[1:4]; rank = int(os.environ["RANK"]); torch.cuda.set_device(rank); os.environ.get("LIMIT_GIB") and torch.cuda.set_per_process_memory_fraction(float(os.environ["LIMIT_GIB"]) * 2**30 / torch.cuda.get_device_properties(0).total_memory); dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
if label == "traced": torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=2_000_000)
torch.manual_seed(0); rng = random.Random(0); T, L = [], []
def step(f):
    torch.cuda.synchronize(); dist.barrier(); t = time.perf_counter(); l = f(); torch.cuda.synchronize(); T.append(round(time.perf_counter() - t, 4)); L.append(l)
if mode == "ddp":
    from workloads import build
    from torch.nn.parallel import DistributedDataParallel as DDP
    m, cfg = build("gpt2xl", recompute=False); m = DDP(m, device_ids=[rank], gradient_as_bucket_view=True); o = torch.optim.AdamW(m.parameters(), lr=1e-5, foreach=True)
    for _ in range(24):
        n = rng.choice([256, 384, 512, 640, 768]); ids = torch.randint(0, cfg.vocab_size, (4, n), device="cuda")
        def f(): l = m(input_ids=ids, labels=ids, use_cache=False).loss; l.backward(); o.step(); o.zero_grad(set_to_none=True); return round(l.item(), 5)
        step(f)
elif mode == "pp":
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    class B(nn.Module):
        def __init__(s, d=4096):
            super().__init__(); s.n = nn.LayerNorm(d); s.a = nn.Linear(d, 4 * d); s.b = nn.Linear(4 * d, d)
        def forward(s, x): return x + s.b(torch.nn.functional.gelu(s.a(s.n(x))))
    m = nn.Sequential(*[B() for _ in range(10)]).cuda().bfloat16(); o = torch.optim.AdamW(m.parameters(), lr=1e-6, foreach=True)
    stage = PipelineStage(m, rank, 2, torch.device("cuda", rank)); sch = Schedule1F1B(stage, n_microbatches=8, loss_fn=lambda y, t: (y.float() - t.float()).pow(2).mean())
    x = torch.randn(8 * 4096, 4096, device="cuda", dtype=torch.bfloat16) * .1
    for _ in range(20):
        def f():
            ls = []
            if rank == 0: sch.step(x)
            else: sch.step(target=x, losses=ls)
            o.step(); o.zero_grad(set_to_none=True); return round(sum(l.item() for l in ls), 6) if ls else 0
        step(f)
else:
    from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy
    from workloads import build
    m, cfg = build("llama1b", recompute=False); m.config.use_cache = False; mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for l in m.model.layers: fully_shard(l, mp_policy=mp, reshard_after_forward=True)
    fully_shard(m, mp_policy=mp); o = torch.optim.AdamW(m.parameters(), lr=1e-5, foreach=True)
    for _ in range(24):
        n = rng.randint(300, 2000) if mode != "fsdp-long" else 128 * rng.randint(24, 32); ids = torch.randint(0, cfg.vocab_size, (int(os.environ.get("BATCH", 6)), n), device="cuda")
        def f():
            with torch.autograd.graph.save_on_cpu(pin_memory=True) if mode == "fsdp-offload" else torch.enable_grad(): l = m(input_ids=ids, labels=ids).loss
            l.backward(); o.step(); o.zero_grad(set_to_none=True); return round(l.item(), 5)
        step(f)
if label == "traced" and rank == 0:
    from workloads import write_trace
    write_trace(f"{out}/llama1b-fsdp2.csv.gz", torch.cuda.memory._snapshot(), {"job": "llama1b-fsdp2", "torch": torch.__version__, "device": torch.cuda.get_device_name(), "world": 2, "peak_req": torch.cuda.memory_stats()["requested_bytes.all.peak"], "peak_res_native": torch.cuda.memory_stats()["reserved_bytes.all.peak"]})
s = torch.cuda.memory_stats(); g = lambda k: s.get(k, 0)
r = {"mode": mode, "label": label, "rank": rank, "step_s": T, "loss": L[:3] + L[-2:], "req": g("requested_bytes.all.peak"), "act": g("active_bytes.all.peak"), "res": g("reserved_bytes.all.peak"), "n": g("allocation.all.allocated"), "retries": g("num_alloc_retries")}
open(f"{out}/dist.{rank}.jsonl", "a").write(json.dumps(r) + "\n")
if rank == 1: print(json.dumps({**r, "step_s": sorted(T[4:])[len(T[4:]) // 2], "rest": round(sum(T[2:]), 3)}), flush=True)
dist.destroy_process_group()

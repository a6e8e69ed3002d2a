"""A job with a limit on what may be held: [torchrun --nproc-per-node 2] [-m seamalloc run] limits.py JOB OUT LABEL [TIMES].

JOB is trainer, gpt2xl, or fsdp (two ranks). With TIMES the limit is that many times the largest live bytes of the runs in OUT that had
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
torch.manual_seed(0); r = {"job": job, "label": label, "rank": rank, "limit": limit, "ok": True, "steps": steps}
try: {"trainer": trainer, "gpt2xl": gpt2xl, "fsdp": fsdp}[job]()
except Exception as e: r.update(ok=False, error=repr(e)[:400])
s = torch.cuda.memory_stats(); g = lambda k: s.get(k, 0)
r.update(rest_s=round(T[-1] - T[1], 3) if len(T) == steps else None, done=len(T), live=g("active_bytes.all.peak"), held=g("reserved_bytes.all.peak"), retries=g("num_alloc_retries"), allocations=g("allocation.all.allocated"), step_s=[round(b - a, 4) for a, b in zip(T, T[1:])])
if "seamalloc" in sys.modules: import seamalloc; r["splits"] = seamalloc.stats()["splits"]
line = json.dumps(r) + "\n"; f = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT); os.write(f, line.encode())
print(line[:420], flush=True); r["ok"] and job == "fsdp" and torch.distributed.destroy_process_group(); r["ok"] or os._exit(1)

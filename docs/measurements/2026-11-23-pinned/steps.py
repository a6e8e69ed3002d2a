"""What page-locked memory costs a step: driver calls and stalls of each."""
import json, sys, time
sys.path.insert(0, "ffi/python/tests/gpu")
ours = sys.argv[1] == "seamalloc"
conf = sys.argv[2] if len(sys.argv) > 2 else ""
import seamalloc
if ours: seamalloc.enable(pinned=conf or True, quiet=True)
import torch, pinned_jobs
torch.cuda.init()
last, began, rows = {}, time.perf_counter(), []
for n, loss in enumerate(pinned_jobs.train(20, 1024, 12)):
    now = time.perf_counter(); row = {"step_s": round(now - began, 4)}
    if ours:
        s = seamalloc.stats("pinned")
        flat = {"views_built": s["views_built"], "views_reused": s["views_reused"], "stall_ms": s["stall_total_ns"] / 1e6, "stalls": s["stall_count"] if "stall_count" in s else 0, "requests": s["allocation"]["all"]["allocated"]}
        for name, call in s["driver_calls"].items(): flat[name] = call["count"]; flat[name + "_ms"] = call["total_ns"] / 1e6
        row.update({k: round(v - last.get(k, 0), 3) for k, v in flat.items() if v != last.get(k, 0)}); last = flat; row["reserved"] = s["reserved_bytes"]["all"]["current"]
    rows.append(row); began = time.perf_counter()
print(json.dumps({"who": sys.argv[1:], "median": sorted(r["step_s"] for r in rows[4:])[8], "rows": rows if ours else [r["step_s"] for r in rows]}), flush=True)

"""A server of N threads with a stream each: requests of 1 to 50 ms of GPU work, outputs used by another stream. LABEL THREADS SECONDS. Prints percentiles of a request in ms."""
import json, random, sys, threading, time
import torch
label, threads, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
d = torch.device("cuda"); w = torch.randn(4096, 4096, device=d, dtype=torch.bfloat16); main = torch.cuda.current_stream(); lock = threading.Lock(); outs = []; took = []
def request(rng, n, m):
    x = torch.randn(m, 4096, device=d, dtype=torch.bfloat16)
    for _ in range(n): x = torch.nn.functional.gelu(x @ w) * .1
    return x
def work(k, until):
    rng, st = random.Random(k), torch.cuda.Stream(); mine = []
    with torch.cuda.stream(st), torch.inference_mode():
        while time.perf_counter() < until:
            t = time.perf_counter(); y = request(rng, rng.choice([4, 8, 16, 48, 160]), rng.choice([256, 1024, 3072, 8192]))
            if rng.random() < .5: y.record_stream(main)
            e = torch.cuda.Event(); e.record(); e.synchronize(); mine.append(time.perf_counter() - t)
            with lock:
                outs.append(y)
                if len(outs) > 16: outs.pop(0)
            del y
    with lock: took.extend(mine)
def run(s):
    took.clear(); until = time.perf_counter() + s; T = [threading.Thread(target=work, args=(k, until)) for k in range(threads)]
    [t.start() for t in T]; [t.join() for t in T]; torch.cuda.synchronize()
run(2); run(seconds); took.sort(); q = lambda p: round(took[min(len(took) - 1, int(p * len(took)))] * 1e3, 3); m = torch.cuda.memory_stats()
print(json.dumps({"program": "latency", "label": label, "threads": threads, "requests": len(took), "p50": q(.5), "p99": q(.99), "p999": q(.999), "held": round(m["reserved_bytes.all.peak"] / 2**30, 3), "live": round(m["allocated_bytes.all.peak"] / 2**30, 3)}), flush=True)

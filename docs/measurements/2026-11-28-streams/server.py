"""Four threads, a stream each, on one device: requests of any size through models of two kinds. Prints seconds and bytes held."""
import json, random, sys, threading, time
import torch, torch.nn as nn
label, requests = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
conv = nn.Sequential(*[m for a, b in ((3, 64), (64, 128), (128, 256), (256, 256)) for m in (nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU())]).cuda().eval().bfloat16()
layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
text = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda().eval().bfloat16()
main, lock, outs = torch.cuda.current_stream(), threading.Lock(), []
def work(k, n):
    rng, st = random.Random(k), torch.cuda.Stream()
    with torch.cuda.stream(st), torch.inference_mode():
        for i in range(n):
            if (k + i) % 2:
                b = rng.choice([1, 2, 8, 32, 96, 160]); y = conv(torch.randn(b, 3, 224, 224, device="cuda", dtype=torch.bfloat16))
            else:
                y = text(torch.randn(rng.choice([1, 4, 16, 48]), rng.randint(16, 512), 512, device="cuda", dtype=torch.bfloat16))
            y.record_stream(main)
            with lock:
                outs.append(y)
                if len(outs) > 16: outs.pop(0)
            if i % 8 == 0: st.synchronize()
def run(n):
    T = [threading.Thread(target=work, args=(k, n)) for k in range(4)]
    t = time.perf_counter(); c = time.process_time(); [x.start() for x in T]; [x.join() for x in T]; torch.cuda.synchronize()
    return time.perf_counter() - t, time.process_time() - c
run(40)
s, c = run(requests)
m = torch.cuda.memory_stats()
print(json.dumps({"program": "server", "label": label, "s": round(s, 3), "cpu_s": round(c, 3), "held": m["reserved_bytes.all.peak"], "live": m["allocated_bytes.all.peak"]}), flush=True)

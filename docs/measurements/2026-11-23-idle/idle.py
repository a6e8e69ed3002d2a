"""An idle server: what four threads' streams held goes back, and comes again with the next burst."""
import json, threading, time
import seamalloc
seamalloc.enable()
import torch
def burst():
    def work(n):
        s = torch.cuda.Stream()
        with torch.cuda.stream(s):
            for r in range(40):
                x = [torch.full(((1 + (n * 7 + r * 3 + i) % 9) << 20,), float(i), device="cuda") for i in range(12)]
                assert all(float(t[0]) == i and float(t[-1]) == i for i, t in enumerate(x))
            s.synchronize()
    t = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    begin = time.perf_counter(); [a.start() for a in t]; [a.join() for a in t]
    return time.perf_counter() - begin
keep = torch.ones(64 << 20, device="cuda")
g = torch.cuda.CUDAGraph()
out = []
for k in range(3):
    s = burst(); held = torch.cuda.memory_reserved(); log = []
    stall = seamalloc.stats()["stall_total_ns"]
    if k == 1:
        # Somebody else's capture in global mode, of which the allocator is not told, while the thread looks.
        from cuda.bindings import runtime as rt
        st = torch.cuda.Stream()
        rt.cudaStreamBeginCapture(st.cuda_stream, rt.cudaStreamCaptureMode.cudaStreamCaptureModeGlobal)
    begin = time.perf_counter()
    while time.perf_counter() - begin < 45 and torch.cuda.memory_reserved() > held / 4: time.sleep(0.5)
    waited = time.perf_counter() - begin; ended = None
    if k == 1:
        e, graph = rt.cudaStreamEndCapture(st.cuda_stream); ended = str(e)
    out.append(dict(burst_s=round(s, 3), held=held, after=torch.cuda.memory_reserved(), waited_s=round(waited, 1), stall_ms=round((seamalloc.stats()["stall_total_ns"] - stall) / 1e6, 2), capture=ended))
assert bool((keep == 1).all())
print(json.dumps({"idle": out}), flush=True)

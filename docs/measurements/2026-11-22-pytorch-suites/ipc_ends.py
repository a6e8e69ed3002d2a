"""The actor and learner of PyTorch's test_cuda_ipc_deadlock, with times, and stacks where they hang."""
import copy, faulthandler, sys, time, os, subprocess
import torch
import torch.multiprocessing as mp

def actor(queue, n):
    faulthandler.dump_traceback_later(14, exit=False)
    t0 = time.time(); got = 0; longest = 0
    for i in range(n):
        if not queue.empty():
            t = time.time(); queue.get(); longest = max(longest, time.time() - t); got += 1
        time.sleep(0.01)
    print("actor", os.getpid(), "got", got, "longest get", round(longest, 3), "took", round(time.time() - t0, 2), flush=True)

def learner(queue, n):
    faulthandler.dump_traceback_later(14, exit=False)
    t0 = time.time()
    net = torch.nn.LSTM(1, 1).cuda()
    print("learner cuda ready", round(time.time() - t0, 2), flush=True)
    put = 0
    for i in range(n):
        if not queue.full():
            queue.put(copy.deepcopy(net.state_dict())); put += 1
        time.sleep(0.01)
    print("learner", os.getpid(), "put", put, "took", round(time.time() - t0, 2), flush=True)

if __name__ == "__main__":
    if sys.argv[1] == "seamalloc":
        import seamalloc
        seamalloc.enable()
    ctx = mp.get_context("spawn")
    queue = ctx.Queue(1)
    ps = {"a": ctx.Process(target=actor, args=(queue, 100)), "l": ctx.Process(target=learner, args=(queue, 100))}
    t = time.time()
    first, second, pause = sys.argv[2], sys.argv[3], float(sys.argv[4])
    ps[first].start(); time.sleep(pause); ps[second].start()
    for p in ps.values(): p.join(10)
    for name, p in ps.items():
        print(sys.argv[1], name, "alive" if p.is_alive() else p.exitcode, round(time.time() - t, 1), flush=True)
        if p.is_alive():
            out = subprocess.run(["cuda-gdb", "-p", str(p.pid), "-batch", "-ex", "thread apply all bt 25"], capture_output=True, text=True, timeout=60)
            print(out.stdout[-6000:], flush=True)
            p.kill()

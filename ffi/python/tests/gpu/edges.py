"""Ends of threads, streams, devices and processes, and what other libraries do to PyTorch's streams, on a real GPU.

    python edges.py [CASE ...]            all cases, each in a process of its own, under native and seamalloc
    python edges.py --one CASE ALLOCATOR  one case

Prints a line of JSON for each. A case passes if its process ends with exit code 0 and seamalloc has nothing to warn of.
Cases that need two GPUs are left out, by name, where there is one. Needs a GPU, PyTorch, seamalloc and a C++ compiler.
"""

import concurrent.futures
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

MIB = 1 << 20
HERE = Path(__file__).resolve().parent
LIMIT_S = 120
AT_ONCE = 6

# Tensors that are freed when the variables of their thread, PyTorch's among them, are gone.
KEEPER = """
#include <ATen/ATen.h>
static at::Tensor of_process;
thread_local at::Tensor of_thread;
static at::Tensor tensor(int64_t bytes) {
  return at::empty({bytes}, at::device(at::kCUDA).dtype(at::kByte));
}
extern "C" void keep_static(int64_t bytes) { of_process = tensor(bytes); }
extern "C" void keep_on_thread(int64_t bytes) { of_thread = tensor(bytes); }
"""


def keeper():
    """The library of KEEPER, compiled."""
    import torch
    from torch.utils import cpp_extension

    folder = tempfile.mkdtemp()
    source = Path(folder) / "keeper.cpp"
    source.write_text(KEEPER)
    library = Path(folder) / "keeper.so"
    standard = "c++20" if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14) else "c++17"
    include = [f"-I{path}" for path in cpp_extension.include_paths()]
    link = [f"-L{path}" for path in cpp_extension.library_paths()]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    command = [os.environ.get("CXX", "g++"), f"-std={standard}", "-O1", "-shared", "-fPIC", abi, *include]
    command += [str(source), "-o", str(library), *link, "-ltorch", "-ltorch_cpu", "-lc10"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return ctypes.CDLL(str(library))


def runtime():
    """CUDA's runtime, the copy that PyTorch uses."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "libcudart" in line}
    library = ctypes.CDLL(next(iter(paths)))
    library.cudaGetErrorString.restype = ctypes.c_char_p
    return library


def call(function, *arguments):
    """Calls the runtime; raises what fails."""
    status = function(*arguments)
    if status != 0:
        raise RuntimeError(f"{function.__name__}: {status}")


def made_stream(cudart):
    """A stream that PyTorch knows nothing of: its handle."""
    handle = ctypes.c_void_p()
    call(cudart.cudaStreamCreateWithFlags, ctypes.byref(handle), 1)
    return handle.value


def static_tensor(torch):
    """Freed after main's thread-local variables."""
    with torch.cuda.stream(torch.cuda.Stream()):
        keeper().keep_static(64 * MIB)
        torch.ones(10, device="cuda")


def tensors_of_threads(torch):
    """Freed at the end of their threads, whose memory others get."""
    library = keeper()

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            library.keep_on_thread(64 * MIB)
            torch.ones(10, device="cuda").sum().item()

    before = torch.cuda.memory_allocated()
    for _ in range(8):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert torch.cuda.memory_allocated() == before, torch.cuda.memory_allocated()
    library.keep_on_thread(64 * MIB)


def device_reset(torch):
    """The device's context goes while tensors live, and a static one too."""
    keeper().keep_static(64 * MIB)
    held = [torch.ones(MIB, device="cuda") for _ in range(10)]
    torch.cuda.synchronize()
    call(runtime().cudaDeviceReset)
    held.clear()


def destroyed_streams(torch):
    """Another library's streams end without a word: their memory serves others once they have passed."""
    cudart = runtime()
    main = torch.cuda.Stream()
    for turn in range(6):
        handle = made_stream(cudart)
        stream = torch.cuda.ExternalStream(handle)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)
            held = [torch.full((60 * MIB,), turn, dtype=torch.uint8, device="cuda") for _ in range(4)]
            used = torch.full((50 * MIB,), turn, dtype=torch.uint8, device="cuda")
            # Some while it is the current stream, the rest when it is no more.
            del held[::2]
        call(cudart.cudaStreamDestroy, ctypes.c_void_p(handle))
        del held, used
        with torch.cuda.stream(main):
            blocks = [torch.full((45 * MIB,), turn + 100, dtype=torch.uint8, device="cuda") for _ in range(7)]
            torch.cuda.synchronize()
            assert all(bool((block == turn + 100).all()) for block in blocks)
        del blocks
    torch.cuda.empty_cache()


def foreign_captures(torch):
    """Another library captures a stream of its own while PyTorch allocates on it and beside it."""
    cudart = runtime()
    handle = made_stream(cudart)
    captured, side = torch.cuda.ExternalStream(handle), torch.cuda.Stream()
    with torch.cuda.stream(captured):
        before = [torch.ones(30 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
    torch.cuda.synchronize()
    # Relaxed, as CuPy and Warp may; PyTorch itself breaks stricter ones.
    call(cudart.cudaStreamBeginCapture, ctypes.c_void_p(handle), 2)
    del before
    for _ in range(20):
        with torch.cuda.stream(side):
            block = torch.empty(25 * MIB, dtype=torch.uint8, device="cuda")
            block.record_stream(captured)
        del block
    graph = ctypes.c_void_p()
    call(cudart.cudaStreamEndCapture, ctypes.c_void_p(handle), ctypes.byref(graph))
    for _ in range(5):
        with torch.cuda.stream(side):
            blocks = [torch.full((25 * MIB,), 7, dtype=torch.uint8, device="cuda") for _ in range(5)]
        torch.cuda.synchronize()
        assert all(bool((block == 7).all()) for block in blocks)
        del blocks
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == 0


def per_thread_stream(torch):
    """Tensors are freed while the default stream of the thread is the current one."""
    own = torch.cuda.ExternalStream(2)
    held = [torch.ones(20 * MIB, dtype=torch.uint8, device="cuda") for _ in range(5)]
    with torch.cuda.stream(own):
        total = sum(int(block[0]) for block in held)
        held.clear()
    torch.cuda.synchronize()
    del total
    # PyTorch's own asks about events at the next allocation.
    torch.empty(10, device="cuda")
    assert torch.cuda.memory_allocated() == 0, torch.cuda.memory_allocated()


def unused_device(torch):
    """Questions about a device that is not used create no context there."""
    free = torch.cuda.mem_get_info  # That alone creates one.
    torch.ones(10, device="cuda")
    torch.cuda.memory_stats(1)
    torch.cuda.set_per_process_memory_fraction(0.5, 1)
    assert torch.cuda.get_per_process_memory_fraction(1) == 0.5
    torch.cuda.reset_peak_memory_stats(1)
    state = ctypes.c_int()
    flags = ctypes.c_uint()
    driver = ctypes.CDLL("libcuda.so.1")
    device = ctypes.c_int()
    call(driver.cuDeviceGet, ctypes.byref(device), 1)
    call(driver.cuDevicePrimaryCtxGetState, device, ctypes.byref(flags), ctypes.byref(state))
    assert state.value == 0, "device 1 has a context"
    total = free(1)[1]
    try:
        torch.empty(int(total * 0.6), dtype=torch.uint8, device="cuda:1")
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError("the fraction was forgotten")


def streams_of_other_devices(torch):
    """Memory that a stream of another device uses waits for it."""
    far = torch.cuda.Stream(1)
    for turn in range(8):
        source = torch.full((200 * MIB,), turn, dtype=torch.uint8, device="cuda:0")
        torch.cuda.synchronize(0)
        with torch.cuda.stream(far):
            torch.cuda._sleep(50_000_000)
            copy = torch.empty(200 * MIB, dtype=torch.uint8, device="cuda:1")
        # By the far stream alone, without PyTorch's own waits.
        with torch.cuda.stream(far):
            call(
                runtime().cudaMemcpyPeerAsync,
                ctypes.c_void_p(copy.data_ptr()),
                1,
                ctypes.c_void_p(source.data_ptr()),
                0,
                ctypes.c_size_t(200 * MIB),
                ctypes.c_void_p(far.cuda_stream),
            )
        source.record_stream(far)
        del source
        again = torch.full((200 * MIB,), 99, dtype=torch.uint8, device="cuda:0")
        torch.cuda.synchronize(0)
        far.synchronize()
        assert bool((copy == turn).all()), turn
        del again, copy
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved(0) == 0


def peers_of_foreign_memory(torch):
    """Copies of strided tensors between devices, to memory of plain cudaMalloc."""
    cudart = runtime()

    class Foreign:
        """Memory that PyTorch did not allocate."""

        def __init__(self, size):
            pointer = ctypes.c_void_p()
            call(cudart.cudaMalloc, ctypes.byref(pointer), ctypes.c_size_t(size))
            self.__cuda_array_interface__ = {
                "shape": (size // 4,),
                "typestr": "<f4",
                "data": (pointer.value, False),
                "version": 3,
            }

    with torch.cuda.device(1):
        foreign = torch.as_tensor(Foreign(64 * MIB), device="cuda:1")
    ours = torch.arange(32 * MIB // 4, dtype=torch.float32, device="cuda:0")
    foreign[::2].copy_(ours)
    torch.cuda.synchronize(1)
    assert bool((foreign[::2].cpu() == ours.cpu()).all())
    back = torch.zeros(64 * MIB // 4, device="cuda:0")
    back[::2].copy_(foreign[::2])
    assert bool((back[::2] == ours).all())


ONE_GPU = (
    static_tensor,
    tensors_of_threads,
    device_reset,
    destroyed_streams,
    foreign_captures,
    per_thread_stream,
)
TWO_GPUS = (unused_device, streams_of_other_devices, peers_of_foreign_memory)


def one(name, allocator):
    """One case in this process."""
    import torch

    if allocator == "seamalloc":
        import seamalloc

        seamalloc.enable(quiet=True)
    {case.__name__: case for case in (*ONE_GPU, *TWO_GPUS)}[name](torch)
    print("done", flush=True)


def run(name, allocator):
    """One case in a process of its own."""
    start = time.monotonic()
    line = {"case": name, "allocator": allocator, "ok": False}
    try:
        done = subprocess.run(
            [sys.executable, str(HERE / "edges.py"), "--one", name, allocator],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        warned = [text for text in done.stderr.splitlines() if "seamalloc" in text and "edges.py" not in text]
        line.update(code=done.returncode, warned=warned[:5])
        line["ok"] = done.returncode == 0 and not warned and done.stdout.strip().endswith("done")
        if not line["ok"]:
            line["error"] = done.stderr[-1500:]
    except subprocess.TimeoutExpired:
        line["error"] = "took too long"
    line["seconds"] = round(time.monotonic() - start, 1)
    print(json.dumps(line), flush=True)
    return line


def main():
    """The command."""
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:4])
        return
    import torch

    names = [case.__name__ for case in ONE_GPU]
    if torch.cuda.device_count() > 1:
        names += [case.__name__ for case in TWO_GPUS]
    else:
        print(json.dumps({"left_out": [case.__name__ for case in TWO_GPUS], "why": "one GPU"}), flush=True)
    names = [name for name in names if name in (sys.argv[1:] or names)]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as workers:
        lines = list(workers.map(run, *zip(*[(name, kind) for name in names for kind in ("native", "seamalloc")])))
    sys.exit(0 if all(line["ok"] for line in lines if line["allocator"] == "seamalloc") else 1)


if __name__ == "__main__":
    main()

"""What page-locked memory is to the system: python facts.py

For cuMemHostAlloc and for registered memory of the process: what /proc/self/smaps says of its addresses, what counts as locked or
pinned, what the control group is charged, what a child of fork finds there and how long the fork takes. Then ways to make and register
pages: in pieces, in small pages, without populating them first.
"""

import ctypes
import os
import time

GIB, MIB = 1 << 30, 1 << 20
HUGE = 2 * MIB
MADV_DONTFORK, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_POPULATE_WRITE = 10, 14, 15, 23

cuda = ctypes.CDLL("libcuda.so.1")
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
cuda.cuMemHostAlloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
cuda.cuMemFreeHost.argtypes = [ctypes.c_void_p]
cuda.cuMemHostRegister_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
cuda.cuMemHostUnregister.argtypes = [ctypes.c_void_p]


def check(status, call):
    if status:
        raise SystemExit(f"{call}: {status}")


def advise(at, size, advice, what):
    if libc.madvise(at, size, advice):
        print(f"  madvise({what}): errno {ctypes.get_errno()}")


def take(size):
    """Addresses from a multiple of 2 MiB on, and what to give back."""
    start = libc.mmap(None, size + HUGE, 3, 0x22, -1, 0)
    return (start + HUGE - 1) & ~(HUGE - 1), (start, size + HUGE)


def lines(path, *names):
    with open(path) as file:
        return {line.split(":")[0]: line.split(":")[1].strip() for line in file if line.split(":")[0] in names}


def smaps(address):
    """The line and the flags of the range in which an address lies."""
    inside = None
    with open("/proc/self/smaps") as file:
        for line in file:
            first = line.split(" ")[0]
            if "-" in first and ":" not in first:
                start, end = (int(part, 16) for part in first.split("-"))
                inside = " ".join(line.split()[1:]) if start <= address < end else None
            elif inside is not None and line.split(":")[0] in ("Rss", "AnonHugePages", "ShmemPmdMapped", "Locked"):
                inside += f"; {line.split(':')[0]} {line.split(':')[1].strip()}"
            elif inside is not None and line.startswith("VmFlags"):
                return inside + "; " + line.split(":")[1].strip()
    return "not there"


def charged():
    """What the process's control group is charged, and what the machine has left."""
    with open("/proc/self/cgroup") as file:
        group = file.read().split("::")[-1].strip()
    found = {}
    for path in (f"/sys/fs/cgroup{group}/memory.current", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes"):
        if os.path.exists(path):
            with open(path) as file:
                found[path] = int(file.read()) // MIB
    found["MemAvailable"] = int(lines("/proc/meminfo", "MemAvailable")["MemAvailable"].split()[0]) // 1024
    return found


def child_reads(address):
    """What a child of fork finds at an address, and the time of the fork."""
    begin = time.perf_counter()
    child = os.fork()
    if child == 0:
        os._exit(ctypes.c_ubyte.from_address(address).value)
    took = time.perf_counter() - begin
    status = os.waitpid(child, 0)[1]
    seen = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"reads {os.WEXITSTATUS(status)}"
    return f"child {seen}, fork {took * 1e3:.1f} ms"


def tell(what, address, before):
    after = charged()
    print(f"{what}: {smaps(address)}")
    print(f"  {lines('/proc/self/status', 'VmLck', 'VmPin')}, MiB more: { {key: after[key] - before[key] for key in after} }", flush=True)


def driver_memory(size):
    before, address = charged(), ctypes.c_void_p()
    check(cuda.cuMemHostAlloc(ctypes.byref(address), size, 1), "cuMemHostAlloc")
    ctypes.c_ubyte.from_address(address.value).value = 42
    tell("cuMemHostAlloc", address.value, before)
    print(f"  {child_reads(address.value)}", flush=True)
    check(cuda.cuMemFreeHost(address), "cuMemFreeHost")


def registered_memory(size, dont_fork):
    before = charged()
    address, whole = take(size)
    advise(address, size, MADV_HUGEPAGE, "HUGEPAGE")
    if dont_fork:
        advise(address, size, MADV_DONTFORK, "DONTFORK")
    advise(address, size, MADV_POPULATE_WRITE, "POPULATE_WRITE")
    check(cuda.cuMemHostRegister_v2(address, size, 1), "cuMemHostRegister")
    ctypes.c_ubyte.from_address(address).value = 42
    tell(f"registered, {'MADV_DONTFORK' if dont_fork else 'for children too'}", address, before)
    print(f"  {child_reads(address)}", flush=True)
    check(cuda.cuMemHostUnregister(address), "cuMemHostUnregister")
    libc.munmap(*whole)


def made(size, piece, huge, populate):
    """Pages in pieces, each made and registered by itself."""
    pages, locks, back, all_of_it = 0, 0, 0, []
    for _ in range(size // piece):
        begin = time.perf_counter()
        address, whole = take(piece)
        advise(address, piece, MADV_HUGEPAGE if huge else MADV_NOHUGEPAGE, "HUGEPAGE")
        if populate:
            advise(address, piece, MADV_POPULATE_WRITE, "POPULATE_WRITE")
        between = time.perf_counter()
        check(cuda.cuMemHostRegister_v2(address, piece, 1), "cuMemHostRegister")
        end = time.perf_counter()
        pages, locks = pages + between - begin, locks + end - between
        all_of_it.append((address, whole))
    begin = time.perf_counter()
    for address, whole in all_of_it:
        check(cuda.cuMemHostUnregister(address), "cuMemHostUnregister")
        libc.munmap(*whole)
    back = time.perf_counter() - begin
    print(
        f"{size // GIB} GiB in pieces of {piece // MIB} MiB, huge={huge}, populated={populate}: pages {pages:.3f} s, register {locks:.3f}, back {back:.3f}",
        flush=True,
    )


def main():
    context, device = ctypes.c_void_p(), ctypes.c_int()
    check(cuda.cuInit(0), "cuInit")
    check(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    version = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    with open("/proc/self/limits") as file:
        limits = [" ".join(line.split()) for line in file if "locked" in line]
    with open("/sys/kernel/mm/transparent_hugepage/enabled") as file:
        print(os.uname().release, version.value, file.read().strip(), limits, flush=True)
    driver_memory(2 * GIB)
    registered_memory(2 * GIB, True)
    registered_memory(2 * GIB, False)
    # By turns: memory that the machine gives out for the first time takes longer.
    for _ in range(4):
        for piece, huge, populate in ((256, True, True), (256, True, False), (64, True, True), (64, True, False)):
            made(8 * GIB, piece * MIB, huge, populate)
    for _ in range(2):
        made(8 * GIB, 256 * MIB, False, True)
        made(8 * GIB, 256 * MIB, False, False)


main()

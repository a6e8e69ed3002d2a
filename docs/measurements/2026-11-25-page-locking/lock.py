"""How long page-locked memory takes to have and to give back: python lock.py

Three ways: cuMemHostAlloc, pages of the process that are populated and registered (cuMemHostRegister), by one thread and by several, and
chunks of the driver's virtual memory on a NUMA node.
"""

import ctypes
import mmap
import os
import threading
import time

GIB, MIB = 1 << 30, 1 << 20
HUGE = 2 * MIB
PRIVATE_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
MADV_HUGEPAGE, MADV_POPULATE_WRITE = 14, 23
PORTABLE = 1

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
cuda.cuMemcpyDtoHAsync_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
cuda.cuMemAlloc_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
cuda.cuMemCreate.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64]
cuda.cuMemRelease.argtypes = [ctypes.c_uint64]


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    ]


def check(status, call):
    if status:
        raise SystemExit(f"{call}: {status}")


def timed(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def together(threads, work):
    """Calls `work` with the number of each thread, in threads of their own."""
    if threads == 1:
        work(0)
        return
    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def copy(address, size):
    """GB/s from the device to an address."""

    def all_of_it():
        for offset in range(0, size, 4 * GIB):
            check(cuda.cuMemcpyDtoHAsync_v2(address + offset, device_memory, min(4 * GIB, size - offset), None), "copy")
        check(cuda.cuCtxSynchronize(), "synchronize")

    return size / timed(all_of_it) / 1e9


def host_alloc(size):
    address = ctypes.c_void_p()
    made = timed(lambda: check(cuda.cuMemHostAlloc(ctypes.byref(address), size, PORTABLE), "cuMemHostAlloc"))
    copies = [copy(address.value, size) for _ in range(2)]
    freed = timed(lambda: check(cuda.cuMemFreeHost(address), "cuMemFreeHost"))
    print(f"cuMemHostAlloc {size / GIB:.0f} GiB: {made:.3f} s, copies {copies[0]:.1f} {copies[1]:.1f} GB/s, free {freed:.3f}", flush=True)


def host_alloc_by(threads, size):
    addresses = [ctypes.c_void_p() for _ in range(threads)]

    def work(number):
        cuda.cuCtxSetCurrent(context)
        check(cuda.cuMemHostAlloc(ctypes.byref(addresses[number]), size // threads, PORTABLE), "cuMemHostAlloc")

    made = timed(lambda: together(threads, work))
    freed = timed(lambda: [check(cuda.cuMemFreeHost(address), "cuMemFreeHost") for address in addresses])
    print(f"cuMemHostAlloc {size / GIB:.0f} GiB by {threads} threads: {made:.3f} s, free {freed:.3f}", flush=True)


def register(size, threads, huge, parts=1, registering=1):
    """Pages that `threads` populate, registered in so many parts by so many threads."""
    start = libc.mmap(None, size + HUGE, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0)
    address = (start + HUGE - 1) & ~(HUGE - 1)
    if huge:
        libc.madvise(address, size, MADV_HUGEPAGE)

    def populate(number):
        part = size // threads
        if libc.madvise(address + part * number, part, MADV_POPULATE_WRITE):
            print("populate", ctypes.get_errno())

    def lock(number):
        cuda.cuCtxSetCurrent(context)
        part = size // parts
        for at in range(number, parts, registering):
            check(cuda.cuMemHostRegister_v2(address + part * at, part, PORTABLE), "cuMemHostRegister")

    def unlock():
        for at in range(parts):
            check(cuda.cuMemHostUnregister(address + size // parts * at), "cuMemHostUnregister")

    populated = timed(lambda: together(threads, populate))
    locked = timed(lambda: together(registering, lock))
    copies = [copy(address, size) if parts == 1 else 0 for _ in range(2)]
    unlocked = timed(unlock)
    unmapped = timed(lambda: libc.munmap(start, size + HUGE))
    print(
        f"mmap {size / GIB:.0f} GiB huge={huge} populate by {threads}: {populated:.3f} s, register in {parts} by {registering}: {locked:.3f} s, "
        f"copies {copies[0]:.1f} {copies[1]:.1f}, unregister {unlocked:.3f}, unmap {unmapped:.3f}",
        flush=True,
    )


def chunks(size, chunk, threads):
    handles = [[] for _ in range(threads)]

    def work(number):
        cuda.cuCtxSetCurrent(context)
        properties = Properties(1, 0, Location(3, 0), None, 0)  # pinned, on NUMA node 0
        for _ in range(size // chunk // threads):
            handle = ctypes.c_uint64()
            check(cuda.cuMemCreate(ctypes.byref(handle), chunk, ctypes.byref(properties), 0), "cuMemCreate")
            handles[number].append(handle)

    made = timed(lambda: together(threads, work))
    released = timed(lambda: [check(cuda.cuMemRelease(handle), "cuMemRelease") for some in handles for handle in some])
    print(
        f"HOST_NUMA chunks {size / GIB:.0f} GiB of {chunk // MIB} MiB by {threads} threads: create {made:.3f} s, release {released:.3f}",
        flush=True,
    )


context, device, device_memory = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
check(cuda.cuInit(0), "cuInit")
check(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
with open("/sys/kernel/mm/transparent_hugepage/enabled") as file, open("/proc/meminfo") as memory:
    print(file.read().strip(), os.cpu_count(), memory.read().split("\n")[:3], flush=True)
check(cuda.cuMemAlloc_v2(ctypes.byref(device_memory), 4 * GIB), "cuMemAlloc")

host_alloc(2 * GIB)
host_alloc(8 * GIB)
host_alloc(8 * GIB)
host_alloc_by(8, 8 * GIB)
for threads in (1, 4, 8, 16):
    register(8 * GIB, threads, True)
register(8 * GIB, 8, False)
register(8 * GIB, 8, True, 8, 1)
register(8 * GIB, 8, True, 8, 8)
register(8 * GIB, 16, True)
host_alloc(8 * GIB)
chunks(4 * GIB, 16 * MIB, 1)
chunks(4 * GIB, 16 * MIB, 8)
chunks(4 * GIB, 128 * MIB, 8)

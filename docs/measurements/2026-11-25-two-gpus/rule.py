"""When memory that is mapped already refuses access of another device: python rule.py FLAGS EXPORTED, on two GPUs with peer access.

FLAGS are `CUmemAllocationProp::allocFlags` as a number: 0x100 is `gpuDirectRDMACapable`. EXPORTED is 1 for memory with a POSIX descriptor.
Each line: the flags, EXPORTED, what was done, and what cuMemSetAccess answered (0: success, 1: CUDA_ERROR_INVALID_VALUE). `first`, `second` and
`third` are the addresses of one handle of 20 MiB in the order in which it was mapped; [0] and [0, 1] are the devices that get access.
"""

import ctypes
import sys

FLAGS, EXPORTED = int(sys.argv[1], 0), int(sys.argv[2])
SIZE = 20 << 20
U64 = ctypes.c_uint64
cuda = ctypes.CDLL("libcuda.so.1")


class Location(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("id", ctypes.c_int)]


class Prop(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", U64),
    ]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


def call(name, *given):
    """The status of a call."""
    return getattr(cuda, name)(
        *[U64(one) if isinstance(one, int) else one for one in given]
    )


def must(name, *given):
    status = call(name, *given)
    if status:
        raise RuntimeError(f"{name} {status}")


def create():
    handle = U64()
    must(
        "cuMemCreate",
        ctypes.byref(handle),
        SIZE,
        ctypes.byref(Prop(1, EXPORTED, Location(1, 0), None, FLAGS)),
        0,
    )
    return handle


def place(handle=None):
    """Reserved addresses, at which a handle is mapped."""
    address = U64()
    must("cuMemAddressReserve", ctypes.byref(address), SIZE, 0, 0, 0)
    if handle is not None:
        must("cuMemMap", address.value, SIZE, 0, handle, 0)
    return address.value


def unmap(address):
    must("cuMemUnmap", address, SIZE)


def access(address, devices, flags=3):
    """Gives devices access. Returns the status."""
    wanted = [Access(Location(1, device), flags) for device in devices]
    return call(
        "cuMemSetAccess", address, SIZE, (Access * len(wanted))(*wanted), len(wanted)
    )


def twice(of_first, of_second):
    """A handle at two addresses. Returns them and the handle."""
    handle = create()
    first = place(handle)
    if of_first:
        access(first, of_first)
    second = place(handle)
    if of_second:
        access(second, of_second)
    return first, second, handle


def show(what, *answers):
    print(hex(FLAGS), EXPORTED, what, *answers, flush=True)


def main():
    must("cuInit", 0)
    contexts = []
    for device in (0, 1):
        context = ctypes.c_void_p()
        must("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        contexts.append(context)
    must("cuCtxSetCurrent", contexts[0])

    first, second, _ = twice([0], [0])
    unmap(first)
    show(
        "first unmapped, second [0, 1], [0], [0, 1]:",
        *(access(second, devices) for devices in ([0, 1], [0], [0, 1])),
    )
    first, second, _ = twice(None, [0])
    unmap(first)
    show("the same, first never had access:", access(second, [0, 1]))
    first, second, _ = twice([0, 1], [0])
    unmap(first)
    show("the same, first had [0, 1]:", access(second, [0, 1]))
    first, second, _ = twice([0, 1], [0, 1])
    unmap(first)
    show("both had [0, 1], first unmapped, second [0, 1]:", access(second, [0, 1]))
    show("then none for 1, and [0, 1]:", access(second, [1], 0), access(second, [0, 1]))
    first, second, _ = twice([0], [0])
    unmap(second)
    show("second unmapped, first [0, 1]:", access(first, [0, 1]))
    handle = create()
    first = place(handle)
    access(first, [0])
    unmap(first)
    show("one after the other, second [0, 1]:", access(place(handle), [0, 1]))
    first, second, _ = twice([0], [0])
    show("both mapped, second [0, 1]:", access(second, [0, 1]))
    unmap(first)
    show("then first unmapped, second [0, 1]:", access(second, [0, 1]))
    first, second, handle = twice([0], [0])
    third = place(handle)
    access(third, [0])
    unmap(first)
    show(
        "three, first unmapped, second and third [0, 1]:",
        access(second, [0, 1]),
        access(third, [0, 1]),
    )

    # Ways out.
    first, second, handle = twice([0], [0])
    unmap(first)
    unmap(second)
    must("cuMemMap", second, SIZE, 0, handle, 0)
    show("way out: second mapped anew, [0, 1]:", access(second, [0, 1]))
    first, second, handle = twice([0], [0])
    unmap(first)
    third = place(handle)
    opened = access(second, [0, 1])
    unmap(third)
    show(
        "way out: a third mapping without access, second [0, 1], and after it is gone:",
        opened,
        access(second, [0, 1]),
    )
    must("cuCtxSetCurrent", contexts[1])
    copy = U64()
    must("cuMemAlloc_v2", ctypes.byref(copy), SIZE)
    show(
        "a copy of it by device 1:",
        call("cuMemcpyDtoD_v2", copy.value, second, SIZE),
        call("cuCtxSynchronize"),
    )


if __name__ == "__main__":
    main()

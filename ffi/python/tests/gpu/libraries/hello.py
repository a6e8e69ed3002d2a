"""One library alone over seamalloc, on a GPU: memory is filled, checked and given back. `python hello.py cupy`."""

import gc
import sys

WORDS = 3_000_001


def cupy():
    import cupy

    import seamalloc.cupy

    seamalloc.cupy.enable(memory_limit="4GiB")
    array = cupy.arange(WORDS, dtype=cupy.int32)
    right = int(array.sum(dtype=cupy.int64)) == WORDS * (WORDS - 1) // 2
    try:
        cupy.zeros(6 << 30, dtype=cupy.uint8)
    except cupy.cuda.memory.OutOfMemoryError as error:
        print("refused:", str(error)[:160])
    else:
        right = False
    return right


def numba():
    import numpy
    from numba import cuda

    import seamalloc.numba

    seamalloc.numba.enable(memory_limit="4GiB")

    @cuda.jit
    def double(array):
        i = cuda.grid(1)
        if i < array.size:
            array[i] *= 2

    host = numpy.arange(WORDS, dtype=numpy.int32)
    array = cuda.to_device(host)
    double[(WORDS + 255) // 256, 256](array)
    right = bool((array.copy_to_host() == 2 * host).all())
    try:
        cuda.device_array(6 << 30, dtype=numpy.uint8)
    except cuda.cudadrv.driver.CudaAPIError as error:
        print("refused:", str(error)[:160])
    else:
        right = False
    print("memory info", cuda.current_context().get_memory_info())
    del array
    cuda.current_context().memory_manager.deallocations.clear()
    return right


def rmm():
    import numpy
    import rmm

    import seamalloc.rmm

    seamalloc.rmm.enable(memory_limit="4GiB")
    host = numpy.arange(WORDS, dtype=numpy.int32)
    stream = rmm.pylibrmm.stream.Stream()
    buffer = rmm.DeviceBuffer.to_device(host.view(numpy.uint8), stream=stream)
    right = buffer.tobytes(stream=stream) == host.tobytes()
    try:
        rmm.DeviceBuffer(size=6 << 30)
    except MemoryError as error:
        print("refused:", str(error)[:160])
    else:
        right = False
    return right


def cuda_core():
    from cuda.core import Device

    import seamalloc.cuda_core

    device = Device(0)
    device.set_current()
    seamalloc.cuda_core.enable(memory_limit="4GiB")
    stream = device.create_stream()
    buffer = device.allocate(WORDS * 4, stream=stream)
    buffer.fill(b"\x01\x02\x03\x04", stream=stream)
    stream.sync()
    from ctypes import c_ubyte

    from cuda.bindings import driver

    host = (c_ubyte * 4)()
    (status,) = driver.cuMemcpyDtoH(host, int(buffer.handle) + 4 * (WORDS - 1), 4)
    right = int(status) == 0 and bytes(host) == b"\x01\x02\x03\x04"
    try:
        device.allocate(6 << 30, stream=stream)
    except MemoryError as error:
        print("refused:", str(error)[:160])
    else:
        right = False
    buffer.close(stream)
    return right


def triton():
    import torch
    from one_memory_kernels import double

    import seamalloc
    import seamalloc.triton

    seamalloc.enable(memory_limit="4GiB")
    seamalloc.triton.enable()
    rows = 4096
    matrix = torch.arange(rows * 64, dtype=torch.int32, device="cuda")
    before = seamalloc.stats()["allocation"]["all"]["allocated"]
    double[(rows // 64,)](matrix, rows)
    asked = seamalloc.stats()["allocation"]["all"]["allocated"] - before
    print("requests by the launch:", asked)
    wanted = 2 * torch.arange(rows * 64, dtype=torch.int32, device="cuda")
    return bool((matrix == wanted).all()) and asked > 0


def main():
    import seamalloc

    name = sys.argv[1]
    right = globals()[name]()
    gc.collect()
    live = seamalloc.stats()["allocated_bytes"]["all"]
    print(f"hello {name}: {'right' if right else 'WRONG'}, at most {live['peak']} bytes in use")
    return 0 if right and live["peak"] >= (1 << 20) else 1


if __name__ == "__main__":
    sys.exit(main())

"""The kernels of one_memory.py: Numba's, and one of Triton's that makes a tensor's descriptor on the device, for which Triton asks
the allocator."""

import triton
import triton.language as tl
from numba import cuda


@cuda.jit
def fill(array, first):
    i = cuda.grid(1)
    if i < array.size:
        array[i] = first + i


@cuda.jit
def check(array, first, wrong):
    i = cuda.grid(1)
    if i < array.size and array[i] != first + i:
        cuda.atomic.add(wrong, 0, 1)


@triton.jit
def double(pointer, rows):
    matrix = tl.make_tensor_descriptor(pointer, shape=[rows, 64], strides=[64, 1], block_shape=[64, 64])
    row = tl.program_id(0) * 64
    matrix.store([row, 0], matrix.load([row, 0]) * 2)


def kernels():
    return fill, check, double

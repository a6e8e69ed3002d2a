"""Tests of what cuda.core requires of a memory resource, with its own or, if OVER=ours, with seamalloc's, for pytest.

cuda.core's own tests make a resource in each test; these ask the same of one that is given.
"""

import gc
import os
import threading

import numpy
import pytest
from cuda.bindings import driver
from cuda.core import Buffer, Device
from cuda.core.utils import StridedMemoryView

OURS = os.environ.get("OVER") == "ours"
SIZES = [1, 3, 256, 511, 512, 513, 4096, 65536, (1 << 20) - 1, 1 << 20, (2 << 20) + 1, 20 << 20, 64 << 20]


@pytest.fixture
def device():
    found = Device(0)
    found.set_current()
    return found


@pytest.fixture
def resource(device):
    if OURS:
        import seamalloc.cuda_core

        return seamalloc.cuda_core.enable()
    return device.memory_resource


def contents(buffer, stream):
    stream.sync()
    host = numpy.empty(buffer.size, dtype=numpy.uint8)
    (status,) = driver.cuMemcpyDtoH(host.ctypes.data, int(buffer.handle), buffer.size)
    assert int(status) == 0
    return host


@pytest.mark.parametrize("size", SIZES)
def test_a_buffer_says_what_it_is(device, resource, size):
    buffer = resource.allocate(size, stream=device.default_stream)
    assert buffer.handle != 0 and buffer.size == size and int(buffer.handle) % 256 == 0
    assert buffer.memory_resource is resource or buffer.memory_resource == resource
    assert buffer.is_device_accessible and not buffer.is_host_accessible and not buffer.is_mapped
    assert buffer.device_id == 0
    buffer.close()
    assert int(buffer.handle or 0) == 0


@pytest.mark.parametrize("size", SIZES)
def test_every_byte_is_written_and_read(device, resource, size):
    stream = device.create_stream()
    buffer = resource.allocate(size, stream=stream)
    buffer.fill(0x5A, stream=stream)
    assert (contents(buffer, stream) == 0x5A).all()
    buffer.close(stream)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_fills_of_several_widths(device, resource, width):
    stream = device.create_stream()
    pattern = bytes(range(1, 1 + width))
    buffer = resource.allocate(1 << 20, stream=stream)
    buffer.fill(pattern, stream=stream)
    assert bytes(contents(buffer, stream)) == pattern * ((1 << 20) // width)
    buffer.close()


def test_copies_between_buffers(device, resource):
    stream = device.create_stream()
    first, second = (resource.allocate(1 << 20, stream=stream) for _ in range(2))
    first.fill(7, stream=stream)
    first.copy_to(second, stream=stream)
    assert (contents(second, stream) == 7).all()
    second.fill(9, stream=stream)
    first.copy_from(second, stream=stream)
    assert (contents(first, stream) == 9).all()


def test_a_copy_makes_its_destination(device, resource):
    stream = device.create_stream()
    first = resource.allocate(1 << 20, stream=stream)
    first.fill(3, stream=stream)
    second = first.copy_to(stream=stream)
    assert second.memory_resource == first.memory_resource
    assert (contents(second, stream) == 3).all()


def test_a_buffer_closes_twice(device, resource):
    buffer = resource.allocate(1024, stream=device.default_stream)
    buffer.close()
    buffer.close()


def test_a_with_block_closes(device, resource):
    with resource.allocate(1024, stream=device.default_stream) as buffer:
        assert int(buffer.handle) != 0
    assert int(buffer.handle or 0) == 0


def test_collected_buffers_are_freed(device, resource):
    # 200 GiB in all: none may be kept.
    for _ in range(100):
        resource.allocate(2 << 30, stream=device.default_stream)
    gc.collect()


def test_the_stream_of_the_free_may_change(device, resource):
    first, second = device.create_stream(), device.create_stream()
    for round in range(50):
        buffer = resource.allocate(8 << 20, stream=first)
        buffer.fill(round, stream=first)
        second.wait(first)
        copy = resource.allocate(8 << 20, stream=second)
        buffer.copy_to(copy, stream=second)
        buffer.close(second)
        # May get the memory of `buffer`, and no byte may reach `copy`.
        other = resource.allocate(8 << 20, stream=first)
        other.fill(255, stream=first)
        other.close(first)
        assert (contents(copy, second) == round).all()
        copy.close(second)


def test_the_stream_of_the_free_is_set_before(device, resource):
    if not hasattr(Buffer, "set_deallocation_stream"):
        pytest.skip("this cuda.core has no set_deallocation_stream")
    first, second = device.create_stream(), device.create_stream()
    buffer = resource.allocate(1 << 20, stream=first)
    second.wait(first)
    buffer.set_deallocation_stream(second)
    buffer.close()


def test_streams_of_others_are_taken(device, resource):
    class Foreign:
        def __init__(self, handle):
            self.handle = handle

        def __cuda_stream__(self):
            return (0, self.handle)

    made = device.create_stream()
    buffer = resource.allocate(4096, stream=device.create_stream(Foreign(made.__cuda_stream__()[1])))
    buffer.fill(1, stream=made)
    assert (contents(buffer, made) == 1).all()
    buffer.close()


def test_dlpack_goes_out(device, resource):
    buffer = resource.allocate(1024, stream=device.default_stream)
    assert buffer.__dlpack_device__() == (2, 0)
    assert "dltensor" in repr(buffer.__dlpack__(stream=-1))
    view = StridedMemoryView.from_any_interface(buffer, stream_ptr=-1)
    assert view.ptr == int(buffer.handle) and view.is_device_accessible


def test_cupy_reads_by_dlpack(device, resource):
    cupy = pytest.importorskip("cupy")
    buffer = resource.allocate(1 << 20, stream=device.default_stream)
    buffer.fill(5, stream=device.default_stream)
    device.sync()
    array = cupy.from_dlpack(buffer).view(cupy.uint8)
    assert int((array == 5).sum()) == array.size


def test_the_device_allocates_from_it(device, resource):
    device.memory_resource = resource
    buffer = device.allocate(4096, stream=device.default_stream)
    assert buffer.memory_resource == resource
    buffer.close()


def test_no_bytes(device, resource):
    buffer = resource.allocate(0, stream=device.default_stream)
    assert buffer.size == 0
    buffer.close()


def test_what_is_too_much_is_refused(device, resource):
    with pytest.raises(Exception, match="(?i)memory"):
        resource.allocate(1 << 42, stream=device.default_stream)
    resource.allocate(1 << 20, stream=device.default_stream).close()


@pytest.mark.parametrize("threads", [4])
def test_threads(device, resource, threads):
    wrong = []

    def work(number):
        Device(0).set_current()
        stream = Device(0).create_stream()
        for round in range(40):
            buffer = resource.allocate((1 << 20) + 512 * number, stream=stream)
            buffer.fill(10 * number + round % 10, stream=stream)
            if not (contents(buffer, stream) == 10 * number + round % 10).all():
                wrong.append((number, round))
            buffer.close(stream)

    started = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert not wrong


def test_a_stream_may_be_closed_before_its_buffer(device, resource):
    for _ in range(20):
        stream = device.create_stream()
        buffer = resource.allocate(4 << 20, stream=stream)
        buffer.fill(1, stream=stream)
        stream.sync()
        stream.close()
        del buffer
        gc.collect()
    buffer = resource.allocate(4 << 20, stream=device.default_stream)
    buffer.close()

"""Which of PyTorch's tests are about memory; of those, which cannot apply to an external allocator, and which seamalloc fails
by design.

Classes whose purpose is the allocator are taken whole, of others the tests whose code names the allocator, CUDA graphs (they
live in its private pools), or streams (memory goes from one to another). The tests of pinned host memory are left out:
that is another allocator, which seamalloc leaves in place.
"""

import re

# And seconds a test, roughly: what takes longest begins first.
CLASSES = {
    "test_multiprocessing.TestMultiprocessing": 20,
    "test_cuda.TestCuda": 1.5,
    "test_cuda.TestCudaMallocAsync": 3,
    "test_cuda.TestBlockStateAbsorption": 1,
    "test_cuda.TestMemPool": 1.5,
    "test_cuda.TestFXMemoryProfiler": 8,
    "test_cuda_multigpu.TestCudaMultiGPU": 1,
    "test_cuda_trace.TestCudaTrace": 1,
}
WHOLE = ("test_cuda.TestBlockStateAbsorption", "test_cuda.TestMemPool")
IN_CODE = re.compile(
    r"memory_(allocat|reserv|stats|snapshot|histor|use\b)|memory_fraction|OutOfMemory|empty_cache|record_stream"
    r"|caching_?allocator|allocator_settings|mem_?pool|graph_pool|cudagraph|cuda\.graph\(|make_graphed|mem_get_info|_snapshot"
    r"|LeaksNoCuda|Tried to allocate|\.Stream\(",
    re.IGNORECASE,
)
IN_NAME = {
    "test_multiprocessing.TestMultiprocessing": re.compile("cuda"),
    "test_cuda_trace.TestCudaTrace": re.compile("memory"),
}
NOT_IN_NAME = re.compile("pinned|pin_memory|host_memory")

# They ask what the whole device has left, fill it, or need its processors to themselves.
WHOLE_DEVICE = re.compile(
    "out_of_memory_retry|set_per_process_memory_fraction|repeat_graph_capture|concurrent_replay|test_mem_get_info"
)

CAPTURE_REUSE = "an option of PYTORCH_CUDA_ALLOC_CONF, off unless asked for: reuse across streams within a capture"
ANOTHER_PYTHON = "starts a Python of its own, where seamalloc is not enabled"
INAPPLICABLE = {
    "test_allocator_backend": "chooses cudaMallocAsync in place of native",
    "test_allocator_memory_fraction_setting": "an option of PYTORCH_CUDA_ALLOC_CONF, in a Python of its own",
    "test_allocator_settings": "the options of PYTORCH_CUDA_ALLOC_CONF, and their effect on rounding",
    "test_cachingAllocator_raw_alloc": "switches caching off: every request a cudaMalloc",
    "test_graph_memory_stats_and_use_result_after_destroy_graph": "how many segments native takes, and of which sizes",
    "test_cuda_bad_call": ANOTHER_PYTHON,
    "test_graph_capture_reclaim_2_streams": CAPTURE_REUSE,
    "test_graph_capture_reclaim_4_streams": CAPTURE_REUSE,
    "test_graph_error": ANOTHER_PYTHON,
    "test_mempool_no_split": "wants a rest in another pool that nobody asked for: seamalloc grows by what is missing",
    "test_no_triton_on_import": ANOTHER_PYTHON,
    "test_wrong_cuda_fork": ANOTHER_PYTHON,
}

# They apply, native passes them, and seamalloc does something else on purpose.
DIFFERS = {
    "test_record_stream": "a hit calls no driver: what waits for another stream is asked about at the next miss",
}


def is_chosen(group, name, code):
    """Whether a test is about device memory."""
    if NOT_IN_NAME.search(name):
        return False
    if group in IN_NAME:
        return bool(IN_NAME[group].search(name))
    return group in WHOLE or bool(IN_CODE.search(code))


def is_of_whole_device(name):
    """Whether it must have the device to itself."""
    return bool(WHOLE_DEVICE.search(name))


def why_not(name):
    """Why a test cannot apply to an external allocator, or None."""
    return INAPPLICABLE.get(name)


def why_different(name):
    """Why seamalloc is known to fail a test, or None."""
    return DIFFERS.get(name)

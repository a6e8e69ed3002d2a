"""The suites of PyTorch's tests that are run: their files, which of their tests are taken, and which seamalloc is known to fail.

Classes whose purpose is the allocator are taken whole, of others the tests whose code names the allocator, CUDA graphs (they
live in its private pools), or streams (memory goes from one to another). The tests of pinned host memory are left out:
that is another allocator, which seamalloc leaves in place.
"""

import re
from dataclasses import dataclass, field

ABOUT_MEMORY = re.compile(
    r"memory_(allocat|reserv|stats|snapshot|histor|use\b)|memory_fraction|OutOfMemory|empty_cache|record_stream"
    r"|caching_?allocator|allocator_settings|mem_?pool|graph_pool|cudagraph|cuda\.graph\(|make_graphed|mem_get_info|_snapshot"
    r"|LeaksNoCuda|Tried to allocate|\.Stream\(",
    re.IGNORECASE,
)
ABOUT_CUDA = re.compile(r"cuda|accelerator|\bgpu", re.IGNORECASE)
ABOUT_PINNED = re.compile("pinned|pin_memory|host_memory")
# Names that PyTorch gives to the copies for one kind of device of a class that is written for all of them.
OF_CUDA, OF_ANOTHER = re.compile("CUDA$"), re.compile("(CPU|META|Meta|LAZY)$")
# How a test says how many GPUs it needs, and that it needs much memory.
WANTS_GPUS = re.compile(r"skip_if_lt_x_gpu\((\d+)\)")
WANTS_MEMORY = re.compile("largeTensorTest")
# They ask what the whole device has left or who uses it, fill it, or compare times.
OF_WHOLE_DEVICE = re.compile(
    "out_of_memory_retry|set_per_process_memory_fraction|repeat_graph_capture|concurrent_replay|test_mem_get_info"
    "|extra_cuda_context|fully_shard.*_overlap"
)
# NCCL's multicast over NVLink: on a host that others share it can put all GPUs out of service.
NEVER = re.compile("nccl_user_buffer_registration|nccl_window_registration|nvls|multicast", re.IGNORECASE)


def of_device(group, name, code):
    """Chooses tests that are written for a device and instantiated for CUDA, and others that name CUDA."""
    if OF_CUDA.search(group):
        return True
    return not OF_ANOTHER.search(group) and bool(ABOUT_CUDA.search(name) or ABOUT_CUDA.search(code))


def of_test_cuda(group, name, code):
    """Chooses all tests of test_cuda.py but the copies for other devices."""
    return not OF_ANOTHER.search(group)


def of_allocator(group, name, code):
    """Chooses tests of device memory."""
    return bool(ABOUT_MEMORY.search(code))


def of_named_cuda(group, name, code):
    """Chooses tests that send tensors of CUDA to other processes."""
    return "cuda" in name


def of_traced_memory(group, name, code):
    """Chooses tests of the trace of memory."""
    return "memory" in name


def of_all(group, name, code):
    """Chooses every test."""
    return True


@dataclass(frozen=True)
class Suite:
    """A group of PyTorch's test files that are run in the same way."""

    # Relative to PyTorch's folder `test`, each with its rule: (class, test, source code) -> whether it is taken.
    modules: dict
    # GPUs that its tests need, at the least.
    gpus: int = 1
    # Seconds that a test usually takes, and may take.
    usual_s: float = 1.0
    limit_s: float = 100.0
    # The tests ask PYTORCH_CUDA_ALLOC_CONF whether segments grow, and count them accordingly.
    counts_segments: bool = False
    # Classes in the order in which they are run; those that are not named come between the two.
    first: tuple = ()
    last: tuple = ()
    environment: dict = field(default_factory=dict)


FSDP = "distributed/_composable/fsdp/test_fully_shard_"
# In a test, so that a hung collective is reported by PyTorch with stack traces, before the test's own limit.
PATIENCE = {"DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "75"}
SUITES = {
    "cuda": Suite({"test_cuda": of_test_cuda}, usual_s=1.5, counts_segments=True),
    "sharing": Suite(
        {
            "test_multiprocessing": of_named_cuda,
            "test_cuda_multigpu": of_allocator,
            "test_cuda_trace": of_traced_memory,
        },
        usual_s=8,
        counts_segments=True,
    ),
    "cudagraph_trees": Suite({"inductor/test_cudagraph_trees": of_all}, usual_s=5),
    "torch": Suite({"test_torch": of_device}, usual_s=0.3),
    "autograd": Suite({"test_autograd": of_device}, usual_s=0.5),
    "fsdp2": Suite(
        {FSDP + name: of_all for name in ("memory", "overlap", "autograd", "training", "state_dict")},
        gpus=2,
        usual_s=25,
        limit_s=150,
        environment=PATIENCE,
    ),
    "c10d_nccl": Suite(
        {"distributed/test_c10d_nccl": of_all},
        gpus=2,
        usual_s=15,
        first=("DistributedDataParallelTest", "CommTest"),
        last=("NCCLTraceTest", "NCCLTraceTestDumpOnTimeout", "NcclErrorHandlingTest"),
        environment=PATIENCE,
    ),
}

CAPTURE_REUSE = "an option of PYTORCH_CUDA_ALLOC_CONF, off unless asked for: reuse across streams within a capture"
INAPPLICABLE = {
    "test_allocator_backend": "chooses cudaMallocAsync in place of native",
    "test_allocator_memory_fraction_setting": "an option of PYTORCH_CUDA_ALLOC_CONF, in a Python of its own",
    "test_allocator_settings": "the options of PYTORCH_CUDA_ALLOC_CONF, and their effect on rounding",
    "test_cachingAllocator_raw_alloc": "switches caching off: every request a cudaMalloc",
    "test_graph_memory_stats_and_use_result_after_destroy_graph": "how many segments native takes, and of which sizes",
    "test_graph_capture_reclaim_2_streams": CAPTURE_REUSE,
    "test_graph_capture_reclaim_4_streams": CAPTURE_REUSE,
    "test_mempool_no_split": "wants a rest in another pool that nobody asked for: seamalloc grows by what is missing",
}

# They apply, native passes them, and seamalloc does something else on purpose.
DIFFERS = {
    "test_record_stream": "a hit calls no driver: what waits for another stream is asked about at the next miss",
}


def is_chosen(suite, module, group, name, code):
    """Returns whether a test is run."""
    if ABOUT_PINNED.search(name) or NEVER.search(name):
        return False
    return SUITES[suite].modules[module](group, name, code)


def why_known(name):
    """Returns why seamalloc is known to fail a test that native passes, or None."""
    return INAPPLICABLE.get(name) or DIFFERS.get(name)


def gpus_wanted(code):
    """Returns the number of GPUs that a test says it needs."""
    return max([int(number) for number in WANTS_GPUS.findall(code)], default=0)


def is_of_whole_device(name, code):
    """Returns whether a test must have the device to itself."""
    return bool(OF_WHOLE_DEVICE.search(name) or WANTS_MEMORY.search(code))


def order(suite, group):
    """Returns the place of a class among those of its suite; the lowest is run first."""
    first, last = SUITES[suite].first, SUITES[suite].last
    if group in first:
        return first.index(group)
    return len(first) + (1 + last.index(group) if group in last else 0)

//! The rows of Paddle's flags.

use super::row::{Row, mib};
use seamalloc::Config;

const OF_CHUNKS: &str = "MiB; 0: as large as the request";

fn switch(on: bool) -> String {
    if on { "True" } else { "False" }.to_owned()
}

const SWITCH: &str = "`True` or `False`, 1 or 0";

const fn flag(
    name: &'static str,
    field: &'static str,
    value: &'static str,
    default: fn(&Config) -> String,
    example: &'static str,
) -> Row {
    Row { name, field, value, default, when: "", example }
}

pub(crate) const FLAGS: &[Row] = &[
    flag("FLAGS_free_idle_chunk", "paddle.free_idle_chunk", SWITCH, |c| switch(c.paddle.free_idle_chunk), "1"),
    flag(
        "FLAGS_free_when_no_cache_hit",
        "paddle.free_when_no_cache_hit",
        SWITCH,
        |c| switch(c.paddle.free_when_no_cache_hit),
        "1",
    ),
    flag(
        "FLAGS_auto_growth_chunk_size_in_mb",
        "paddle.auto_growth_chunk_size",
        OF_CHUNKS,
        |c| mib(c.paddle.auto_growth_chunk_size),
        "64",
    ),
    flag(
        "FLAGS_small_pool_size_in_mb",
        "paddle.small_pool_size",
        "MiB; 0: no such pool",
        |c| mib(c.paddle.small_pool_size),
        "1",
    ),
    flag(
        "FLAGS_small_pool_auto_growth_chunk_size_in_mb",
        "paddle.small_pool_auto_growth_chunk_size",
        OF_CHUNKS,
        |c| mib(c.paddle.small_pool_auto_growth_chunk_size),
        "8",
    ),
    flag(
        "FLAGS_large_pool_auto_growth_chunk_size_in_mb",
        "paddle.large_pool_auto_growth_chunk_size",
        OF_CHUNKS,
        |c| mib(c.paddle.large_pool_auto_growth_chunk_size),
        "64",
    ),
    flag(
        "FLAGS_fraction_of_gpu_memory_to_use",
        "paddle.fraction_of_gpu_memory_to_use",
        "above 0, up to 1",
        |c| c.paddle.fraction_of_gpu_memory_to_use.to_string(),
        "0.1",
    ),
    flag(
        "FLAGS_initial_gpu_memory_in_mb",
        "paddle.initial_gpu_memory",
        "MiB; 0: by the fraction",
        |c| mib(c.paddle.initial_gpu_memory),
        "64",
    ),
    flag(
        "FLAGS_reallocate_gpu_memory_in_mb",
        "paddle.reallocate_gpu_memory",
        "MiB; 0: by the fraction",
        |c| mib(c.paddle.reallocate_gpu_memory),
        "64",
    ),
    flag(
        "FLAGS_use_stream_safe_cuda_allocator",
        "paddle.use_stream_safe_cuda_allocator",
        SWITCH,
        |c| switch(c.paddle.use_stream_safe_cuda_allocator),
        "1",
    ),
    flag(
        "FLAGS_cuda_malloc_async_pool_memory_throttle_ratio",
        "paddle.cuda_malloc_async_pool_memory_throttle_ratio",
        "0 to 1",
        |c| c.paddle.cuda_malloc_async_pool_memory_throttle_ratio.to_string(),
        "0.1",
    ),
    flag(
        "FLAGS_vmm_v2_large_pool_handle_size_in_mb",
        "paddle.vmm_v2_large_pool_handle_size",
        "MiB, even",
        |c| mib(c.paddle.vmm_v2_large_pool_handle_size),
        "2",
    ),
];

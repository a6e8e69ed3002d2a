//! The flags of Paddle's allocators, under their own names.
//!
//! Owns: [`PaddleFlags`], their defaults and their text. The defaults are Paddle's (`paddle/common/flags.cc`,
//! `auto_growth_best_fit_allocator.cc`), but that of `vmm_v2_…`, which was chosen here, and that of
//! `use_stream_safe_cuda_allocator`, which is off.

use std::fmt;

const MIB: u64 = 1 << 20;
/// The name of the one flag of Paddle's `CUDAMallocAsyncAllocator`.
pub(super) const THROTTLE_RATIO: &str = "FLAGS_cuda_malloc_async_pool_memory_throttle_ratio";

/// The flags of the strategies `paddle-…`. In text each has the prefix `FLAGS_`, and switches are `True` or `False`, or 1
/// or 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaddleFlags {
    /// `FLAGS_free_idle_chunk`: a chunk goes back to the driver as soon as nothing in it is live (`paddle-auto-growth`).
    pub free_idle_chunk: bool,
    /// `FLAGS_free_when_no_cache_hit`: all idle chunks go back before a new one is taken (`paddle-auto-growth`).
    pub free_when_no_cache_hit: bool,
    /// `FLAGS_auto_growth_chunk_size_in_mb`, in bytes: the least size of a chunk (`paddle-auto-growth`). 0: that of the
    /// request.
    pub auto_growth_chunk_size: u64,
    /// `FLAGS_small_pool_size_in_mb`, in bytes: requests of up to so many bytes have chunks of their own
    /// (`paddle-auto-growth`). 0: they share those of all others.
    pub small_pool_size: u64,
    /// `FLAGS_small_pool_auto_growth_chunk_size_in_mb`, in bytes: the least size of a chunk of the small pool, if there is
    /// one.
    pub small_pool_auto_growth_chunk_size: u64,
    /// `FLAGS_large_pool_auto_growth_chunk_size_in_mb`, in bytes: the same of the large pool, if there is a small one.
    pub large_pool_auto_growth_chunk_size: u64,
    /// `FLAGS_fraction_of_gpu_memory_to_use`: how much of the free memory a chunk takes (`paddle-naive-best-fit`,
    /// `paddle-thread-local`).
    pub fraction_of_gpu_memory_to_use: f64,
    /// `FLAGS_initial_gpu_memory_in_mb`, in bytes: the first chunk instead. 0: by the fraction.
    pub initial_gpu_memory: u64,
    /// `FLAGS_reallocate_gpu_memory_in_mb`, in bytes: all later chunks instead. 0: by the fraction.
    pub reallocate_gpu_memory: u64,
    /// `FLAGS_use_stream_safe_cuda_allocator`: streams are safe by the rule of Paddle's `StreamSafeCUDAAllocator` (all strategies of
    /// Paddle's). An event is recorded when a stream is named, not at the free, so a program names it after it has given it
    /// the work; a request that finds too little memory does not wait for events. Off by default, unlike Paddle's: then the
    /// rule is that of all strategies, which waits for at least as much.
    pub use_stream_safe_cuda_allocator: bool,
    /// `FLAGS_cuda_malloc_async_pool_memory_throttle_ratio`: above this part (0 to 1) of the device's memory, allocated or freed on
    /// the stream for frees, a request's stream waits for that one (`malloc-async`).
    pub cuda_malloc_async_pool_memory_throttle_ratio: f64,
    /// `FLAGS_vmm_v2_large_pool_handle_size_in_mb`, in bytes: a piece of memory for requests of 2 MiB and more (`paddle-vmm`).
    pub vmm_v2_large_pool_handle_size: u64,
}

impl PaddleFlags {
    /// Paddle's defaults, but for `vmm_v2_large_pool_handle_size` and `use_stream_safe_cuda_allocator`.
    pub const DEFAULT: Self = Self {
        free_idle_chunk: false,
        free_when_no_cache_hit: false,
        auto_growth_chunk_size: 0,
        small_pool_size: 0,
        small_pool_auto_growth_chunk_size: 0,
        large_pool_auto_growth_chunk_size: 0,
        fraction_of_gpu_memory_to_use: 0.92,
        initial_gpu_memory: 0,
        reallocate_gpu_memory: 0,
        use_stream_safe_cuda_allocator: false,
        cuda_malloc_async_pool_memory_throttle_ratio: 0.8,
        vmm_v2_large_pool_handle_size: 20 * MIB,
    };

    pub(super) const NAMES: [&'static str; 12] = [
        "FLAGS_free_idle_chunk",
        "FLAGS_free_when_no_cache_hit",
        "FLAGS_fraction_of_gpu_memory_to_use",
        THROTTLE_RATIO,
        "FLAGS_auto_growth_chunk_size_in_mb",
        "FLAGS_small_pool_size_in_mb",
        "FLAGS_small_pool_auto_growth_chunk_size_in_mb",
        "FLAGS_large_pool_auto_growth_chunk_size_in_mb",
        "FLAGS_initial_gpu_memory_in_mb",
        "FLAGS_reallocate_gpu_memory_in_mb",
        "FLAGS_use_stream_safe_cuda_allocator",
        "FLAGS_vmm_v2_large_pool_handle_size_in_mb",
    ];

    /// Returns the flag of this name whose value is a number of MiB.
    pub(super) fn size(&mut self, name: &str) -> Option<&mut u64> {
        Some(match name {
            "FLAGS_auto_growth_chunk_size_in_mb" => &mut self.auto_growth_chunk_size,
            "FLAGS_small_pool_size_in_mb" => &mut self.small_pool_size,
            "FLAGS_small_pool_auto_growth_chunk_size_in_mb" => &mut self.small_pool_auto_growth_chunk_size,
            "FLAGS_large_pool_auto_growth_chunk_size_in_mb" => &mut self.large_pool_auto_growth_chunk_size,
            "FLAGS_initial_gpu_memory_in_mb" => &mut self.initial_gpu_memory,
            "FLAGS_reallocate_gpu_memory_in_mb" => &mut self.reallocate_gpu_memory,
            "FLAGS_vmm_v2_large_pool_handle_size_in_mb" => &mut self.vmm_v2_large_pool_handle_size,
            _ => return None,
        })
    }

    /// Returns the flag of this name that is a switch.
    pub(super) fn switch(&mut self, name: &str) -> Option<&mut bool> {
        match name {
            "FLAGS_free_idle_chunk" => Some(&mut self.free_idle_chunk),
            "FLAGS_free_when_no_cache_hit" => Some(&mut self.free_when_no_cache_hit),
            "FLAGS_use_stream_safe_cuda_allocator" => Some(&mut self.use_stream_safe_cuda_allocator),
            _ => None,
        }
    }

    /// Reads the value of a switch.
    pub(super) fn read_switch(value: &str) -> Option<bool> {
        match value {
            "True" | "true" | "1" => Some(true),
            "False" | "false" | "0" => Some(false),
            _ => None,
        }
    }

    /// Returns the first flag that is outside of its range: its name, its value, and what was expected.
    pub(super) fn out_of_range(&self) -> Option<(&'static str, String, &'static str)> {
        let handle = self.vmm_v2_large_pool_handle_size;
        if handle == 0 || !handle.is_multiple_of(2 * MIB) || handle > 1 << 40 {
            let name = "FLAGS_vmm_v2_large_pool_handle_size_in_mb";
            return Some((name, (handle / MIB).to_string(), "an even number of MiB from 2 to 1048576"));
        }
        let ratio = self.cuda_malloc_async_pool_memory_throttle_ratio;
        if !(0.0..=1.0).contains(&ratio) {
            return Some((THROTTLE_RATIO, ratio.to_string(), "a number from 0 to 1"));
        }
        let fraction = self.fraction_of_gpu_memory_to_use;
        let found = || fraction.to_string();
        let expected = "a number above 0, up to 1";
        (!(fraction > 0.0 && fraction <= 1.0)).then(|| ("FLAGS_fraction_of_gpu_memory_to_use", found(), expected))
    }

    /// Adds the flags that differ from the defaults, as text.
    pub(super) fn write(&self, part: &mut dyn FnMut(fmt::Arguments<'_>) -> fmt::Result) -> fmt::Result {
        let (mut flags, mut default) = (*self, Self::DEFAULT);
        for name in Self::NAMES {
            match (flags.switch(name).copied(), flags.size(name).copied()) {
                (Some(on), _) if Some(on) != default.switch(name).copied() => {
                    part(format_args!("{name}:{}", if on { "True" } else { "False" }))?;
                }
                (_, Some(size)) if Some(size) != default.size(name).copied() => {
                    part(format_args!("{name}:{}", size / MIB))?;
                }
                _ => {}
            }
        }
        let ratio = self.cuda_malloc_async_pool_memory_throttle_ratio;
        if ratio != default.cuda_malloc_async_pool_memory_throttle_ratio {
            part(format_args!("{THROTTLE_RATIO}:{ratio}"))?;
        }
        if self.fraction_of_gpu_memory_to_use != default.fraction_of_gpu_memory_to_use {
            let fraction = self.fraction_of_gpu_memory_to_use;
            part(format_args!("FLAGS_fraction_of_gpu_memory_to_use:{fraction}"))?;
        }
        Ok(())
    }
}

impl Default for PaddleFlags {
    fn default() -> Self {
        Self::DEFAULT
    }
}

//! Strategies `paddle-naive-best-fit` and `paddle-thread-local`: Paddle's `BuddyAllocator`, which is no buddy system.
//!
//! The rules are those of `buddy_allocator.cc` (02a5e4e), `memory_block.h` and `gpu_info.cc` of
//! `paddle/phi/backends/gpu`:
//! - a block has room for a descriptor of 64 bytes, although the descriptor lies on the host (`Alloc`,
//!   `MemoryBlock::Desc`);
//! - the smallest free block that fits serves, and among equal ones the lowest; the request gets the front of the block
//!   (`FindExistChunk`, `SplitToAlloc`);
//! - a miss takes a chunk: 92% of 95% of the free memory, or the size that a flag names (`RefillPool`,
//!   `DeviceAllocateSize`, `GpuAllocSize`, `GpuAvailableMemToAlloc`);
//! - a request larger than any chunk goes to the driver directly, and back to the driver at its free (`SystemAlloc`,
//!   `Free`);
//! - a freed block merges with the right neighbour and the left one; whole chunks are given back when memory is short
//!   (`Release`).
//!
//! Paddle's `naive_best_fit` is one such allocator for a device, for programs with one stream. Paddle's `thread_local`
//! has one such allocator for each thread (`thread_local_allocator.cc`), so that threads need no lock. Requests of an
//! `Allocator` name a stream and no thread, and no stream may get memory that another stream may still use. So both
//! strategies have one allocator for each stream here. A program with one stream for each thread gets Paddle's
//! `thread_local`. For a program with a single thread the two strategies are equal, as in Paddle. A `Facade` of
//! `seamalloc-layers` gives each thread an allocator. A chunk has whole pages of 2 MiB; if the device has no room for a
//! chunk of this size, the chunk is as large as the request.

use crate::backing::{Served, StrategyContext, malloc_largest};
use crate::config::Config;
use crate::config::rounding::MIN_BLOCK;
use crate::heap::Rounding;
use crate::heap::{FitRules, Layout, Request};
use crate::ids::PoolIndex;
use crate::strategy::malloc_like::{MallocLike, PAGE, least_segment};

/// `sizeof(MemoryBlock::Desc)`, in bytes.
const DESCRIPTOR: u64 = 64;
/// The part of the free memory that chunks leave to other programs (`fraction_reserve_gpu_memory`).
const RESERVED: f64 = 0.05;

#[derive(Default)]
pub(crate) struct NaiveBestFit;

impl MallocLike for NaiveBestFit {
    fn fit(&self, _config: &Config) -> FitRules {
        FitRules { count_ages: true, ..FitRules::BEST }
    }

    fn divided(&self, config: &Config, total: u64) -> Layout {
        let largest_chunk = [config.paddle.initial_gpu_memory, config.paddle.reallocate_gpu_memory]
            .map(|flag| chunk_of(config, flag, total));
        let largest_chunk = largest_chunk.into_iter().max().unwrap_or(0);
        Layout {
            rounding: Rounding::Multiple { of: MIN_BLOCK, padding: DESCRIPTOR },
            small_limit: 0,
            release_from: largest_chunk.saturating_add(1),
            ..Layout::PYTORCH
        }
    }

    fn growth(&self, _config: &Config, request: &Request) -> u64 {
        least_segment(request.size)
    }

    fn grow(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        let chunk =
            if request.size >= context.heap().layout().release_from { 0 } else { refill(context, request.pool) };
        malloc_largest(
            context,
            request.pool,
            [chunk, request.size].map(|size| least_segment(size.max(request.size))).into_iter(),
        )
    }
}

/// Returns the bytes of the next chunk of a pool.
fn refill(context: &StrategyContext<'_>, pool: PoolIndex) -> u64 {
    let flags = &context.config.paddle;
    let flag = if context.heap().has_segments(pool) { flags.reallocate_gpu_memory } else { flags.initial_gpu_memory };
    // If the driver does not report its free memory, `room` is 0. A chunk whose size no flag sets is then as large as
    // its request.
    chunk_of(context.config, flag, context.room())
}

/// Returns the size in bytes of a chunk while `free` bytes are free: `flag`, unless it is 0.
fn chunk_of(config: &Config, flag: u64, free: u64) -> u64 {
    let available = free - (free as f64 * RESERVED) as u64;
    match flag {
        0 => {
            let part = (available as f64 * config.paddle.fraction_of_gpu_memory_to_use) as u64;
            part - part % PAGE
        }
        size => size,
    }
}

//! Strategy `paddle-auto-growth`: Paddle's `AutoGrowthBestFitAllocator`.
//!
//! The rules are those of `auto_growth_best_fit_allocator.cc` (2c8abd8), and for the small pool those of
//! `test_allocator_flags` (pull request 74463):
//! - the smallest free block that fits serves, and among equal ones the lowest; the request gets the end of the block,
//!   and the whole rest before it stays free (`AllocateImpl`);
//! - a miss takes a chunk of the request's size, or of `auto_growth_chunk_size_in_mb` if that is more. Before the miss,
//!   `free_when_no_cache_hit` gives all idle chunks back. If there is no memory, all idle chunks are given back, and
//!   the driver is asked once more;
//! - a freed block merges with both neighbours in its chunk; `free_idle_chunk` gives chunks back as soon as they are
//!   idle (`FreeImpl`, `FreeIdleChunks`);
//! - requests of up to `small_pool_size_in_mb` have chunks of their own, if this flag is above 0.
//!
//! A chunk has whole pages of 2 MiB here, the unit in which a device gives memory, and the rest of the chunk is free.
//! Paddle's chunk has only the request's bytes; the driver keeps the rest of the page, and serves later small chunks
//! from it.
//!
//! The flags that take chunks before the first request (`…_pre_alloc_in_mb`) are not supported.

use crate::backing::{Served, StrategyContext, malloc_segment, release_segments_from};
use crate::config::Config;
use crate::config::rounding::MIN_BLOCK;
use crate::heap::Rounding;
use crate::heap::{FitRules, Layout, Placement, Request};
use crate::ids::Class;
use crate::limits::Increase;
use crate::strategy::malloc_like::{MallocLike, least_segment};

#[derive(Default)]
pub(crate) struct AutoGrowth;

impl MallocLike for AutoGrowth {
    fn fit(&self, _config: &Config) -> FitRules {
        FitRules {
            placement: Placement::Back,
            // A block that could not be split is handed out whole.
            min_rest: [u64::MAX; 2],
            count_ages: true,
            ..FitRules::BEST
        }
    }

    fn divided(&self, config: &Config, _total: u64) -> Layout {
        Layout {
            rounding: Rounding::Multiple { of: MIN_BLOCK, padding: 0 },
            small_limit: config.paddle.small_pool_size,
            release_from: if config.paddle.free_idle_chunk { 0 } else { u64::MAX },
            ..Layout::PYTORCH
        }
    }

    fn growth(&self, config: &Config, request: &Request) -> u64 {
        chunk_for(config, request)
    }

    fn grow(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        if context.config.paddle.free_when_no_cache_hit && !context.capturing() {
            release_segments_from(context, 0)?;
        }
        let size = chunk_for(context.config, request);
        context.require(Increase::taken(size))?;
        let chunk = malloc_segment(context, request.pool, size)?;
        Ok(context.place(chunk, request, Placement::Back))
    }
}

/// Returns the size in bytes of the chunk for a request.
fn chunk_for(config: &Config, request: &Request) -> u64 {
    let flags = &config.paddle;
    let least = match request.class {
        _ if flags.small_pool_size == 0 => flags.auto_growth_chunk_size,
        Class::Small => flags.small_pool_auto_growth_chunk_size,
        Class::Large => flags.large_pool_auto_growth_chunk_size,
    };
    least_segment(request.size.max(least))
}

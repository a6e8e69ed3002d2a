//! Strategy `tiny`: TinyTorch's allocator, the core of PyTorch's.
//!
//! Its rules are those of `TinyTorch/Allocator.cpp` (keith2018/TinyTorch, 1572420): multiples of 512 bytes (`roundSize`);
//! a pool of small blocks up to 1 MiB and one of large ones (`getPool`); segments of 2 MiB, of 20 MiB below 10 MiB, of
//! multiples of 2 MiB from there on (`getAllocationSize`); best fit (`getFreeBlock`); a small rest of 512 bytes or a large
//! one above 1 MiB becomes a block (`shouldSplit`); both neighbours merge (`tryMergeBlocks`); where no segment can be had,
//! all that are wholly free are released, and it is tried once more (`mallocImpl`, `releaseCachedBlocks`).
//!
//! It has none of PyTorch's options: `caching` with its defaults does the same, until memory is short.

use crate::backing::{Miss, StrategyContext, malloc_segment};
use crate::config::rounding::{LARGE_SEGMENT, MIN_BLOCK, Rounding, SMALL_LIMIT, segment_size};
use crate::config::{Config, Increase};
use crate::error::Result;
use crate::heap::{FitRules, Heap, Layout, Request};
use crate::ids::BlockId;
use crate::strategy::caching::Caching;
use crate::strategy::contract::{Assumption, Goal, Means, Rules, Strategy};
use crate::strategy::malloc_fallback::{self, Grow};
use crate::strategy::plain_memory::rules_of_malloc;

pub(crate) struct Tiny;

impl Strategy for Tiny {
    fn rules(&self, _config: &Config) -> Rules {
        let min_rest = [SMALL_LIMIT + MIN_BLOCK, MIN_BLOCK];
        rules_of_malloc(FitRules { min_rest, count_ages: true, ..FitRules::BEST })
    }

    fn layout(&self, _config: &Config, _total: u64) -> Layout {
        Layout { rounding: Rounding::Multiple { of: MIN_BLOCK, padding: 0 }, ..Layout::PYTORCH }
    }

    fn serve(
        &mut self,
        context: &mut StrategyContext<'_>,
        request: &Request,
        means: Means,
    ) -> std::result::Result<BlockId, Miss> {
        malloc_fallback::serve(self, context, request, means)
    }

    fn release(&mut self, context: &mut StrategyContext<'_>, goal: Goal) -> Result<bool> {
        Caching.release(context, goal)
    }

    fn growth_needed(&self, _heap: &Heap, _config: &Config, request: &Request, _assumption: Assumption) -> u64 {
        segment_size(request.size, LARGE_SEGMENT)
    }
}

impl Grow for Tiny {
    fn grow(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> std::result::Result<BlockId, Miss> {
        let size = segment_size(request.size, LARGE_SEGMENT);
        if !context.allows(Increase::taken(size)) {
            return Err(Miss::OUT_OF_MEMORY);
        }
        malloc_segment(context, request.pool, size)
    }

    fn counted(&self, _config: &Config, request: &Request) -> u64 {
        segment_size(request.size, LARGE_SEGMENT)
    }
}

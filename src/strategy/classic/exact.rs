//! Strategy `exact`: a list of free blocks for each size, cut one behind the other from large buffers.
//!
//! It is the second allocator of the tutorial "Write a Memory Allocator for PyTorch" (2024-05-16, "Second Approach"):
//! sizes are multiples of 1 KiB; a freed block goes into the list of its size, and serves that size only; a size whose list
//! is empty gets the next bytes of a buffer of 5 GiB (`managed_alloc`, `managed_free`). Blocks are never split or merged.
//!
//! In these points it is another: the block of the lowest address is taken, where the tutorial takes the one freed last; the
//! rests of all buffers serve, not of the last alone; and a buffer of which nothing is live can go back to the driver,
//! or be cut anew.

use super::halved;
use crate::backing::{Miss, StrategyContext, malloc_largest};
use crate::config::Config;
use crate::config::rounding::Rounding;
use crate::error::Result;
use crate::heap::{FitRules, Heap, Layout, Merging, Request};
use crate::ids::BlockId;
use crate::strategy::caching::Caching;
use crate::strategy::contract::{Assumption, Goal, Means, Rules, Strategy};
use crate::strategy::malloc_fallback::{self, Grow};
use crate::strategy::plain_memory::{least_segment, rules_of_malloc};

/// Sizes are multiples of this, in bytes (`byteSize = ((byteSize - 1) | 1023) + 1`).
const UNIT: u64 = 1024;

pub(crate) struct Exact;

impl Strategy for Exact {
    fn rules(&self, _config: &Config) -> Rules {
        rules_of_malloc(FitRules { count_ages: true, ..FitRules::EXACT })
    }

    fn layout(&self, _config: &Config, _total: u64) -> Layout {
        Layout {
            rounding: Rounding::Multiple { of: UNIT, padding: 0 },
            small_limit: 0,
            merging: Merging::Never,
            ..Layout::PYTORCH
        }
    }

    fn serve(
        &mut self,
        context: &mut StrategyContext<'_>,
        request: &Request,
        means: Means,
    ) -> std::result::Result<BlockId, Miss> {
        malloc_fallback::serve(self, context, request, means)
    }

    /// Releases buffers in which nothing is live.
    fn release(&mut self, context: &mut StrategyContext<'_>, goal: Goal) -> Result<bool> {
        context.heap.join_free_segments()?;
        Caching.release(context, goal)
    }

    fn growth_needed(&self, _heap: &Heap, _config: &Config, request: &Request, _assumption: Assumption) -> u64 {
        least_segment(request.size)
    }
}

impl Grow for Exact {
    /// Takes the next bytes of a buffer, or a new buffer. [`Heap::hand_out`] leaves the rest behind the block.
    fn grow(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> std::result::Result<BlockId, Miss> {
        if let Some(rest) = context.heap.unused_rest(request.pool, request.size)? {
            context.heap.take_free(rest);
            return Ok(rest);
        }
        let sizes = halved(context.config.classic.exact_buffer, least_segment(request.size));
        malloc_largest(context, request.pool, sizes)
    }

    fn counted(&self, _config: &Config, request: &Request) -> u64 {
        least_segment(request.size)
    }
}

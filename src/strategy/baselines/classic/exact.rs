//! Strategy `exact`: a list of free blocks for each size, cut one behind the other from large buffers.
//!
//! The strategy follows the second allocator of the tutorial "Write a Memory Allocator for PyTorch" (2024-05-16,
//! "Second Approach"): sizes are multiples of 1 KiB; a freed block goes into the list of its size, and serves that size
//! only; a size whose list is empty gets the next bytes of a buffer of 5 GiB (`managed_alloc`, `managed_free`). Blocks
//! are never split or merged.
//!
//! It differs in three points: a request takes the free block of the lowest address, not the one freed last; the rests
//! of all buffers serve, not that of the last buffer alone; and a buffer without live blocks can go back to the driver,
//! or be cut anew.

use super::halved;
use crate::backing::{Served, StrategyContext, malloc_largest};
use crate::config::Config;
use crate::heap::Rounding;
use crate::heap::{FitRules, Layout, Merging, Request};
use crate::strategy::malloc_like::{MallocLike, least_segment};

/// Sizes are multiples of this, in bytes (`byteSize = ((byteSize - 1) | 1023) + 1`).
const UNIT: u64 = 1024;

#[derive(Default)]
pub(crate) struct Exact;

impl MallocLike for Exact {
    fn fit(&self, _config: &Config) -> FitRules {
        FitRules { count_ages: true, ..FitRules::EXACT }
    }

    fn divided(&self, _config: &Config, _total: u64) -> Layout {
        Layout {
            rounding: Rounding::Multiple { of: UNIT, padding: 0 },
            small_limit: 0,
            merging: Merging::Never,
            ..Layout::PYTORCH
        }
    }

    fn growth(&self, _config: &Config, request: &Request) -> u64 {
        least_segment(request.size)
    }

    /// Takes the next bytes of a buffer, or a new buffer. [`Heap::hand_out`] leaves the rest behind the block.
    fn grow(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        if let Some(rest) = context.heap().unused_rest(request.pool, request.size)? {
            return Ok(context.take_block(rest));
        }
        let sizes = halved(context.config.classic.exact_buffer, least_segment(request.size));
        malloc_largest(context, request.pool, sizes)
    }
}

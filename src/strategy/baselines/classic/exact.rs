//! Strategy `exact`: a list of free blocks for each size. New blocks are cut one after the other from large buffers.
//!
//! The strategy follows the second allocator of the tutorial "Write a Memory Allocator for PyTorch" (2024-05-16,
//! "Second Approach"). Sizes are multiples of 1 KiB. A freed block goes into the list of its size, and serves this size
//! only. A request whose list is empty gets the next bytes of a buffer of 5 GiB (`managed_alloc`, `managed_free`).
//! Blocks are never split or merged.
//!
//! The strategy differs in three points. A request takes the free block with the lowest address, not the block freed
//! last. The unused bytes of all buffers serve requests, not only those of the last buffer. A buffer without live
//! blocks can be given back to the driver, or be cut again.

use super::halved;
use crate::backing::{Served, StrategyContext, malloc_largest};
use crate::config::Config;
use crate::heap::Rounding;
use crate::heap::{FitRules, Layout, Merging, Request};
use crate::strategy::malloc_like::{MallocLike, least_segment};

/// The unit of sizes, in bytes (`byteSize = ((byteSize - 1) | 1023) + 1`).
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

    /// Takes the next bytes of a buffer, or a new buffer. [`Heap::hand_out`] leaves the rest of the buffer after the
    /// block.
    fn grow(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        if let Some(rest) = context.heap().unused_rest(request.pool, request.size)? {
            return Ok(context.take_block(rest));
        }
        let sizes = halved(context.config.classic.exact_buffer, least_segment(request.size));
        malloc_largest(context, request.pool, sizes)
    }
}

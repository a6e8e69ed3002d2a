//! Strategy `buddy`: the buddy system. The size of a block is a power of two. A free block is halved as long as the
//! halves are large enough for the request. Two halves of a block merge once both are free.
//!
//! The strategy follows the third allocator of the tutorial "Write a Memory Allocator for PyTorch" (2024-05-16, "Third
//! Approach"), after Knuth, The Art of Computer Programming, volume 1, section 2.5: one tree of 4 GiB with leaves of 1
//! KiB. A request takes the leftmost free block of its size. If there is none, the smallest larger block is split, and
//! then its left half again (`managed_alloc`, `split`). A freed block merges upwards as long as its buddy is free
//! (`managed_free`, `merge`).
//!
//! The tutorial has one tree, and refuses a request that does not fit in it. This strategy takes more trees, larger or
//! smaller if necessary. A tree without live blocks is one free block, and can be given back to the driver.

use super::halved;
use crate::backing::{Served, StrategyContext, malloc_largest};
use crate::config::Config;
use crate::heap::Rounding;
use crate::heap::{FitRules, Layout, Merging, Placement, Request};
use crate::strategy::malloc_like::{MallocLike, PAGE};

/// The smallest block, in bytes (`MIN_CAPACITY`).
const LEAF: u64 = 1024;

#[derive(Default)]
pub(crate) struct Buddy;

impl MallocLike for Buddy {
    fn fit(&self, _config: &Config) -> FitRules {
        FitRules {
            placement: Placement::Halves,
            // A block that could not be halved is handed out whole.
            min_rest: [u64::MAX; 2],
            count_ages: true,
            ..FitRules::BEST
        }
    }

    fn divided(&self, _config: &Config, _total: u64) -> Layout {
        Layout {
            rounding: Rounding::PowerOfTwo { least: LEAF },
            small_limit: 0,
            merging: Merging::Buddies,
            ..Layout::PYTORCH
        }
    }

    fn growth(&self, _config: &Config, request: &Request) -> u64 {
        least_tree(request)
    }

    fn grow(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        let sizes = halved(context.config.classic.buddy_capacity, least_tree(request));
        let tree = malloc_largest(context, request.pool, sizes)?;
        Ok(context.place(tree, request, Placement::Halves))
    }
}

/// Returns the size in bytes of the smallest tree for a request, whose size is a power of two.
fn least_tree(request: &Request) -> u64 {
    request.size.max(PAGE)
}

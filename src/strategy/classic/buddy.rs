//! Strategy `buddy`: the buddy system. Blocks are powers of two, halved until they fit, and merged with their other half
//! once that is free.
//!
//! It is the third allocator of the tutorial "Write a Memory Allocator for PyTorch" (2024-05-16, "Third Approach"), after
//! Knuth, The Art of Computer Programming, volume 1, section 2.5: one tree of 4 GiB with leaves of 1 KiB. A request takes the
//! leftmost free block of its size; where there is none, the smallest larger one is split, and its left half again
//! (`managed_alloc`, `split`). A freed block merges upwards as long as its buddy is free (`managed_free`, `merge`).
//!
//! The tutorial has one tree, and refuses what it cannot hold. Here more trees are taken, larger or smaller ones where need
//! be, and a tree in which nothing is live is one free block and can go back to the driver.

use super::halved;
use crate::backing::{Miss, StrategyContext, malloc_largest};
use crate::config::Config;
use crate::config::rounding::Rounding;
use crate::error::Result;
use crate::heap::{FitRules, Heap, Layout, Merging, Placement, Request};
use crate::ids::BlockId;
use crate::strategy::caching::Caching;
use crate::strategy::contract::{Assumption, Goal, Means, Rules, Strategy};
use crate::strategy::malloc_fallback::{self, Grow};
use crate::strategy::plain_memory::{PAGE, rules_of_malloc};

/// The smallest block, in bytes (`MIN_CAPACITY`).
const LEAF: u64 = 1024;

pub(crate) struct Buddy;

impl Strategy for Buddy {
    fn rules(&self, _config: &Config) -> Rules {
        let fit = FitRules {
            placement: Placement::Halves,
            // A block that could not be halved is handed out whole.
            min_rest: [u64::MAX; 2],
            count_ages: true,
            ..FitRules::BEST
        };
        rules_of_malloc(fit)
    }

    fn layout(&self, _config: &Config, _total: u64) -> Layout {
        Layout {
            rounding: Rounding::PowerOfTwo { least: LEAF },
            small_limit: 0,
            merging: Merging::Buddies,
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

    /// Releases trees in which nothing is live.
    fn release(&mut self, context: &mut StrategyContext<'_>, goal: Goal) -> Result<bool> {
        Caching.release(context, goal)
    }

    fn growth_needed(&self, _heap: &Heap, _config: &Config, request: &Request, _assumption: Assumption) -> u64 {
        least_tree(request)
    }
}

impl Grow for Buddy {
    fn grow(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> std::result::Result<BlockId, Miss> {
        let sizes = halved(context.config.classic.buddy_capacity, least_tree(request));
        let tree = malloc_largest(context, request.pool, sizes)?;
        Ok(context.heap.place(tree, request, Placement::Halves))
    }

    fn counted(&self, _config: &Config, request: &Request) -> u64 {
        least_tree(request)
    }
}

/// Returns the bytes of the smallest tree that is taken for a request, which is a power of two itself.
fn least_tree(request: &Request) -> u64 {
    request.size.max(PAGE)
}

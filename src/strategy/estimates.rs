//! Estimates of what a strategy could do with the present memory, for reports and for processes that lend memory.
//!
//! Owns: the trait [`Estimates`]. An estimate makes no driver call and changes nothing.

use crate::config::Config;
use crate::heap::{Heap, Request};
use crate::ids::PoolIndex;

/// The state of memory that an estimate of growth assumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assumption {
    /// The present state.
    AsIs,
    /// The present state, but no view can be added: memory must lie in one piece.
    NoMoreViews,
    /// Free memory of other streams may be used as well.
    AllStreams,
}

/// Estimates of a strategy. The provided methods are for strategies that join no free memory.
pub(crate) trait Estimates {
    /// Returns by how many bytes at most the memory held would have to grow for a request that no free memory serves,
    /// less the bytes that would be given back for it.
    fn growth_needed(&self, heap: &Heap, config: &Config, request: &Request, assumption: Assumption) -> u64;

    /// Returns the largest request that the free memory of a pool could serve at present, without new memory and within
    /// the bounds on views. With `across`, memory of other streams counts as this one's.
    fn largest_servable(&self, heap: &Heap, _config: &Config, pool: PoolIndex, _across: bool) -> u64 {
        heap.largest_in(pool)
    }

    /// Returns the largest request that could be served if memory may grow by `room` bytes.
    fn largest_with_growth(&self, heap: &Heap, config: &Config, pool: PoolIndex, across: bool, room: u64) -> u64 {
        self.largest_servable(heap, config, pool, across).max(room)
    }
}

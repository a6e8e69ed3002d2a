//! Estimates of the requests that a strategy could serve with the present memory, for reports and for processes that
//! lend memory.
//!
//! Owns: the trait [`Estimates`]. An estimate makes no driver call and changes no state.

use crate::config::Config;
use crate::heap::{GRANULE, Heap, Request};
use crate::ids::{PoolIndex, ViewId};

/// The state of memory that an estimate of growth assumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assumption {
    /// The present state.
    AsIs,
    /// The present state without a further view: memory must lie in one piece.
    NoMoreViews,
    /// The present state, where free memory of other streams may be used too.
    AllStreams,
}

/// The present memory, as input of an estimate of growth.
#[derive(Clone, Copy)]
pub(crate) struct Present<'a> {
    pub(crate) heap: &'a Heap,
    pub(crate) config: &'a Config,
    /// The bytes by which memory can grow.
    pub(crate) room: u64,
    /// Whether chunks that are partly in use can be split before a request is refused.
    pub(crate) splits: bool,
}

/// Estimates of a strategy. The provided methods are for strategies that do not join free memory.
pub(crate) trait Estimates {
    /// Returns an upper bound of the bytes by which the memory held must grow for a request that no free memory serves,
    /// less the bytes that would be given back for the request.
    fn growth_needed(&self, present: &Present<'_>, request: &Request, assumption: Assumption) -> u64;

    /// Returns the largest request that the free memory of a pool could serve at present, without new memory and within
    /// the bounds on views (`max_views` and others). With `across`, memory of other streams counts too.
    fn largest_servable(&self, heap: &Heap, _config: &Config, pool: PoolIndex, _across: bool) -> u64 {
        heap.largest_in(pool)
    }

    /// Returns the largest request that could be served if memory may grow by [`Present::room`].
    fn largest_with_growth(&self, present: &Present<'_>, pool: PoolIndex, across: bool) -> u64 {
        let Present { heap, config, room, .. } = *present;
        let layout = heap.layout_of(pool);
        let grows_for = |size: &u64| {
            let class = layout.class_of(*size);
            let pool = pool.large().of(class);
            let size = layout.rounding.round(*size, &config.roundup_power2_divisions);
            let request = Request { size, requested: size, pool, class, extends: ViewId::NONE };
            self.growth_needed(present, &request, Assumption::AsIs) <= room
        };
        let whole = |unit: u64| room - room % unit.max(1);
        let grown = [whole(GRANULE), whole(config.large_segment_size), layout.small_limit.min(room)];
        let grown = grown.into_iter().filter(|size| *size > 0).filter(grows_for).max().unwrap_or(0);
        self.largest_servable(heap, config, pool, across).max(grown)
    }

    /// Returns the bytes in free granules of chunks that are partly in use, which a split could free.
    fn splittable(&self, _heap: &Heap) -> u64 {
        0
    }
}

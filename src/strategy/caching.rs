//! Strategy `caching`: PyTorch's native allocator. A miss takes a segment by `cudaMalloc` and caches it.
//!
//! Owns: segments by `malloc`, `max_split_size`, and garbage collection. The strategy is the baseline of every
//! comparison.

use super::malloc_like::MallocLike;
use crate::backing::{InTurn, MissResult, StrategyContext, release_segment};
use crate::config::Config;
use crate::config::rounding::{MIN_BLOCK, SMALL_LIMIT, segment_size};
use crate::error::Result;
use crate::fallible::{TryCollect, TryPush};
use crate::heap::{FitRules, Heap, Request};
use crate::ids::{BlockId, Class};

#[derive(Default)]
pub(crate) struct Caching;

impl MallocLike for Caching {
    fn fit(&self, config: &Config) -> FitRules {
        let max_split_size = config.max_split_size.unwrap_or(u64::MAX);
        FitRules {
            max_split_size,
            max_non_split_rounding: config.max_non_split_rounding,
            // The rest of a large block becomes a free block only if it is large enough for a large request.
            min_rest: [SMALL_LIMIT + MIN_BLOCK, MIN_BLOCK],
            no_split_from: max_split_size,
            // PyTorch counts ages only if it collects garbage. Without garbage collection, ages are counted here for
            // `trim`.
            count_ages: config.garbage_collection_threshold == 0.0 || config.memory_fraction.is_some(),
            ..FitRules::BEST
        }
    }

    fn growth(&self, config: &Config, request: &Request) -> u64 {
        segment_size(request.size, config.large_segment_size)
    }

    fn collect_garbage(&mut self, context: &mut StrategyContext<'_>) -> MissResult<()> {
        let Some(limit) = context.limits.by_fraction() else { return Ok(()) };
        let threshold = (context.config.garbage_collection_threshold * limit as f64) as u64;
        let Some(target) = context.heap().reserved().checked_sub(threshold).filter(|target| *target > 0) else {
            return Ok(());
        };
        let mut whole = aged_segments(context.heap())?;
        let (mut total_age, mut count) = (whole.iter().map(|(age, _)| *age).sum::<u64>(), whole.len() as u64);
        let mut reclaimed = 0;
        // Every segment older than the average is given back, even beyond the target, so that the threshold is not
        // reached again soon.
        while reclaimed < target && count > 0 {
            let average = total_age as f64 / count as f64;
            let is_old = |(age, _): &(u64, BlockId)| *age as f64 >= average;
            let old = whole.iter().copied().filter(is_old).try_to_vec()?;
            if old.is_empty() {
                break;
            }
            whole.retain(|segment| !is_old(segment));
            for (age, id) in old {
                let size = context.heap().block(id).size;
                release_segment(context, id)?;
                reclaimed += size;
                total_age -= age;
                count -= 1;
            }
        }
        Ok(())
    }

    /// Gives back just enough oversize segments of the request's stream, and takes new memory.
    fn make_room(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> MissResult<Option<BlockId>> {
        if release_available(context, request)? { self.grow_within_limit(context, request).found() } else { Ok(None) }
    }
}

/// Gives back oversize segments of the request's stream until their sum reaches the size of the request. Returns
/// whether the sum reaches this size.
fn release_available(context: &mut StrategyContext<'_>, request: &Request) -> Result<bool> {
    let Some(max_split_size) = context.config.max_split_size else { return Ok(false) };
    // A private pool keeps its memory.
    if context.heap().is_private(request.pool) {
        return Ok(false);
    }
    let wanted = request.size.max(max_split_size);
    let releasable =
        |heap: &Heap, id: BlockId| id.is_some() && heap.block(id).size >= max_split_size && !heap.block(id).is_split();
    let fitting = context.heap().best_fit(request.pool, wanted);
    if releasable(context.heap(), fitting) {
        release_segment(context, fitting)?;
        return Ok(true);
    }
    // No single segment is as large as the request, so several segments are released, the largest first.
    let mut released = 0;
    while released < wanted {
        let id = context.heap().largest_free(request.pool);
        if !releasable(context.heap(), id) {
            return Ok(false);
        }
        released += context.heap().block(id).size;
        release_segment(context, id)?;
    }
    Ok(true)
}

/// Returns the free large segments with their ages. An age is the number of searches since the segment became free.
fn aged_segments(heap: &Heap) -> Result<Vec<(u64, BlockId)>> {
    let now = heap.clock(Class::Large);
    let mut aged = Vec::new();
    for pool in heap.public_pools(Class::Large) {
        for id in heap.free_blocks(pool)?.into_iter().filter(|id| !heap.block(*id).is_split()) {
            aged.try_push((now.saturating_sub(heap.block(id).freed_at), id))?;
        }
    }
    Ok(aged)
}

//! Strategy `caching`: PyTorch's native allocator. A miss takes a segment by plain `cudaMalloc`, and keeps it.
//!
//! Owns: segments by `malloc`, `max_split_size`, and garbage collection. The baseline of every comparison.

use super::enough::just_enough;
use super::ladder::{Grow, climb, climb_to_the_end};
use super::{Ground, Miss, Strategy, segmented};
use crate::blocks::{BlockId, BlockTable};
use crate::config::Config;
use crate::driver::DriverResult;
use crate::heap::{FitRules, Heap, Request};
use crate::ids::StreamId;
use crate::rounding::{MIN_BLOCK, SMALL_LIMIT, segment_size};
use crate::stats::Class;
use std::cmp::Reverse;

pub(super) struct Caching;

impl Strategy for Caching {
    fn rules(&self, config: &Config) -> FitRules {
        let max_split_size = config.max_split_size.unwrap_or(u64::MAX);
        FitRules {
            growing_edge: false,
            max_split_size,
            max_non_split_rounding: config.max_non_split_rounding,
            // A rest of a large block must itself be able to serve large requests.
            min_rest: [SMALL_LIMIT + MIN_BLOCK, MIN_BLOCK],
            no_split_from: max_split_size,
            // PyTorch counts only where garbage is collected; where it never is, the ages are for `trim`.
            count_ages: config.garbage_collection_threshold == 0.0 || config.memory_fraction.is_some(),
            takes_idle: false,
            asks_first: true,
        }
    }

    fn miss(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        climb(self, ground, request)
    }

    fn last_resort(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        climb_to_the_end(self, ground, request)
    }

    /// `cudaFree` waits for the device.
    fn freed_under(&mut self, _ground: &mut Ground<'_>, _large: u32, _stream: StreamId) -> DriverResult<bool> {
        Ok(true)
    }

    fn release_cached(&mut self, ground: &mut Ground<'_>) -> DriverResult<()> {
        for class in [Class::Large, Class::Small] {
            for pool in ground.heap.shared_pools(class) {
                for id in ground.heap.pools[pool].free.in_order(&ground.heap.blocks) {
                    if !ground.heap.blocks[id].is_split() {
                        release(ground, id)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whole segments. `cudaFree` itself waits for the GPU, so none is free of waiting.
    fn trim(&mut self, ground: &mut Ground<'_>, down_to: u64, may_wait: bool) -> DriverResult<bool> {
        let whole = whole_segments(ground.heap);
        let sizes: Vec<u64> = whole.iter().map(|id| ground.heap.blocks[*id].size).collect();
        let missing = ground.heap.reserved().saturating_sub(down_to);
        if !may_wait && sizes.iter().sum::<u64>() < missing {
            return Ok(false);
        }
        just_enough(&sizes, missing).into_iter().try_for_each(|index| release(ground, whole[index])).map(|()| true)
    }
}

/// The free blocks that are segments of their own, those unused longest first.
pub(super) fn whole_segments(heap: &Heap) -> Vec<BlockId> {
    let mut whole = Vec::new();
    for pool in [Class::Large, Class::Small].into_iter().flat_map(|class| heap.shared_pools(class)) {
        let pool = &heap.pools[pool];
        let now = heap.searches[pool.class as usize];
        let unsplit = pool.free.in_order(&heap.blocks).into_iter().filter(|id| !heap.blocks[*id].is_split());
        let order = |id: BlockId| (Reverse(now.saturating_sub(heap.blocks[id].freed_at)), heap.blocks[id].address, id);
        whole.extend(unsplit.map(order));
    }
    whole.sort();
    whole.into_iter().map(|(.., id)| id).collect()
}

impl Grow for Caching {
    fn grow(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        let size = segment_size(request.size, ground.config.large_segment_size);
        if !ground.keeps_memory_limit(size) {
            return Err(Miss::OutOfMemory);
        }
        let address = segmented::take(ground, request.pool, size)?;
        match ground.heap.add_malloc_segment(request.pool, address, size) {
            Ok(id) => Ok(id),
            Err(error) => {
                segmented::give(ground, request.pool, address, size)?;
                Err(error.into())
            }
        }
    }

    fn collect_garbage(&mut self, ground: &mut Ground<'_>) -> Result<(), Miss> {
        let Some(limit) = ground.fraction_limit else { return Ok(()) };
        let threshold = (ground.config.garbage_collection_threshold * limit as f64) as u64;
        let Some(target) = ground.heap.reserved().checked_sub(threshold).filter(|target| *target > 0) else {
            return Ok(());
        };
        let searches = ground.heap.searches[Class::Large as usize];
        let age = |ground: &Ground<'_>, id: BlockId| searches.saturating_sub(ground.heap.blocks[id].freed_at);
        let mut whole = Vec::new();
        for pool in ground.heap.shared_pools(Class::Large) {
            let free = ground.heap.pools[pool].free.in_order(&ground.heap.blocks);
            let unsplit = free.into_iter().filter(|id| !ground.heap.blocks[*id].is_split());
            whole.extend(unsplit.map(|id| (age(ground, id), id)));
        }
        let (mut total_age, mut count) = (whole.iter().map(|(age, _)| *age).sum::<u64>(), whole.len() as u64);
        let mut reclaimed = 0;
        // Everything older than the average goes, beyond the target too, so that it is not reached again soon.
        while reclaimed < target && count > 0 {
            let average = total_age as f64 / count as f64;
            let (old, rest): (Vec<_>, Vec<_>) = whole.into_iter().partition(|(age, _)| *age as f64 >= average);
            if old.is_empty() {
                break;
            }
            for (age, id) in old {
                let size = ground.heap.blocks[id].size;
                release(ground, id)?;
                reclaimed += size;
                total_age -= age;
                count -= 1;
            }
            whole = rest;
        }
        Ok(())
    }

    fn release_available(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<bool, Miss> {
        let Some(max_split_size) = ground.config.max_split_size else { return Ok(false) };
        // A private pool keeps what it has.
        if ground.heap.is_private(request.pool) {
            return Ok(false);
        }
        let pool = request.pool as usize;
        let wanted = request.size.max(max_split_size);
        let releasable = |blocks: &BlockTable, id: BlockId| {
            id.is_some() && blocks[id].size >= max_split_size && !blocks[id].is_split()
        };
        let fitting = ground.heap.pools[pool].free.best_fit(&ground.heap.blocks, wanted);
        if releasable(&ground.heap.blocks, fitting) {
            release(ground, fitting)?;
            return Ok(true);
        }
        // No single segment covers the request: give back several, the largest first.
        let mut released = 0;
        while released < wanted {
            let id = ground.heap.pools[pool].free.largest(&ground.heap.blocks);
            if !releasable(&ground.heap.blocks, id) {
                return Ok(false);
            }
            released += ground.heap.blocks[id].size;
            release(ground, id)?;
        }
        Ok(true)
    }
}

/// Gives a segment back whose only block is free.
pub(super) fn release(ground: &mut Ground<'_>, id: BlockId) -> DriverResult<()> {
    ground.heap.malloc_segment_goes(id);
    ground.driver.free(ground.heap.blocks[id].address).inspect_err(|_| ground.heap.malloc_segment_stays(id))?;
    ground.heap.remove_malloc_segment(id);
    Ok(())
}

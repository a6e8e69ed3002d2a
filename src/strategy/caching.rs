//! Strategy `caching`: PyTorch's native allocator. A miss takes a segment by plain `cudaMalloc`, and keeps it.
//!
//! Owns: segments by `malloc`, `max_split_size`, and garbage collection. The baseline of every comparison.

use super::ladder::{Grow, climb};
use super::{Ground, Miss, Strategy};
use crate::blocks::{BlockId, BlockTable};
use crate::config::Config;
use crate::driver::{Call, DriverResult};
use crate::heap::{FitRules, Request};
use crate::rounding::{MIN_BLOCK, SMALL_LIMIT, segment_size};
use crate::stats::Class;

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
            count_ages: config.garbage_collection_threshold > 0.0 && config.memory_fraction.is_some(),
            takes_idle: false,
        }
    }

    fn miss(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        climb(self, ground, request)
    }

    fn release_cached(&mut self, ground: &mut Ground<'_>) -> DriverResult<()> {
        for class in [Class::Large, Class::Small] {
            for pool in 0..ground.heap.pools.len() {
                if ground.heap.pools[pool].class != class {
                    continue;
                }
                for id in ground.heap.pools[pool].free.in_order(&ground.heap.blocks) {
                    if !ground.heap.blocks[id].is_split() {
                        release(ground, id)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Grow for Caching {
    fn grow(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        let size = segment_size(request.size, ground.config.large_segment_size);
        let address = ground.driver.malloc(size)?;
        ground.heap.check_answer(Call::Malloc, address, size, MIN_BLOCK)?;
        match ground.heap.add_malloc_segment(request.pool, address, size) {
            Ok(id) => Ok(id),
            Err(error) => {
                ground.driver.free(address)?;
                Err(error.into())
            }
        }
    }

    fn collect_garbage(&mut self, ground: &mut Ground<'_>) -> Result<(), Miss> {
        let Some(limit) = ground.limit else { return Ok(()) };
        let threshold = (ground.config.garbage_collection_threshold * limit as f64) as u64;
        let Some(target) = ground.heap.reserved().checked_sub(threshold).filter(|target| *target > 0) else {
            return Ok(());
        };
        let searches = ground.heap.searches[Class::Large as usize];
        let age = |ground: &Ground<'_>, id: BlockId| searches.saturating_sub(ground.heap.blocks[id].freed_at);
        let mut whole = Vec::new();
        for pool in 0..ground.heap.pools.len() {
            if ground.heap.pools[pool].class == Class::Large {
                let free = ground.heap.pools[pool].free.in_order(&ground.heap.blocks);
                let unsplit = free.into_iter().filter(|id| !ground.heap.blocks[*id].is_split());
                whole.extend(unsplit.map(|id| (age(ground, id), id)));
            }
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
fn release(ground: &mut Ground<'_>, id: BlockId) -> DriverResult<()> {
    ground.driver.free(ground.heap.blocks[id].address)?;
    ground.heap.remove_malloc_segment(id);
    Ok(())
}

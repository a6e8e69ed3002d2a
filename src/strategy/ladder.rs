//! What PyTorch's allocator does when no free block fits, in its order: collect garbage, take new memory, give back
//! just enough and try again, give back everything and try again.
//!
//! Owns: the order, shared by the strategies that are PyTorch's (`malloc` of c10/cuda/CUDACachingAllocator.cpp, 2.11).

use super::{Ground, Miss, Strategy};
use crate::blocks::BlockId;
use crate::heap::Request;
use crate::rounding::segment_size;

/// The steps that differ between PyTorch's strategies.
pub(super) trait Grow: Strategy {
    /// Takes new memory for the request. The block is not in the free index.
    fn grow(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss>;

    /// Gives back unused segments that are older than the average, without waiting for the GPU.
    fn collect_garbage(&mut self, _ground: &mut Ground<'_>) -> Result<(), Miss> {
        Ok(())
    }

    /// Gives back just enough oversize segments of the request's stream. Whether it did.
    fn release_available(&mut self, _ground: &mut Ground<'_>, _request: &Request) -> Result<bool, Miss> {
        Ok(false)
    }
}

/// The lower steps: those that give back no memory but garbage.
pub(super) fn climb<S: Grow>(strategy: &mut S, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
    // Giving back waits, which no capture allows.
    if !ground.capturing() && ground.fraction_limit.is_some() && ground.config.garbage_collection_threshold > 0.0 {
        strategy.collect_garbage(ground)?;
    }
    grow_within_limit(strategy, ground, request)
}

/// The upper steps, until one finds a block.
pub(super) fn climb_to_the_end<S: Grow>(
    strategy: &mut S,
    ground: &mut Ground<'_>,
    request: &Request,
) -> Result<BlockId, Miss> {
    if ground.capturing() {
        return Err(Miss::OutOfMemory);
    }
    if strategy.release_available(ground, request)? {
        match grow_within_limit(strategy, ground, request) {
            Err(Miss::OutOfMemory) => {}
            done => return done,
        }
    }
    // As in PyTorch, what becomes free here is given back rather than searched: blocks that are split stay.
    ground.heap.counters.num_sync_all_streams += 1;
    ground.deferred.synchronize(ground.heap, ground.driver)?;
    strategy.release_cached(ground)?;
    ground.heap.counters.num_alloc_retries += 1;
    grow_within_limit(strategy, ground, request)
}

/// PyTorch counts a whole segment against the fraction, whatever an expandable one would really map. The limit in bytes
/// is for what is really taken, and checked where it is.
pub(super) fn grow_within_limit<S: Grow>(
    strategy: &mut S,
    ground: &mut Ground<'_>,
    request: &Request,
) -> Result<BlockId, Miss> {
    let segment = segment_size(request.size, ground.config.large_segment_size);
    if ground.fraction_limit.is_some_and(|limit| ground.heap.reserved().saturating_add(segment) > limit) {
        return Err(Miss::OutOfMemory);
    }
    strategy.grow(ground, request)
}

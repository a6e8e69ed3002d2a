//! Estimates of what the strategy could do with the present memory, for reports. It makes no driver call and changes
//! nothing. Where the host has no memory for the lists that it takes, joined memory counts as none, which keeps every
//! estimate on its side.

use super::choose;
use super::release::ReleasableChunks;
use crate::config::rounding::SMALL_LIMIT;
use crate::fallible::{Grown, TryCollect};
use crate::heap::{GRANULE, Heap, Request};
use crate::ids::{Class, PoolIndex};
use crate::strategy::contract::Assumption;

/// Returns the largest request that the free memory of a pool could serve, in one range or a view. With `across`,
/// memory of all other streams counts too. This is a lower bound: adjacent ranges of two pools are not counted as one,
/// and are not one while they belong to two.
pub(super) fn largest_servable(heap: &Heap, pool: PoolIndex, across: bool) -> u64 {
    let pools = pools(heap, pool, across).unwrap_or_default();
    if pool.is_small() {
        return if has_slab(heap, &pools) { SMALL_LIMIT } else { heap.largest_in(pool).min(SMALL_LIMIT) };
    }
    let whole = pools.iter().map(|pool| heap.largest_in(*pool)).max().unwrap_or_else(|| heap.largest_in(pool));
    whole.max(choose::usable(heap, &pools).unwrap_or(0))
}

/// Returns by how many bytes home must grow, at most, for a request that no free memory serves. The last resort gives
/// whole free chunks back, so that home grows in one piece instead.
pub(super) fn growth_needed(heap: &Heap, request: &Request, assumption: Assumption) -> u64 {
    let size = request.size.checked_next_multiple_of(GRANULE).unwrap_or(u64::MAX);
    // During a capture nothing is given back.
    let free = || ReleasableChunks::of(heap).map_or(0, |chunks| chunks.bytes());
    let releasable = if heap.private().capturing() { 0 } else { free() };
    let in_one_piece = size.saturating_sub(releasable);
    // New memory in a hole joins two ranges into one, of which a view can use only one end. At the end of home it does
    // not.
    let scattered = heap.pool(heap.idle()).unmapped.len() > 1;
    if request.class == Class::Small || scattered || assumption == Assumption::NoMoreViews {
        return in_one_piece;
    }
    let pools = pools(heap, request.pool, assumption == Assumption::AllStreams);
    let usable = pools.map_or(0, |pools| choose::usable(heap, &pools).unwrap_or(0));
    let missing = request.size.saturating_sub(usable);
    missing.checked_next_multiple_of(GRANULE).unwrap_or(u64::MAX).min(in_one_piece)
}

/// Returns the large pools from which a request of a pool may take memory.
fn pools(heap: &Heap, pool: PoolIndex, across: bool) -> Grown<Vec<PoolIndex>> {
    let own = pool.large();
    let others = heap.stream_pools().filter(|other| across && *other != own);
    [own, heap.idle()].into_iter().chain(others).try_to_vec()
}

/// Returns whether free memory has room for a slab.
fn has_slab(heap: &Heap, pools: &[PoolIndex]) -> bool {
    pools.iter().any(|pool| heap.largest_in(pool.small()) >= GRANULE)
        || choose::slab_anywhere(heap, pools).is_ok_and(|slab| slab.is_some())
}

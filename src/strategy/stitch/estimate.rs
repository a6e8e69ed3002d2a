//! Estimates of the requests that the strategy could serve with the present memory, for reports. An estimate makes no
//! driver call and changes no state. If the host has no memory for the needed lists, joined memory counts as 0, so that
//! every bound stays valid.

use super::Stitch;
use super::choose;
use super::grow::most_chunks;
use super::release::ReleasableChunks;
use super::split::{Splits, all_splits, splittable};
use crate::backing::{ViewPlan, usage_of_kept_views};
use crate::config::rounding::SMALL_LIMIT;
use crate::config::{Config, StreamSharing};
use crate::fallible::{Grown, TryCollect};
use crate::heap::{GRANULE, Heap, Request, ViewUsage};
use crate::ids::{BlockId, Class, PoolIndex};
use crate::strategy::estimates::{Assumption, Estimates, Present};

impl Estimates for Stitch {
    /// Returns the largest request that the free memory of a pool could serve, in one range or in a view. With
    /// `across`, memory of all other streams counts too. The result is a lower bound, since adjacent ranges of two
    /// pools count as two.
    ///
    /// If a view over all free memory would exceed the bounds on views (`max_views` and others), the result is lower
    /// still. Existing views, which might serve more than a new view, are not considered. The largest view within these
    /// bounds is searched for in steps of a granule.
    fn largest_servable(&self, heap: &Heap, config: &Config, pool: PoolIndex, across: bool) -> u64 {
        let pools = pools(heap, pool, across).unwrap_or_default();
        if pool.is_small() {
            return if has_slab(heap, &pools) { SMALL_LIMIT } else { heap.largest_in(pool).min(SMALL_LIMIT) };
        }
        let whole = pools.iter().map(|pool| heap.largest_in(*pool)).max().unwrap_or_else(|| heap.largest_in(pool));
        whole.max(largest_view(heap, config, &pools))
    }

    /// Returns the bytes of free and new memory together if a view over both is certain to be possible. Otherwise
    /// returns the bytes of one piece, made of new memory and wholly free chunks. If chunks may be split, the bytes
    /// that splits would free count too.
    fn largest_with_growth(&self, present: &Present<'_>, pool: PoolIndex, across: bool) -> u64 {
        let Present { heap, config, room, .. } = *present;
        let servable = self.largest_servable(heap, config, pool, across);
        let in_one_piece = room.saturating_add(releasable(heap));
        let joins = !pool.is_small() && !is_scattered(heap) && has_room_for_any_view(heap, config, room);
        let joined = if joins { usable(heap, pool, across).saturating_add(room) } else { 0 };
        let split = match with_splits(present, pool, across) {
            0 => 0,
            bytes => bytes.saturating_add(room),
        };
        servable.max(in_one_piece).max(joined).max(split)
    }

    /// Returns an upper bound of the bytes by which home must grow for a request that no free memory serves. The last
    /// resort gives whole free chunks back, so that home grows in one piece instead, and splits chunks.
    fn growth_needed(&self, present: &Present<'_>, request: &Request, assumption: Assumption) -> u64 {
        let heap = present.heap;
        let size = request.size.checked_next_multiple_of(GRANULE).unwrap_or(u64::MAX);
        let in_one_piece = size.saturating_sub(releasable(heap));
        if request.class == Class::Small || assumption == Assumption::NoMoreViews {
            return in_one_piece;
        }
        let across = assumption == Assumption::AllStreams;
        // A growing view takes whole chunks, which may be more than the missing bytes.
        let splits = if request.extends.is_some() { 0 } else { with_splits(present, request.pool, across) };
        let least = in_one_piece.min(size.saturating_sub(splits));
        if is_scattered(heap) {
            return least;
        }
        let missing = request.size.saturating_sub(usable(heap, request.pool, across));
        missing.checked_next_multiple_of(GRANULE).unwrap_or(u64::MAX).min(least)
    }

    fn splittable(&self, heap: &Heap) -> u64 {
        splittable(heap).unwrap_or(0)
    }
}

/// Returns the most bytes that a new view over the free memory of these pools could have within the bounds on views
/// (`max_views` and others).
fn largest_view(heap: &Heap, config: &Config, pools: &[PoolIndex]) -> u64 {
    let most = choose::usable(heap, pools).unwrap_or(0);
    if has_room_for_any_view(heap, config, 0) {
        return most;
    }
    let kept = usage_of_kept_views(heap);
    let is_within = |size: u64| {
        let spans = choose::spans_of(heap, size, pools).ok().and_then(std::result::Result::ok);
        let plan = spans.map(|spans| ViewPlan::over(heap, &spans, None));
        plan.is_some_and(|plan| plan.is_ok_and(|plan| plan.fits_beside(kept, config)))
    };
    if is_within(most) {
        return most;
    }
    // The search finds a size within the bounds on views, though not always the largest: in rare cases a larger view
    // has fewer mappings, for example.
    let (mut within, mut beyond) = (0, most.div_ceil(GRANULE));
    while within + 1 < beyond {
        let middle = within.midpoint(beyond);
        if is_within(middle * GRANULE) { within = middle } else { beyond = middle }
    }
    within * GRANULE
}

/// Returns whether the bounds on views (`max_views` and others) allow one more view, over any of the present chunks and
/// of the chunks of a growth by `room` bytes.
fn has_room_for_any_view(heap: &Heap, config: &Config, room: u64) -> bool {
    has_room_for_view_of(heap, config, room, &Splits::default(), 0)
}

/// Returns the most bytes that a view of any size could have over the memory that a pool may use.
fn usable(heap: &Heap, pool: PoolIndex, across: bool) -> u64 {
    pools(heap, pool, across).map_or(0, |pools| choose::usable(heap, &pools).unwrap_or(0))
}

/// Returns the bytes that one view could have over the free memory of a pool, without new memory, after the split of
/// all chunks for whose copies there is room. Returns 0 if no chunk may be split, or if the view might exceed the
/// bounds on views (`max_views` and others). Only whole chunks count, since a free part of a chunk can only be an end
/// of a view. So new memory adds to these bytes wherever it lies.
fn with_splits(present: &Present<'_>, pool: PoolIndex, across: bool) -> u64 {
    let Present { heap, config, splits, .. } = *present;
    if !splits || pool.is_small() || heap.private().capturing() {
        return 0;
    }
    // If streams share memory, the last resort makes the memory of all streams idle.
    let shares = heap.takes_idle(pool.large()) && (across || config.sharing != StreamSharing::Never);
    let Ok(pools) = pools(heap, pool, shares) else { return 0 };
    let usable = |id: BlockId| pools.iter().any(|pool| heap.is_open(id, *pool));
    let (Ok(whole), Ok(all)) = (choose::whole(heap, &pools), all_splits(present, usable)) else { return 0 };
    if !has_room_for_split_view(present, &all) {
        return 0;
    }
    whole + all.gain
}

/// Returns whether the bounds on views (`max_views` and others) allow one more view, over all chunks that result from
/// these splits and from growing as far as memory can grow.
fn has_room_for_split_view(present: &Present<'_>, all: &Splits) -> bool {
    let Present { heap, config, room, .. } = *present;
    // If the chunk size is set, memory that is given back returns in as many chunks. Otherwise the chunks that were
    // given back may have been larger than the new ones, so all memory held counts as taken again.
    let taken_again = if config.chunk_size.is_some() { 0 } else { heap.reserved() };
    has_room_for_view_of(heap, config, room, all, taken_again)
}

/// Returns whether the bounds on views (`max_views` and others) allow one more view over three kinds of chunks: the
/// results of these splits, the chunks of a growth by `room` bytes, and the chunks of `taken_again` bytes that are
/// given back before the growth.
fn has_room_for_view_of(heap: &Heap, config: &Config, room: u64, splits: &Splits, taken_again: u64) -> bool {
    let Some(home) = heap.home() else { return config.max_views > 0 };
    let kept = usage_of_kept_views(heap);
    let pieces =
        home.chunks().count() + splits.parts as usize + most_chunks(heap, config, room.saturating_add(taken_again));
    let with_one_more = ViewUsage {
        views: kept.views + 1,
        mappings: kept.mappings + splits.mappings as usize + pieces,
        addresses: kept.addresses.saturating_add(heap.reserved()).saturating_add(room),
    };
    with_one_more.is_within(config)
}

/// Returns the bytes of free chunks that the last resort may give back, so that home grows in one piece instead.
fn releasable(heap: &Heap) -> u64 {
    // During a capture no memory is given back.
    if heap.private().capturing() { 0 } else { ReleasableChunks::of(heap).map_or(0, |chunks| chunks.bytes()) }
}

/// Returns whether home has several places without memory. New memory in such a place joins the ranges before and after
/// it into one. A view can begin or end with this one range; of two ranges it could begin with one and end with the
/// other. New memory at the end of home joins no ranges.
fn is_scattered(heap: &Heap) -> bool {
    heap.pool(heap.idle()).unmapped.len() > 1
}

/// Returns the large pools whose memory a request of a pool may take.
fn pools(heap: &Heap, pool: PoolIndex, across: bool) -> Grown<Vec<PoolIndex>> {
    let own = pool.large();
    if heap.is_asleep(own) {
        return Ok(Vec::new());
    }
    let takes_idle = heap.takes_idle(own);
    let others = heap.stream_pools().filter(|other| takes_idle && across && *other != own);
    [own, heap.idle()].into_iter().take(if takes_idle { 2 } else { 1 }).chain(others).try_to_vec()
}

/// Returns whether free memory has room for a slab.
fn has_slab(heap: &Heap, pools: &[PoolIndex]) -> bool {
    pools.iter().any(|pool| heap.largest_in(pool.small()) >= GRANULE)
        || choose::slab_anywhere(heap, pools).is_ok_and(|slab| slab.is_some())
}

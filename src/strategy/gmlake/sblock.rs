//! Stitched blocks are found again, chosen, and dropped by least recent use.
//!
//! Owns: which pBlocks are stitched, whether an sBlock is inactive, and the bound on sBlocks. An sBlock is a view of
//! whole chunks. One block at a time uses it, from its head on.

use super::pblock::CHUNK;
use crate::backing::{StrategyContext, drop_view, usage_of_kept_views};
use crate::config::Config;
use crate::error::Result;
use crate::fallible::{TryCollect, TryPush};
use crate::heap::{Heap, Request, State, View, Window};
use crate::ids::{BlockId, PoolIndex, ViewId};
use crate::span::Span;
use std::ops::RangeInclusive;

/// The parts of free pBlocks that are to be stitched.
pub(super) struct Pieces {
    pub(super) spans: Vec<Span>,
    /// The bytes that all free pBlocks together lack.
    pub(super) missing: u64,
}

/// Returns free pBlocks for `size` bytes: the largest first, and a part of the last one.
pub(super) fn pieces(heap: &Heap, size: u64, pool: PoolIndex) -> Result<Pieces> {
    let mut spans = Vec::new();
    let mut missing = size;
    for id in heap.free_blocks(pool)?.into_iter().rev() {
        if missing == 0 {
            break;
        }
        let free = heap.block(id).span();
        let taken = free.size.min(missing);
        spans.try_push(Span::new(free.start, taken))?;
        missing -= taken;
    }
    Ok(Pieces { spans, missing })
}

/// Returns the smallest inactive sBlock of these sizes: all of its chunks are free, and of this pool.
pub(super) fn inactive(heap: &Heap, sizes: RangeInclusive<u64>, pool: PoolIndex) -> Option<ViewId> {
    heap.views().of_size(sizes).find(|id| heap.views().get(*id).is_some_and(|view| is_inactive(heap, view, pool)))
}

fn is_inactive(heap: &Heap, view: &View, pool: PoolIndex) -> bool {
    let Some(home) = heap.home().filter(|_| view.users == 0) else { return false };
    // Most chunks lie in the same free pBlock as the one before them.
    let mut free = Span::default();
    view.chunks.iter().all(|id| {
        let Some(chunk) = home.chunk(*id) else { return false };
        if !free.contains(chunk.address) {
            let block = heap.block(heap.covering(chunk.address));
            if block.state != State::Free || block.pool != pool {
                return false;
            }
            free = block.span();
        }
        true
    })
}

/// Hands out the head of an inactive sBlock.
pub(super) fn reuse(heap: &mut Heap, view: ViewId, request: &Request) -> Result<BlockId> {
    heap.reuse_view(Window { view, offset: 0 }, request.size, request.pool, None)
}

/// StitchFree: makes room for an sBlock of `more` chunks. It drops the sBlocks unused longest, among those that no
/// stream can still be using; the CPU does not wait. Returns whether there is room.
pub(super) fn stitch_free(context: &mut StrategyContext<'_>, more: u64) -> Result<bool> {
    let max = max_mappings(context.config);
    let has_room = |context: &StrategyContext<'_>| context.heap.views().mappings() as u64 + more <= max;
    if more > max || has_room(context) {
        return Ok(more <= max);
    }
    let idle = context.heap.views().iter().filter(|(_, view)| context.heap.is_done_with(view));
    let mut idle = idle.map(|(id, view)| (view.tick, id)).try_to_vec()?;
    idle.sort_unstable();
    for (_, id) in idle {
        drop_view(context, id)?;
        if has_room(context) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the bytes that an sBlock can have at most beside those that [`stitch_free`] would not drop.
pub(super) fn room(heap: &Heap, config: &Config) -> u64 {
    let kept = usage_of_kept_views(heap).mappings as u64;
    max_mappings(config).saturating_sub(kept).saturating_mul(CHUNK)
}

/// Returns how many chunks all sBlocks together may map.
fn max_mappings(config: &Config) -> u64 {
    const PER_GIB: u64 = (1 << 30) / CHUNK;
    config.auto_gc.saturating_mul(PER_GIB).min(config.max_view_mappings as u64)
}

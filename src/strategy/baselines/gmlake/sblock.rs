//! Stitched blocks (sBlocks): which one a request uses again, what a new one is made of, and which are dropped first.
//!
//! Owns: the choice of the pBlocks to stitch, the rule when an sBlock is inactive, and the dropping of sBlocks. An
//! sBlock is a view of whole chunks. One live block at a time uses an sBlock, from its start.

use crate::backing::{Miss, Served, StrategyContext, drop_view};
use crate::error::Result;
use crate::fallible::TryPush;
use crate::heap::{Heap, Request, State, View, Window};
use crate::ids::{BlockId, PoolIndex, ViewId};
use crate::span::Span;
use std::ops::RangeInclusive;

/// The bytes of sBlocks to drop at each refusal of the driver, as multiples of the request. The factors are those of
/// GMLake's released code; the last factor drops everything (CUDACachingAllocator.cpp:2611).
const DROPPED: [u64; 3] = [4, 16, u64::MAX];

/// The parts of free pBlocks that are to be stitched.
pub(super) struct Pieces {
    pub(super) spans: Vec<Span>,
    /// The bytes that are missing after all free pBlocks are taken.
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

/// Returns the smallest inactive sBlock with a size in this range. All chunks of an inactive sBlock are free and belong
/// to this pool.
pub(super) fn inactive(heap: &Heap, sizes: RangeInclusive<u64>, pool: PoolIndex) -> Option<ViewId> {
    heap.views().of_size(sizes).find(|id| heap.views().get(*id).is_some_and(|view| is_inactive(heap, view, pool)))
}

fn is_inactive(heap: &Heap, view: &View, pool: PoolIndex) -> bool {
    let Some(home) = heap.home().filter(|_| view.users == 0) else { return false };
    // Most chunks lie in the same free pBlock as the chunk before them.
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
pub(super) fn reuse(context: &mut StrategyContext<'_>, view: ViewId, request: &Request) -> Result<BlockId> {
    context.reuse_view(Window { view, offset: 0 }, request, None)
}

/// StitchFree: drops the sBlocks that were unused longest and that no stream can be using, until `bytes` bytes of
/// addresses are dropped. The CPU does not wait. Returns the bytes dropped.
fn stitch_free(context: &mut StrategyContext<'_>, bytes: u64) -> Result<u64> {
    let mut freed = 0;
    let mut chosen = Vec::new();
    for (id, view) in context.heap().views().unused().filter(|(_, view)| context.heap().is_done_with(view)) {
        if freed >= bytes {
            break;
        }
        freed += view.size;
        chosen.try_push(id)?;
    }
    chosen.into_iter().try_for_each(|id| drop_view(context, id)).map(|()| freed)
}

/// Drops sBlocks while their total exceeds `autoGC`. Called after a stitch; the new sBlock is in use, and stays.
/// sBlocks that the GPU has not passed stay too, even beyond `autoGC`.
pub(super) fn keep_within_auto_gc(context: &mut StrategyContext<'_>) {
    let most = context.config.auto_gc.saturating_mul(1 << 30);
    let excess = context.heap().views().address_space().saturating_sub(most);
    // The request has its memory, so sBlocks that could not be dropped now are dropped at a later stitch.
    if excess > 0
        && let Err(error) = stitch_free(context, excess)
    {
        tracing::warn!(%error, "stitched blocks above autoGC could not be dropped");
    }
}

/// Makes mappings for `size` bytes, including `new` bytes of new memory. If the driver refuses although the device has
/// `new` bytes, the driver may lack room for mappings. sBlocks are then dropped, and the driver is asked again.
pub(super) fn with_room_for_mappings(
    context: &mut StrategyContext<'_>,
    size: u64,
    new: u64,
    make: impl Fn(&mut StrategyContext<'_>) -> Served,
) -> Served {
    for times in DROPPED {
        let made = make(context);
        let refused = matches!(made, Err(Miss::OutOfMemory { .. })) && context.heap().views().unused().next().is_some();
        if !refused || (new > 0 && context.room() < new) {
            return made;
        }
        context.advance_epochs()?;
        if stitch_free(context, size.saturating_mul(times))? == 0 {
            return Err(Miss::OUT_OF_MEMORY);
        }
    }
    make(context)
}

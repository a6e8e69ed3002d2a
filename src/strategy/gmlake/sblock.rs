//! Stitched blocks: found again, built, and dropped by least recent use.
//!
//! Owns: which pBlocks are stitched, whether an sBlock is inactive, and the bound on sBlocks. An sBlock is a view of whole
//! chunks that one block at a time uses, from its head on.

use super::CHUNK;
use crate::blocks::{BlockId, State};
use crate::config::Config;
use crate::driver::{Call, DriverResult};
use crate::error::Error;
use crate::heap::{Heap, Request, Window};
use crate::strategy::mapping::{Mapping, Piece, Unsettled};
use crate::strategy::stitch::view;
use crate::strategy::{Ground, Miss};
use crate::views::{View, ViewId};
use std::ops::RangeInclusive;

const NO_CHUNK: Error = Error::Internal("free memory without a chunk");

/// Free pBlocks that are to be stitched.
pub(super) struct Pieces {
    /// Addresses and bytes.
    pub(super) stretches: Vec<(u64, u64)>,
    /// Bytes that all free ones together are short of.
    pub(super) missing: u64,
}

/// Free pBlocks for `size` bytes: the largest first, the last one in part.
pub(super) fn pieces(heap: &Heap, size: u64, pool: u32) -> Pieces {
    let mut stretches = Vec::new();
    let mut missing = size;
    for id in heap.pools[pool as usize].free.in_order(&heap.blocks).into_iter().rev() {
        if missing == 0 {
            break;
        }
        let taken = heap.blocks[id].size.min(missing);
        stretches.push((heap.blocks[id].address, taken));
        missing -= taken;
    }
    Pieces { stretches, missing }
}

/// The smallest inactive sBlock of these sizes: all of its chunks are free, and of this pool.
pub(super) fn inactive(heap: &Heap, sizes: RangeInclusive<u64>, pool: u32) -> Option<ViewId> {
    heap.views.of_size(sizes).find(|id| heap.views.get(*id).is_some_and(|view| is_inactive(heap, view, pool)))
}

fn is_inactive(heap: &Heap, view: &View, pool: u32) -> bool {
    let Some(home) = heap.home.as_ref().filter(|_| view.users == 0) else { return false };
    // Most chunks lie in the same free pBlock as the one before them.
    let mut free = 0..0;
    view.chunks.iter().all(|id| {
        let Some(chunk) = home.chunk(*id) else { return false };
        if !free.contains(&chunk.address) {
            let block = &heap.blocks[home.covering(&heap.blocks, chunk.address)];
            if block.state != State::Free || block.pool != pool {
                return false;
            }
            free = block.address..block.end();
        }
        true
    })
}

/// Hands out the head of an inactive sBlock.
pub(super) fn reuse(heap: &mut Heap, view: ViewId, request: &Request) -> Result<BlockId, Error> {
    heap.counters.views_reused += 1;
    heap.take_window(Window { view, offset: 0 }, request.size, request.pool)
}

/// Maps the chunks of free pBlocks one behind the other, and hands them out as one block.
pub(super) fn stitch(
    ground: &mut Ground<'_>,
    unsettled: &mut Unsettled,
    stretches: &[(u64, u64)],
    request: &Request,
) -> Result<BlockId, Miss> {
    unsettled.settle(ground)?;
    let home = ground.heap.home.as_ref().ok_or(NO_CHUNK)?;
    let (mut chunks, mut pieces) = (Vec::new(), Vec::new());
    for (address, size) in stretches {
        for at in (*address..address + size).step_by(CHUNK as usize) {
            let (id, chunk) = home.chunk_at(at).ok_or(NO_CHUNK)?;
            chunks.push(id);
            pieces.push(Piece { size: chunk.size, handle: Some(chunk.handle) });
        }
    }
    let address = ground.driver.reserve(request.size, CHUNK)?;
    ground.heap.check_answer(Call::Reserve, address, request.size, CHUNK)?;
    let mut mapping = Mapping::of_chunks(address, pieces);
    if let Err(error) = mapping.map(ground.driver) {
        unsettled.undo(ground, mapping);
        return Err(error.into());
    }
    ground.heap.counters.views_built += 1;
    ground.heap.counters.mappings += chunks.len() as u64;
    let view = ground.heap.views.add(address, request.size, chunks);
    Ok(ground.heap.take_window(Window { view, offset: 0 }, request.size, request.pool)?)
}

/// StitchFree: makes room for an sBlock of `more` chunks. Those unused longest go, of those that no stream can still be
/// using; the CPU does not wait. Whether there is room.
pub(super) fn stitch_free(ground: &mut Ground<'_>, more: u64) -> DriverResult<bool> {
    let most = most_mappings(ground.config);
    let has_room = |ground: &Ground<'_>| ground.heap.views.mappings() as u64 + more <= most;
    if more > most || has_room(ground) {
        return Ok(more <= most);
    }
    let idle = ground.heap.views.iter().filter(|(_, view)| ground.heap.is_done_with(view));
    let mut idle: Vec<_> = idle.map(|(id, view)| (view.tick, id)).collect();
    idle.sort_unstable();
    for (_, id) in idle {
        view::drop_view(ground, id)?;
        if has_room(ground) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// How many chunks all sBlocks together may map.
fn most_mappings(config: &Config) -> u64 {
    const PER_GIB: u64 = (1 << 30) / CHUNK;
    config.auto_gc.saturating_mul(PER_GIB).min(config.max_view_mappings as u64)
}

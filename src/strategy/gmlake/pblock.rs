//! Primitive blocks: created, split, given back.
//!
//! Owns: where pBlocks lie, and the driver calls for their chunks. Each allocation of chunks lies apart from the others,
//! so that it merges with none of them: what was split off it finds back to it, as in the release.

use super::CHUNK;
use crate::blocks::{Block, BlockId, State};
use crate::driver::DriverResult;
use crate::error::Error;
use crate::heap::Heap;
use crate::home::{Chunk, ChunkId};
use crate::strategy::mapping::{Mapping, Unsettled};
use crate::strategy::stitch::view;
use crate::strategy::{Ground, Miss, home};
use crate::views::ViewId;
use std::cmp::Reverse;

/// Addresses for pBlocks, by the size of the device: at worst every chunk is one, with a gap as large beside it, and what
/// was given back leaves holes.
const HOMES: u64 = 4;

const NO_CHUNK: Error = Error::Internal("free memory without a chunk");

/// A free pBlock of new chunks, or nothing has changed. It is in the free index.
pub(super) fn create(
    ground: &mut Ground<'_>,
    unsettled: &mut Unsettled,
    size: u64,
    pool: u32,
) -> Result<BlockId, Miss> {
    unsettled.settle(ground)?;
    // Of more than the device has, the driver would refuse the last chunk only.
    let limit = ground.limit.unwrap_or(u64::MAX).min(ground.driver.properties().total_memory);
    if ground.heap.reserved().saturating_add(size) > limit {
        return Err(Miss::OutOfMemory);
    }
    if ground.heap.home.is_none() {
        home::reserve(ground, HOMES)?;
    }
    let (room, address) = place(ground.heap, size).ok_or(Miss::OutOfMemory)?;
    let mut mapping = Mapping::of_new_memory(address, ground.heap.pools[pool as usize].class);
    let made = mapping.create(ground.driver, size, CHUNK).and_then(|()| mapping.map(ground.driver));
    if let Err(error) = made {
        unsettled.undo(ground, mapping);
        return Err(error.into());
    }
    ground.heap.counters.mappings += mapping.pieces.len() as u64;
    let home = ground.heap.home.as_mut().ok_or(NO_CHUNK)?;
    let mut at = address;
    for piece in mapping.pieces {
        if let Some(handle) = piece.handle {
            let chunk = Chunk { address: at, size: piece.size, handle, slab: false };
            home.add_chunk(chunk);
            home.mapped(chunk);
        }
        at += piece.size;
    }
    Ok(ground.heap.mapped(room, address, size, pool)?)
}

/// The lowest place for `size` bytes with a chunk's space on either side.
fn place(heap: &Heap, size: u64) -> Option<(BlockId, u64)> {
    let fits = |(_, id): &&(u64, BlockId)| heap.blocks[*id].size >= size.saturating_add(2 * CHUNK);
    heap.pools[heap.idle as usize].unmapped.iter().find(fits).map(|(address, id)| (*id, address + CHUNK))
}

/// Takes the first `size` bytes of a free pBlock out of the index; the rest is a free pBlock.
pub(super) fn split(heap: &mut Heap, id: BlockId, size: u64) -> Result<BlockId, Error> {
    heap.carve(id, heap.blocks[id].address, size)
}

/// Gives back free pBlocks, and the sBlocks over them, which nobody uses. Every stream has passed.
pub(super) fn give_back(ground: &mut Ground<'_>, unsettled: &mut Unsettled, ids: &[BlockId]) -> DriverResult<()> {
    let going = marked(ids.iter().flat_map(|id| chunks(ground.heap, *id)).map(|(id, _)| id));
    views_over(ground.heap, &going).into_iter().try_for_each(|view| view::drop_view(ground, view))?;
    ids.iter().try_for_each(|id| release(ground, unsettled, *id))
}

/// The pBlocks that can be given back: free, whole, and passed by every stream, as are the sBlocks over them. Those freed
/// longest ago first.
pub(super) fn releasable(heap: &Heap) -> Vec<BlockId> {
    // An sBlock in use may have lent its head alone: the chunks of its tail are free, but mapped in it.
    let in_use = heap.views.iter().filter(|(_, view)| !heap.is_done_with(view));
    let pinned = marked(in_use.flat_map(|(_, view)| view.chunks.iter().copied()));
    let is_pinned = |(id, _): &(ChunkId, Chunk)| pinned.get(id.0 as usize).copied().unwrap_or(false);
    let mut whole = Vec::new();
    for pool in heap.stream_pools() {
        let passed = heap.pools[pool as usize].passed;
        // What was freed in no epoch was never used.
        let has_passed = |id: &BlockId| heap.blocks[*id].freed_at == 0 || heap.blocks[*id].freed_at < passed;
        let free = heap.pools[pool as usize].free.in_order(&heap.blocks).into_iter();
        let free = free.filter(has_passed).filter(|id| is_whole(heap, *id));
        whole.extend(free.filter(|id| !chunks(heap, *id).any(|chunk| is_pinned(&chunk))));
    }
    whole.sort_by_key(|id| (heap.blocks[*id].freed_at, Reverse(heap.blocks[*id].address)));
    whole
}

fn marked(ids: impl Iterator<Item = ChunkId>) -> Vec<bool> {
    let mut marks = Vec::new();
    for id in ids {
        let slot = id.0 as usize;
        if marks.len() <= slot {
            marks.resize(slot + 1, false);
        }
        marks[slot] = true;
    }
    marks
}

fn views_over(heap: &Heap, going: &[bool]) -> Vec<ViewId> {
    let goes = |id: &ChunkId| going.get(id.0 as usize).copied().unwrap_or(false);
    heap.views.iter().filter(|(_, view)| view.chunks.iter().any(goes)).map(|(id, _)| id).collect()
}

/// Whether nothing was split off a pBlock: addresses without memory lie on either side.
fn is_whole(heap: &Heap, id: BlockId) -> bool {
    let Block { prev, next, .. } = heap.blocks[id];
    [prev, next].iter().all(|beside| heap.blocks[*beside].state == State::Unmapped)
}

fn chunks(heap: &Heap, id: BlockId) -> impl Iterator<Item = (ChunkId, Chunk)> + '_ {
    let Block { address, size, .. } = heap.blocks[id];
    let addresses = (address..address + size).step_by(CHUNK as usize);
    addresses.filter_map(|at| heap.home.as_ref()?.chunk_at(at))
}

/// Gives back a free pBlock that no sBlock maps and no stream uses.
pub(super) fn release(ground: &mut Ground<'_>, unsettled: &mut Unsettled, id: BlockId) -> DriverResult<()> {
    let Block { address, size, pool, .. } = ground.heap.blocks[id];
    let class = ground.heap.pools[pool as usize].class;
    let chunks: Vec<_> = chunks(ground.heap, id).collect();
    ground.driver.unmap(address, size)?;
    ground.heap.counters.mappings -= chunks.len() as u64;
    if let Some(home) = &mut ground.heap.home {
        chunks.iter().for_each(|(id, _)| home.remove_chunk(*id));
    }
    if let Err(error) = ground.heap.unmapped(id, address, size) {
        tracing::error!(%error, "a pBlock that was given back could not be noted");
    }
    let mut result = Ok(());
    for (_, chunk) in chunks {
        result = result.and(unsettled.release(ground, chunk.handle, chunk.size, class));
    }
    result
}

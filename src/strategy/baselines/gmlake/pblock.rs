//! Creates, splits and gives back primitive blocks (pBlocks).
//!
//! Owns: the places of pBlocks, and the choice of the pBlocks that can be given back. Each allocation of chunks lies
//! apart from the others. An allocation merges with no other, only with parts split off it, as in GMLake's released
//! code.

use crate::backing::{
    ChunkPlace, Miss, Served, StrategyContext, add_chunks, drop_view, grow_home, release_chunks, reserve_home,
};
use crate::error::Result;
use crate::fallible::{Grown, TryCollect, TryPush};
use crate::heap::{Block, Chunk, GRANULE, Heap, NewMemory, State};
use crate::ids::{BlockId, ChunkId, PoolIndex, ViewId};
use crate::span::Span;
use std::cmp::Reverse;

/// The size of every chunk in bytes (`granularitySize` of GMLake's released code).
pub(super) const CHUNK: u64 = GRANULE;

/// The addresses for pBlocks, as a multiple of the device's memory. At worst, each chunk is a pBlock with a gap of the
/// same size beside it, and released chunks leave holes.
const HOME_MULTIPLE: u64 = 4;

/// Creates a free pBlock of new chunks and adds it to the free index. On an error, the heap is unchanged.
pub(super) fn create(context: &mut StrategyContext<'_>, size: u64, pool: PoolIndex) -> Served {
    context.retry_rollback()?;
    // More bytes than the device has are refused here, since the driver would refuse only the last chunk.
    let limit = context.limits.lowest().unwrap_or(u64::MAX).min(context.total_memory());
    if context.heap().reserved().saturating_add(size) > limit {
        return Err(Miss::OUT_OF_MEMORY);
    }
    // Addresses of one chunk stay without memory on either side.
    let space = size.saturating_add(2 * CHUNK);
    reserve_home(context, HOME_MULTIPLE, space)?;
    let found = match place(context.heap(), space) {
        None if grow_home(context, HOME_MULTIPLE, space, true)? => place(context.heap(), space),
        found => found,
    };
    let (room, address) = found.ok_or(Miss::OUT_OF_MEMORY)?;
    let memory = NewMemory { room, span: Span::new(address, size), pool };
    add_chunks(context, ChunkPlace { memory, chunk: CHUNK, mapped: true, slab: false }, &mut Vec::new())
}

/// Returns the lowest unmapped block with `space` bytes of addresses, and the address one chunk after its start.
fn place(heap: &Heap, space: u64) -> Option<(BlockId, u64)> {
    let fits = |(_, id): &&(u64, BlockId)| heap.block(*id).size >= space;
    heap.pool(heap.idle()).unmapped.iter().find(fits).map(|(address, id)| (*id, address + CHUNK))
}

/// Splits a free pBlock after `size` bytes. Returns the first part, which is in no index. The second part is a free
/// pBlock.
pub(super) fn split(context: &mut StrategyContext<'_>, id: BlockId, size: u64) -> Result<BlockId> {
    context.carve(id, Span::new(context.heap().block(id).address, size))
}

/// Gives back free pBlocks and the unused sBlocks over them. Every stream must have passed all of these blocks.
pub(super) fn release(context: &mut StrategyContext<'_>, ids: &[BlockId]) -> Result<()> {
    let going = marked(ids.iter().flat_map(|id| chunks(context.heap(), *id)).map(|(id, _)| id))?;
    views_over(context.heap(), &going)?.into_iter().try_for_each(|view| drop_view(context, view))?;
    ids.iter().try_for_each(|id| release_chunks(context, *id, context.heap().block(*id).span()))
}

/// Returns the pBlocks that can be given back, the ones freed longest ago first. These pBlocks are free and whole, and
/// every stream has passed them and the sBlocks over them.
pub(super) fn releasable(heap: &Heap) -> Result<Vec<BlockId>> {
    // A request may use only the head of an sBlock. The chunks of its tail are then free, but still mapped in the
    // sBlock, so they cannot be given back.
    let in_use = heap.views().iter().filter(|(_, view)| !heap.is_done_with(view));
    let pinned = marked(in_use.flat_map(|(_, view)| view.chunks.iter().copied()))?;
    let is_pinned = |(id, _): &(ChunkId, Chunk)| pinned.get(id.0 as usize).copied().unwrap_or(false);
    let mut whole = Vec::new();
    for pool in heap.stream_pools() {
        let passed = heap.pool(pool).passed;
        // Memory that was freed in no epoch was never used.
        let has_passed = |id: &BlockId| heap.block(*id).freed_at == 0 || heap.block(*id).freed_at < passed;
        let free = heap.free_blocks(pool)?.into_iter().filter(has_passed).filter(|id| is_whole(heap, *id));
        for id in free.filter(|id| !chunks(heap, *id).any(|chunk| is_pinned(&chunk))) {
            whole.try_push(id)?;
        }
    }
    whole.sort_unstable_by_key(|id| (heap.block(*id).freed_at, Reverse(heap.block(*id).address)));
    Ok(whole)
}

fn marked(ids: impl Iterator<Item = ChunkId>) -> Grown<Vec<bool>> {
    let mut marks = Vec::new();
    for id in ids {
        let slot = id.0 as usize;
        if marks.len() <= slot {
            marks.try_reserve(slot + 1 - marks.len())?;
            marks.resize(slot + 1, false);
        }
        marks[slot] = true;
    }
    Ok(marks)
}

fn views_over(heap: &Heap, going: &[bool]) -> Grown<Vec<ViewId>> {
    let goes = |id: &ChunkId| going.get(id.0 as usize).copied().unwrap_or(false);
    heap.views().iter().filter(|(_, view)| view.chunks.iter().any(goes)).map(|(id, _)| id).try_to_vec()
}

/// Returns whether a pBlock is whole, so that addresses without memory lie on either side.
fn is_whole(heap: &Heap, id: BlockId) -> bool {
    let Block { prev, next, .. } = *heap.block(id);
    [prev, next].iter().all(|beside| heap.block(*beside).state == State::Unmapped)
}

fn chunks(heap: &Heap, id: BlockId) -> impl Iterator<Item = (ChunkId, Chunk)> + '_ {
    let span = heap.block(id).span();
    let addresses = (span.start..span.end()).step_by(CHUNK as usize);
    addresses.filter_map(|at| heap.home()?.chunk_at(at))
}

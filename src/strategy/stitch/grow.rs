//! Home grows by chunks, and gives chunks back.
//!
//! Owns: how large chunks are, where they are placed, and the driver calls for them.
//!
//! Large memory grows upwards from the start of home, so that it stays contiguous; slabs for small blocks grow downwards
//! from its end, so that they do not stand between.

use crate::blocks::{BlockId, State};
use crate::driver::DriverResult;
use crate::error::Error;
use crate::heap::{Heap, Request};
use crate::home::{Chunk, ChunkId, GRANULE};
use crate::stats::Class;
use crate::strategy::mapping::{Mapping, Piece, Unsettled};
use crate::strategy::{Ground, Miss};

/// The most bytes of a chunk: a request that grows home by less gets one chunk. Driver time is by the chunk, and what
/// lies free in a chunk that is partly in use serves no view: smaller chunks cost time, larger ones memory.
/// docs/design.md has the figures.
const LARGEST_CHUNK: u64 = 20 << 20;
/// A request is met by about this many chunks at most, so that no stall grows beyond some milliseconds, unless the size
/// of chunks is set.
const MOST_CHUNKS: u64 = 130;

/// Where less is missing than this part of what is reserved, home grows by this part, up to a chunk: many small requests
/// in a row would otherwise leave many small chunks. It costs 0.05% of memory at most.
const AHEAD: u64 = 2048;

/// Addresses of home, by the size of the device: room for chunks of any size beside holes.
pub(super) const HOMES: u64 = 2;

/// Grows by `missing` bytes for a request.
pub(super) fn grow(
    ground: &mut Ground<'_>,
    unsettled: &mut Unsettled,
    request: &Request,
    missing: u64,
    grown: &mut Vec<ChunkId>,
) -> Result<(), Miss> {
    let by_default = || LARGEST_CHUNK.max(request.size / MOST_CHUNKS);
    let chunk = ground.config.chunk_size.unwrap_or_else(by_default).next_multiple_of(GRANULE);
    let exact = missing.next_multiple_of(GRANULE);
    let ahead = (ground.heap.reserved() / AHEAD).min(chunk) / GRANULE * GRANULE;
    if ahead > exact {
        match grow_by(ground, unsettled, (ahead, chunk), request.pool, grown) {
            Err(Miss::OutOfMemory) => {}
            done => return done,
        }
    }
    grow_by(ground, unsettled, (exact, chunk), request.pool, grown)
}

/// Grows by bytes in chunks of a size.
fn grow_by(
    ground: &mut Ground<'_>,
    unsettled: &mut Unsettled,
    (mut missing, chunk): (u64, u64),
    pool: u32,
    grown: &mut Vec<ChunkId>,
) -> Result<(), Miss> {
    while missing > 0 {
        let room = lowest_unmapped(ground.heap, missing).ok_or(Miss::OutOfMemory)?;
        let size = ground.heap.blocks[room].size.min(missing);
        let address = ground.heap.blocks[room].address;
        add(ground, unsettled, (room, address, size), chunk, pool, grown)?;
        missing -= size;
    }
    Ok(())
}

/// Grows by one slab, for a pool of small blocks.
pub(super) fn grow_slab(
    ground: &mut Ground<'_>,
    unsettled: &mut Unsettled,
    pool: u32,
    grown: &mut Vec<ChunkId>,
) -> Result<BlockId, Miss> {
    let unmapped = &ground.heap.pools[ground.heap.idle as usize].unmapped;
    let (_, room) = *unmapped.last().ok_or(Miss::OutOfMemory)?;
    let address = ground.heap.blocks[room].end() - GRANULE;
    add(ground, unsettled, (room, address, GRANULE), GRANULE, pool, grown)
}

/// The lowest place for `size` bytes in one piece; of none, the lowest for any.
fn lowest_unmapped(heap: &Heap, size: u64) -> Option<BlockId> {
    let unmapped = &heap.pools[heap.idle as usize].unmapped;
    let fitting = unmapped.iter().find(|(_, id)| heap.blocks[*id].size >= size);
    fitting.or_else(|| unmapped.first()).map(|(_, id)| *id)
}

/// Creates chunks for a part of an unmapped block, address and bytes, or leaves nothing behind.
fn add(
    ground: &mut Ground<'_>,
    unsettled: &mut Unsettled,
    (room, address, size): (BlockId, u64, u64),
    chunk: u64,
    pool: u32,
    grown: &mut Vec<ChunkId>,
) -> Result<BlockId, Miss> {
    unsettled.settle(ground)?;
    if ground.limit.is_some_and(|limit| ground.heap.reserved().saturating_add(size) > limit) {
        return Err(Miss::OutOfMemory);
    }
    let class = ground.heap.pools[pool as usize].class;
    let mut mapping = Mapping::of_new_memory(address, class);
    if let Err(error) = mapping.create(ground.driver, size, chunk) {
        unsettled.undo(ground, mapping);
        return Err(error.into());
    }
    let home = ground.heap.home.as_mut().ok_or(Error::Internal("chunks without a home"))?;
    let slab = class == Class::Small;
    let mut at = address;
    for piece in mapping.pieces {
        if let Some(handle) = piece.handle {
            grown.push(home.add_chunk(Chunk { address: at, size: piece.size, handle, slab }));
        }
        at += piece.size;
    }
    Ok(ground.heap.mapped(room, address, size, pool)?)
}

/// Maps what is bare of a range of home, or nothing of it: chunks that only views have used so far.
pub(super) fn map_home(
    ground: &mut Ground<'_>,
    unsettled: &mut Unsettled,
    address: u64,
    size: u64,
) -> DriverResult<()> {
    if ground.heap.home.as_ref().is_none_or(|home| !home.is_bare(address, size)) {
        return Ok(());
    }
    unsettled.settle(ground)?;
    let Some(home) = &ground.heap.home else { return Ok(()) };
    let mut runs: Vec<Vec<Chunk>> = Vec::new();
    let mut at = address;
    while let Some((_, chunk)) = home.chunk_at(at).filter(|_| at < address + size) {
        at = chunk.end();
        if !home.is_bare(chunk.address, 1) {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.last().is_some_and(|last| last.end() == chunk.address) => run.push(chunk),
            _ => runs.push(vec![chunk]),
        }
    }
    let mut done = Vec::new();
    for run in runs {
        let pieces = run.iter().map(|chunk| Piece { size: chunk.size, handle: Some(chunk.handle) }).collect();
        let mut mapping = Mapping::at_home(run[0].address, pieces);
        let made = mapping.map(ground.driver);
        done.push((mapping, run));
        if let Err(error) = made {
            done.into_iter().for_each(|(mapping, _)| unsettled.undo(ground, mapping));
            return Err(error);
        }
    }
    let Some(home) = &mut ground.heap.home else { return Ok(()) };
    for chunk in done.iter().flat_map(|(_, run)| run) {
        home.mapped(*chunk);
        ground.heap.counters.mappings += 1;
    }
    Ok(())
}

/// Gives back chunks that were added for a request which cannot be met: nothing has used them.
pub(super) fn take_back(ground: &mut Ground<'_>, unsettled: &mut Unsettled, grown: &[ChunkId]) {
    // What is still mapped somewhere would not go.
    if grown.is_empty() || unsettled.settle(ground).is_err() {
        return;
    }
    for &id in grown {
        let Some(chunk) = ground.heap.home.as_ref().and_then(|home| home.chunk(id)) else { continue };
        let Some(block) = free_block_over(ground.heap, &chunk) else { continue };
        if let Err(error) = release(ground, unsettled, block, id, chunk) {
            tracing::error!(%error, address = chunk.address, "a growth could not be undone");
        }
    }
}

fn free_block_over(heap: &Heap, chunk: &Chunk) -> Option<BlockId> {
    let id = heap.home.as_ref()?.covering(&heap.blocks, chunk.address);
    let block = &heap.blocks[id];
    (block.state == State::Free && block.end() >= chunk.end()).then_some(id)
}

/// Unmaps a chunk that lies in a free block, and releases its memory.
pub(super) fn release(
    ground: &mut Ground<'_>,
    unsettled: &mut Unsettled,
    block: BlockId,
    id: ChunkId,
    chunk: Chunk,
) -> DriverResult<()> {
    if ground.heap.home.as_ref().is_some_and(|home| !home.is_bare(chunk.address, 1)) {
        ground.driver.unmap(chunk.address, chunk.size)?;
        ground.heap.counters.mappings -= 1;
    }
    let class = ground.heap.pools[ground.heap.blocks[block].pool as usize].class;
    if let Some(home) = &mut ground.heap.home {
        home.remove_chunk(id);
    }
    if let Err(error) = ground.heap.unmapped(block, chunk.address, chunk.size) {
        tracing::error!(%error, "a chunk that was given back could not be noted");
    }
    unsettled.release(ground, chunk.handle, chunk.size, class)
}

//! Home grows by chunks, and gives chunks back.
//!
//! Owns: how large chunks are, where they are placed, and the driver calls for them.
//!
//! Large memory grows upwards from the start of home, so that it stays contiguous; slabs for small blocks grow downwards
//! from its end, so that they do not stand between.

use super::view;
use crate::blocks::{BlockId, State};
use crate::driver::{Call, DriverResult};
use crate::error::Error;
use crate::heap::{Heap, Request};
use crate::home::{Chunk, ChunkId, GRANULE};
use crate::strategy::mapping::{Mapping, Unsettled};
use crate::strategy::{Ground, Miss};

/// Bounds of a chunk, in bytes; between them it is half the request that grows home. Driver time is by the chunk, and
/// what lies free in a chunk that is partly in use serves no view: smaller chunks cost time, larger ones memory.
/// docs/design.md has the figures.
const SMALLEST_CHUNK: u64 = 4 << 20;
const LARGEST_CHUNK: u64 = 20 << 20;
/// A request is met by about this many chunks at most, so that no stall grows beyond some milliseconds.
const MOST_CHUNKS: u64 = 130;

/// The most addresses of home, in bytes (64 TiB): no driver reserves more at once.
const MOST_HOME: u64 = 64 << 40;

/// Reserves home: twice the device, so that there is room for chunks of any size beside holes.
pub(super) fn reserve_home(ground: &mut Ground<'_>) -> Result<(), Miss> {
    let total = ground.driver.properties().total_memory;
    let size = total.saturating_mul(2).clamp(GRANULE, MOST_HOME).next_multiple_of(64 * GRANULE);
    let address = ground.driver.reserve(size, 0)?;
    ground.heap.check_answer(Call::Reserve, address, size, GRANULE)?;
    if let Err(error) = ground.heap.add_home(address, size) {
        ground.driver.address_free(address, size)?;
        return Err(error.into());
    }
    Ok(())
}

/// Grows by `missing` bytes for a request.
pub(super) fn grow(
    ground: &mut Ground<'_>,
    unsettled: &mut Unsettled,
    request: &Request,
    missing: u64,
) -> Result<(), Miss> {
    let chunk = (request.size / 2).clamp(SMALLEST_CHUNK, LARGEST_CHUNK).max(request.size / MOST_CHUNKS);
    let chunk = chunk.next_multiple_of(GRANULE);
    let mut missing = missing.next_multiple_of(GRANULE);
    while missing > 0 {
        let room = lowest_unmapped(ground.heap, missing).ok_or(Miss::OutOfMemory)?;
        let size = ground.heap.blocks[room].size.min(missing);
        let address = ground.heap.blocks[room].address;
        add(ground, unsettled, (room, address, size), chunk, request.pool)?;
        missing -= size;
    }
    Ok(())
}

/// Grows by one slab, for a pool of small blocks.
pub(super) fn grow_slab(ground: &mut Ground<'_>, unsettled: &mut Unsettled, pool: u32) -> Result<BlockId, Miss> {
    let unmapped = &ground.heap.pools[ground.heap.idle as usize].unmapped;
    let (_, room) = *unmapped.last().ok_or(Miss::OutOfMemory)?;
    let address = ground.heap.blocks[room].end() - GRANULE;
    let id = add(ground, unsettled, (room, address, GRANULE), GRANULE, pool)?;
    if let Some(home) = &mut ground.heap.home {
        home.slabs_reach(address);
    }
    Ok(id)
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
) -> Result<BlockId, Miss> {
    unsettled.settle(ground)?;
    if ground.limit.is_some_and(|limit| ground.heap.reserved().saturating_add(size) > limit) {
        return Err(Miss::OutOfMemory);
    }
    let class = ground.heap.pools[pool as usize].class;
    let mut mapping = Mapping::of_new_memory(address, class);
    let made = mapping.create(ground.driver, size, chunk).and_then(|()| mapping.map(ground.driver));
    if let Err(error) = made {
        unsettled.undo(ground, mapping);
        return Err(error.into());
    }
    ground.heap.counters.mappings += mapping.pieces.len() as u64;
    let home = ground.heap.home.as_mut().ok_or(Error::Internal("chunks without a home"))?;
    let mut at = address;
    for piece in mapping.pieces {
        if let Some(handle) = piece.handle {
            home.add_chunk(Chunk { address: at, size: piece.size, handle });
        }
        at += piece.size;
    }
    Ok(ground.heap.mapped(room, address, size, pool)?)
}

/// The CPU waits for every stream: neither unmap nor release waits for the GPU.
pub(super) fn wait_for_all(ground: &mut Ground<'_>) -> DriverResult<()> {
    let streams: Vec<_> = ground.heap.stream_pools().map(|pool| ground.heap.pools[pool as usize].stream).collect();
    streams.into_iter().try_for_each(|stream| ground.driver.stream_synchronize(stream))
}

/// Gives back every chunk of which every byte is free, and home itself once it is empty. Every stream has passed.
pub(super) fn release_free_chunks(ground: &mut Ground<'_>, unsettled: &mut Unsettled) -> DriverResult<()> {
    ground.heap.make_all_idle();
    view::finish_drops(ground)?;
    let chunks: Vec<_> = ground.heap.home.iter().flat_map(|home| home.chunks()).collect();
    for (id, chunk) in chunks {
        let Some(block) = free_block_over(ground.heap, &chunk) else { continue };
        if view::drop_over(ground, id)? {
            release(ground, unsettled, block, id, chunk)?;
        }
    }
    let Some(home) = &ground.heap.home else { return Ok(()) };
    let (address, size, head) = (home.address, home.size, ground.heap.head_of(home.segment));
    if ground.heap.blocks[head].state == State::Unmapped && !ground.heap.blocks[head].is_split() {
        ground.driver.address_free(address, size)?;
        ground.heap.remove_expandable_segment(head);
        ground.heap.home = None;
    }
    Ok(())
}

fn free_block_over(heap: &Heap, chunk: &Chunk) -> Option<BlockId> {
    let id = heap.home.as_ref()?.covering(&heap.blocks, chunk.address);
    let block = &heap.blocks[id];
    (block.state == State::Free && block.end() >= chunk.end()).then_some(id)
}

/// Unmaps a chunk that lies in a free block, and releases its memory.
fn release(
    ground: &mut Ground<'_>,
    unsettled: &mut Unsettled,
    block: BlockId,
    id: ChunkId,
    chunk: Chunk,
) -> DriverResult<()> {
    ground.driver.unmap(chunk.address, chunk.size)?;
    ground.heap.counters.mappings -= 1;
    let class = ground.heap.pools[ground.heap.blocks[block].pool as usize].class;
    if let Some(home) = &mut ground.heap.home {
        home.remove_chunk(id);
    }
    if let Err(error) = ground.heap.unmapped(block, chunk.address, chunk.size) {
        tracing::error!(%error, "a chunk that was given back could not be noted");
    }
    unsettled.release(ground, chunk.handle, chunk.size, class)
}

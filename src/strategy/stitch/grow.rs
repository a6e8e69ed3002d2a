//! The growth of home by chunks.
//!
//! Owns: the sizes of chunks and their places. `backing/chunks.rs` makes the calls.
//!
//! Large memory grows upwards, from the start of home or from the place where its stream began, so that it stays
//! contiguous. Slabs for small blocks grow downwards from the end of home, so that they do not lie between large
//! chunks.

use crate::backing::{
    ChunkPlace, InTurn, Miss, MissResult, Served, StrategyContext, add_chunks, grow_home, release_chunks,
};
use crate::config::Config;
use crate::heap::{GRANULE, Heap, NewMemory, Request, State};
use crate::ids::{BlockId, ChunkId, PoolIndex};
use crate::span::Span;

/// The addresses of home, as a multiple of the device's memory, which leaves room for chunks of any size beside small
/// gaps between chunks.
pub(super) const HOME_MULTIPLE: u64 = 2;

/// The most bytes of a chunk. A request that grows home by less gets one chunk. Each chunk costs driver time, and free
/// bytes inside a chunk that is partly in use serve no view. So smaller chunks cost time, and larger chunks cost
/// memory. docs/decisions/0013-chunk-size-rule.md has the figures.
pub(super) const LARGEST_CHUNK: u64 = 20 << 20;
/// About the most chunks by which home grows for one request, so that no stall exceeds a few milliseconds. The limit
/// does not apply if the chunk size is set.
const MAX_CHUNKS: u64 = 130;

/// If fewer bytes are missing than this part (1/n) of the reserved bytes, home grows by this part, up to a chunk.
/// Otherwise many small requests in a row would leave many small chunks. The cost is at most 0.05% of memory.
const AHEAD: u64 = 2048;

/// A planned growth of home: its bytes, its chunks, and its pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    pool: PoolIndex,
    /// The most bytes of a chunk.
    chunk: u64,
    /// The missing bytes, in whole granules.
    exact: u64,
    /// The bytes by which home grows if `exact` is less, so that small requests in a row share a chunk.
    ahead: u64,
    /// The bytes of the request.
    request: u64,
}

impl Growth {
    /// Plans a growth by `missing` bytes for a request.
    pub(super) fn new(context: &StrategyContext<'_>, request: &Request, missing: u64) -> Self {
        let chunk = largest_chunk(context.config, request.size);
        let exact = missing.next_multiple_of(GRANULE);
        // A request that extends a view takes whole chunks, and has its own rule for memory taken ahead.
        let ahead = if request.extends.is_some() { 0 } else { context.heap().reserved() / AHEAD };
        let ahead = ahead.min(chunk) / GRANULE * GRANULE;
        Self { pool: request.pool, chunk, exact, ahead, request: request.size }
    }

    /// Returns the most bytes by which home grows.
    pub(super) fn bytes(&self) -> u64 {
        self.exact.max(self.ahead)
    }

    /// Grows home by `ahead` bytes if possible, else by `exact`. Adds new chunks to `added`, even if not all chunks
    /// could be had.
    pub(super) fn run(self, context: &mut StrategyContext<'_>, added: &mut Vec<ChunkId>) -> MissResult<()> {
        if self.ahead <= self.exact {
            return self.grow_by(context, self.exact, added);
        }
        self.grow_by(context, self.ahead, added).or_try(|| self.grow_by(context, self.exact, added))
    }

    fn grow_by(self, context: &mut StrategyContext<'_>, mut missing: u64, added: &mut Vec<ChunkId>) -> MissResult<()> {
        let Self { pool, chunk, .. } = self;
        while missing > 0 {
            let unshared = context.shares_nothing();
            let place = |heap: &Heap| if unshared { place_of(heap, pool, missing) } else { lowest(heap, missing) };
            let mut found = place(context.heap());
            if found.is_none_or(|(_, span)| span.size < missing) && self.widens(context, missing)? {
                found = place(context.heap());
            }
            let (room, span) = found.ok_or(Miss::OUT_OF_MEMORY)?;
            let memory = NewMemory { room, span, pool };
            add_chunks(context, ChunkPlace { memory, chunk, mapped: false, slab: false }, added)?;
            missing -= span.size;
        }
        Ok(())
    }

    /// Gives home one more range of addresses if no gap (addresses without memory) has room for the missing bytes. If
    /// all gaps together have room, a view joins memory in the gaps instead, unless the whole request is missing: the
    /// view would take as many addresses as a new range.
    fn widens(&self, context: &mut StrategyContext<'_>, missing: u64) -> MissResult<bool> {
        let gaps = &context.heap().pool(context.heap().idle()).unmapped;
        let suffices = gaps.iter().map(|(_, id)| context.heap().block(*id).size).sum::<u64>() >= missing;
        if suffices && missing < self.request {
            return Ok(false);
        }
        // If the memory of a whole request is missing, one gap must have room for it: where no further view is allowed
        // (`max_views`), only memory in one piece serves the request.
        let times = if missing < self.request { HOME_MULTIPLE } else { 2 * HOME_MULTIPLE };
        grow_home(context, times, missing, !suffices)
    }
}

/// Returns the most bytes of a chunk for a request of `size` bytes.
fn largest_chunk(config: &Config, size: u64) -> u64 {
    config.chunk_size.unwrap_or(LARGEST_CHUNK.max(size / MAX_CHUNKS)).next_multiple_of(GRANULE)
}

/// Returns the most chunks by which home could grow with `bytes` bytes: chunks of the size for the smallest request,
/// and one more for each gap (addresses without memory).
pub(super) fn most_chunks(heap: &Heap, config: &Config, bytes: u64) -> usize {
    let chunk = largest_chunk(config, 0).max(GRANULE);
    bytes.div_ceil(chunk) as usize + heap.pool(heap.idle()).unmapped.len()
}

/// Grows home by one slab, for a pool of small blocks. Returns the free block that contains the slab.
pub(super) fn grow_slab(context: &mut StrategyContext<'_>, pool: PoolIndex, added: &mut Vec<ChunkId>) -> Served {
    let last = |heap: &Heap| heap.pool(heap.idle()).unmapped.last().map(|(_, room)| *room);
    let room = match last(context.heap()) {
        None if grow_home(context, HOME_MULTIPLE, GRANULE, true)? => last(context.heap()),
        room => room,
    };
    let room = room.ok_or(Miss::OUT_OF_MEMORY)?;
    let span = Span::new(context.heap().block(room).end() - GRANULE, GRANULE);
    let memory = NewMemory { room, span, pool };
    add_chunks(context, ChunkPlace { memory, chunk: GRANULE, mapped: false, slab: true }, added)
}

/// Returns where home grows by `size` bytes for a pool while streams share no memory: directly after memory of the
/// pool. Otherwise streams that grow in turns would get small pieces between pieces of other streams, and every large
/// request would need several pieces. The first memory of a stream lies directly after idle memory, which belongs to no
/// stream. If no idle memory has enough room after it, the first memory lies in the middle of the largest gap
/// (addresses without memory), so that each stream has room to grow after its memory.
fn place_of(heap: &Heap, pool: PoolIndex, size: u64) -> Option<(BlockId, Span)> {
    let gaps = || heap.pool(heap.idle()).unmapped.iter().map(|(_, id)| *id);
    let fits = |id: &BlockId| heap.block(*id).size >= size;
    let before = |id: &BlockId| heap.block(*id).prev;
    // The block before a gap may lie in a slab, and then belongs to its stream's small pool. So the large pools of the
    // streams are compared.
    let own = |id: &BlockId| before(id).is_none() || heap.block(before(id)).pool.large() == pool;
    let nobodys = |id: &BlockId| heap.block(before(id)).pool == heap.idle();
    let behind = gaps().find(|id| fits(id) && own(id)).or_else(|| gaps().find(|id| fits(id) && nobodys(id)));
    if let Some(id) = behind {
        return Some((id, Span::new(heap.block(id).address, size)));
    }
    let widest = gaps().max_by_key(|id| heap.block(*id).size)?;
    let span = heap.block(widest).span();
    let half = span.size / 2 / GRANULE * GRANULE;
    if half < size { lowest(heap, size) } else { Some((widest, Span::new(span.start + half, size))) }
}

/// Returns the lowest addresses of home without memory that have room for `size` bytes in one piece; if there are none,
/// the lowest addresses without memory.
fn lowest(heap: &Heap, size: u64) -> Option<(BlockId, Span)> {
    let unmapped = &heap.pool(heap.idle()).unmapped;
    let fitting = unmapped.iter().find(|(_, id)| heap.block(*id).size >= size);
    let (_, id) = *fitting.or_else(|| unmapped.first())?;
    let free = heap.block(id).span();
    Some((id, Span::new(free.start, free.size.min(size))))
}

/// Gives back chunks that were added for a request which then failed. No work has used them.
pub(super) fn release_added(context: &mut StrategyContext<'_>, added: &[ChunkId]) {
    // A chunk that an earlier failed call has left mapped elsewhere could not be released, so such calls are undone
    // first.
    if added.is_empty() || context.retry_rollback().is_err() {
        return;
    }
    for &id in added {
        let Some(chunk) = context.heap().home().and_then(|home| home.chunk(id)) else { continue };
        let free =
            context.heap().block_around(chunk.span()).filter(|id| context.heap().block(*id).state == State::Free);
        let Some(block) = free else { continue };
        if let Err(error) = release_chunks(context, block, chunk.span()) {
            tracing::error!(%error, address = chunk.address, "a growth could not be undone");
        }
    }
}

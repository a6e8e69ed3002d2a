//! Chunks of physical memory: how they are created, mapped at home, and released.
//!
//! Owns: the driver calls for chunks. The strategy chooses their sizes and places, and which chunks are released.

use super::context::{Served, StrategyContext};
use super::mapping::{Mapping, Piece};
use crate::error::Error;
use crate::fallible::{Grown, TryCollect, TryPush};
use crate::heap::{Chunk, ChunkMap, NewMemory};
use crate::ids::{BlockId, ChunkId};
use crate::limits::Increase;
use crate::span::Span;

/// The place and the use of new chunks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkPlace {
    pub(crate) memory: NewMemory,
    /// The largest size of a chunk, in bytes.
    pub(crate) chunk: u64,
    /// Whether the chunks are mapped at home at once. Otherwise the chunks are bare until a block at home needs them.
    pub(crate) mapped: bool,
    /// Whether the chunks are slabs for small blocks.
    pub(crate) slab: bool,
}

/// Creates chunks for a part of home without memory, or changes nothing. Returns the free block that holds the chunks,
/// and adds their ids to `added`.
pub(crate) fn add_chunks(context: &mut StrategyContext<'_>, place: ChunkPlace, added: &mut Vec<ChunkId>) -> Served {
    let ChunkPlace { memory, chunk, mapped, slab } = place;
    let span = memory.span;
    context.retry_rollback()?;
    context.require(Increase::of(span.size))?;
    // Room for the growth, and for undoing the growth if the request fails.
    let mut slots = context.heap.reserve_parts(memory.room, 2)?;
    let mut mapping = Mapping::of_new_memory(span.start, memory.pool.class(), span.size, chunk)?;
    let count = mapping.pieces.capacity();
    context.rollback.reserve(1)?;
    context.rollback.reserve_handles(count)?;
    context.heap.reserve_chunks(count)?;
    added.try_reserve(count)?;
    let created = mapping.create(context.driver, span.size, chunk);
    let made = created.and_then(|()| if mapped { mapping.map(context.driver) } else { Ok(()) });
    if let Err(error) = made {
        context.rollback.undo(context.heap, context.driver, mapping);
        return Err(error.into());
    }
    let mut at = span.start;
    for piece in mapping.pieces {
        if let Some(handle) = piece.handle {
            let chunk =
                Chunk { address: at, size: piece.size, handle, slab, pinned: false, asleep: false, spilled: false };
            added.push(context.heap.add_chunk(chunk)?);
            if mapped {
                context.heap.chunk_mapped(chunk);
            }
        }
        at += piece.size;
    }
    Ok(context.heap.mapped(memory, &mut slots))
}

/// Maps all bare chunks of a range of home at their places, or none of them. Only views have used these chunks so far.
pub(crate) fn map_home(context: &mut StrategyContext<'_>, span: Span) -> Result<(), Error> {
    if context.heap.home().is_none_or(|home| !home.is_bare(span.start, span.size)) {
        return Ok(());
    }
    context.retry_rollback()?;
    let Some(home) = context.heap.home() else { return Ok(()) };
    let mut runs = bare_runs(home, span)?;
    context.rollback.reserve(runs.len())?;
    for at in 0..runs.len() {
        if let Err(error) = runs[at].0.map(context.driver) {
            for (mapping, _) in runs.into_iter().take(at + 1) {
                context.rollback.undo(context.heap, context.driver, mapping);
            }
            return Err(error.into());
        }
    }
    for chunk in runs.iter().flat_map(|(_, run)| run) {
        context.heap.chunk_mapped(*chunk);
    }
    Ok(())
}

/// Returns the bare chunks of a range of home in runs of neighbours. Each run comes with the mapping that is to be
/// made.
fn bare_runs(home: &ChunkMap, span: Span) -> Grown<Vec<(Mapping, Vec<Chunk>)>> {
    let mut runs: Vec<(Mapping, Vec<Chunk>)> = Vec::new();
    let mut at = span.start;
    while let Some((_, chunk)) = home.chunk_at(at).filter(|_| at < span.end()) {
        at = chunk.end();
        if !home.is_bare(chunk.address, 1) {
            continue;
        }
        let piece = Piece { size: chunk.size, handle: Some(chunk.handle) };
        match runs.last_mut() {
            Some((mapping, run)) if run.last().is_some_and(|last| last.end() == chunk.address) => {
                mapping.pieces.try_push(piece)?;
                run.try_push(chunk)?;
            }
            _ => {
                let mapping = Mapping::at_home(chunk.address, [piece].into_iter().try_to_vec()?);
                runs.try_push((mapping, [chunk].into_iter().try_to_vec()?))?;
            }
        }
    }
    Ok(runs)
}

/// Releases the chunks of a span inside a free block. No stream uses the chunks, and no view maps them. The chunks are
/// either all mapped at home or all bare.
pub(crate) fn release_chunks(context: &mut StrategyContext<'_>, block: BlockId, span: Span) -> Result<(), Error> {
    let Some(home) = context.heap.home() else { return Ok(()) };
    let mapped = !home.is_bare(span.start, span.size);
    context.rollback.reserve_handles(chunks_in(home, span).count())?;
    let class = context.heap.block(block).pool.class();
    let mut slots = context.heap.reserve_parts(block, 1)?;
    if mapped {
        context.driver.unmap(span.start, span.size)?;
    }
    let (mut result, mut kept) = (Ok(()), 0);
    for chunk in context.heap.home().into_iter().flat_map(|home| chunks_in(home, span)) {
        let released = context.rollback.release(context.driver, (chunk.handle, chunk.size), class);
        kept += if released.is_err() { chunk.size } else { 0 };
        result = result.and(released);
    }
    context.heap.remove_chunks(block, span, &mut slots);
    context.heap.pending_rollback(class, kept, 0);
    Ok(result?)
}

/// Returns the chunks of a range of home. The range holds chunks only.
fn chunks_in(home: &ChunkMap, span: Span) -> impl Iterator<Item = Chunk> + '_ {
    let chunk_at = move |at: u64| home.chunk_at(at).map(|(_, chunk)| chunk).filter(|_| at < span.end());
    std::iter::successors(chunk_at(span.start), move |chunk| chunk_at(chunk.end()))
}

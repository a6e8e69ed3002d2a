//! Chunks of physical memory are created, mapped at home, and released.
//!
//! Owns: the driver calls for chunks. The strategy chooses how large they are, where they are placed and which of them
//! go.

use super::context::{Miss, StrategyContext};
use super::mapping::{Mapping, Piece};
use crate::config::Increase;
use crate::driver::DriverResult;
use crate::error::Error;
use crate::heap::{Chunk, ChunkMap, NewMemory};
use crate::ids::{BlockId, ChunkId, Handle};
use crate::span::Span;

/// Where new chunks lie, and how they are used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkPlace {
    pub(crate) memory: NewMemory,
    /// The most bytes of a chunk.
    pub(crate) chunk: u64,
    /// Whether the chunks are mapped at home at once. Otherwise they are bare until home needs them.
    pub(crate) mapped: bool,
    /// Whether the chunks are slabs for small blocks.
    pub(crate) slab: bool,
}

/// Creates chunks for a part of home without memory, or changes nothing. Returns the free block that they are part of,
/// and adds their ids to `added`.
pub(crate) fn add_chunks(
    context: &mut StrategyContext<'_>,
    place: ChunkPlace,
    added: &mut Vec<ChunkId>,
) -> Result<BlockId, Miss> {
    let ChunkPlace { memory, chunk, mapped, slab } = place;
    let span = memory.span;
    context.retry_rollback()?;
    if !context.allows(Increase::of(span.size)) {
        return Err(Miss::OUT_OF_MEMORY);
    }
    let mut slots = context.heap.reserve_slots(2)?;
    let mut mapping = Mapping::of_new_memory(span.start, memory.pool.class());
    let created = mapping.create(context.driver, span.size, chunk);
    let made = created.and_then(|()| if mapped { mapping.map(context.driver) } else { Ok(()) });
    if let Err(error) = made {
        context.rollback.undo(context.heap, context.driver, mapping);
        return Err(error.into());
    }
    let mut at = span.start;
    for piece in mapping.pieces {
        if let Some(handle) = piece.handle {
            let chunk = Chunk { address: at, size: piece.size, handle, slab };
            added.push(context.heap.add_chunk(chunk)?);
            if mapped {
                context.heap.chunk_mapped(chunk);
            }
        }
        at += piece.size;
    }
    Ok(context.heap.mapped(memory, &mut slots))
}

/// Maps all bare chunks of a range of home, which only views have used so far, or none of them.
pub(crate) fn map_home(context: &mut StrategyContext<'_>, span: Span) -> DriverResult<()> {
    if context.heap.home().is_none_or(|home| !home.is_bare(span.start, span.size)) {
        return Ok(());
    }
    context.retry_rollback()?;
    let Some(home) = context.heap.home() else { return Ok(()) };
    let mut done = Vec::new();
    for run in bare_runs(home, span) {
        let pieces = run.iter().map(|chunk| Piece { size: chunk.size, handle: Some(chunk.handle) }).collect();
        let mut mapping = Mapping::at_home(run[0].address, pieces);
        let made = mapping.map(context.driver);
        done.push((mapping, run));
        if let Err(error) = made {
            for (mapping, _) in done {
                context.rollback.undo(context.heap, context.driver, mapping);
            }
            return Err(error);
        }
    }
    for chunk in done.iter().flat_map(|(_, run)| run) {
        context.heap.chunk_mapped(*chunk);
    }
    Ok(())
}

/// Returns the bare chunks of a range of home, neighbours together.
fn bare_runs(home: &ChunkMap, span: Span) -> Vec<Vec<Chunk>> {
    let mut runs: Vec<Vec<Chunk>> = Vec::new();
    let mut at = span.start;
    while let Some((_, chunk)) = home.chunk_at(at).filter(|_| at < span.end()) {
        at = chunk.end();
        if !home.is_bare(chunk.address, 1) {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.last().is_some_and(|last| last.end() == chunk.address) => run.push(chunk),
            _ => runs.push(vec![chunk]),
        }
    }
    runs
}

/// Releases the chunks of a span inside a free block. No stream uses them and no view maps them, and they are either
/// all mapped at home or all bare.
pub(crate) fn release_chunks(context: &mut StrategyContext<'_>, block: BlockId, span: Span) -> Result<(), Error> {
    let Some(home) = context.heap.home() else { return Ok(()) };
    let mapped = !home.is_bare(span.start, span.size);
    let (mut memory, mut at): (Vec<(Handle, u64)>, u64) = (Vec::new(), span.start);
    while let Some((_, chunk)) = home.chunk_at(at).filter(|_| at < span.end()) {
        memory.push((chunk.handle, chunk.size));
        at = chunk.end();
    }
    let class = context.heap.block(block).pool.class();
    let mut slots = context.heap.reserve_slots(2)?;
    if mapped {
        context.driver.unmap(span.start, span.size)?;
    }
    context.heap.remove_chunks(block, span, &mut slots);
    let mut result = Ok(());
    for memory in memory {
        result = result.and(context.rollback.release(context.heap, context.driver, memory, class));
    }
    Ok(result?)
}

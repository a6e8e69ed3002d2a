//! The invariants of primitive blocks (pBlocks) and stitched blocks (sBlocks), in addition to those of every heap.

use super::pblock::CHUNK;
use crate::heap::{Heap, Kind, State, View};

/// Checks all pBlocks and sBlocks, for tests and the `paranoid` feature.
pub(crate) fn check(heap: &Heap) -> Result<(), String> {
    for (id, block) in heap.blocks().filter(|(_, block)| block.kind == Kind::Home) {
        if !block.address.is_multiple_of(CHUNK) || !block.size.is_multiple_of(CHUNK) {
            return Err(format!("pBlock {id:?} is not of whole chunks: {block:?}"));
        }
        if block.state != State::Unmapped && (block.pool.is_small() || block.pool == heap.idle()) {
            return Err(format!("pBlock {id:?} is of no stream's large pool: {block:?}"));
        }
    }
    let mut chunks = 0;
    for (id, chunk) in heap.home().into_iter().flat_map(|home| home.chunks()) {
        if chunk.size != CHUNK || heap.home().is_some_and(|home| home.is_bare(chunk.address, 1)) {
            return Err(format!("chunk {id:?} is not uniform, or not mapped where it lies: {chunk:?}"));
        }
        chunks += 1;
    }
    for (id, view) in heap.views().iter() {
        if let Some(broken) = broken(heap, view) {
            return Err(format!("sBlock {id:?} {broken}: {} bytes at {:#x}", view.size, view.address));
        }
    }
    let guarded = heap.blocks().filter(|(_, block)| block.kind == Kind::Guarded && block.state != State::Slack).count();
    let mappings = chunks + (guarded + heap.views().mappings()) as u64;
    match heap.counters().mappings {
        counted if counted == mappings => Ok(()),
        counted => Err(format!("{mappings} mappings found, {counted} counted")),
    }
}

/// Returns the rule that an sBlock breaks, if any.
fn broken(heap: &Heap, view: &View) -> Option<&'static str> {
    if view.chunks.is_empty() {
        // A view without mappings has only addresses, which are yet to be given back.
        return (view.users > 0).then_some("is used but maps nothing");
    }
    let mut chunks = view.chunks.clone();
    chunks.sort_unstable();
    chunks.dedup();
    if chunks.len() as u64 * CHUNK != view.size {
        return Some("maps a chunk twice, or not its size");
    }
    if !chunks.iter().all(|id| heap.home().is_some_and(|home| home.chunk(*id).is_some())) {
        return Some("maps a chunk that is gone");
    }
    (view.users > 1).then_some("serves two blocks")
}

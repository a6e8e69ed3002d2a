//! Chunks go back to the driver: as many as are wanted, and hardly more.
//!
//! Owns: which chunks may go, and in which order they are preferred. The calls for one chunk are `grow.rs`'s, those for
//! the views over it `view.rs`'s.

use super::{grow, view};
use crate::blocks::{Block, BlockId, State};
use crate::driver::DriverResult;
use crate::error::{Error, Result};
use crate::heap::Heap;
use crate::home::{Chunk, ChunkId};
use crate::strategy::Ground;
use crate::strategy::enough::just_enough;
use crate::strategy::mapping::Unsettled;
use crate::views::ViewId;
use rustc_hash::FxHashMap;

/// Chunks of which every byte is free and passed by every stream: the preferred first.
pub(super) struct Spare(Vec<(ChunkId, Chunk)>);

/// The views over a chunk.
#[derive(Default)]
struct Over {
    /// When one of them was used last.
    tick: u64,
    /// Whether the GPU may still use one of them for what was freed.
    busy: bool,
}

impl Spare {
    /// The chunks that may go. Those without views come first, then those whose views lie unused longest; among them those
    /// freed longest ago, and last those nearest to the growing edge, so that home stays compact.
    pub(super) fn of(heap: &Heap) -> Self {
        let Some(home) = &heap.home else { return Self(Vec::new()) };
        let mut over: FxHashMap<ChunkId, Over> = FxHashMap::default();
        for (_, view) in heap.views.iter() {
            let busy = !heap.has_passed(view);
            for chunk in &view.chunks {
                let over = over.entry(*chunk).or_default();
                over.busy |= busy;
                // Of a chunk without views it is 0.
                over.tick = over.tick.max(view.tick + 1);
            }
        }
        let mut spare = Vec::new();
        for (id, chunk) in home.chunks() {
            let over = over.remove(&id).unwrap_or_default();
            let Some(freed_at) = freed_at(heap, &chunk).filter(|_| !over.busy) else { continue };
            // Slabs grow downwards from the end of home.
            let from_edge = if chunk.slab { chunk.address } else { home.address + home.size - chunk.end() };
            spare.push(((over.tick, freed_at, from_edge), (id, chunk)));
        }
        spare.sort_by_key(|(order, _)| *order);
        Self(spare.into_iter().map(|(_, chunk)| chunk).collect())
    }

    /// Only those of which some byte lies in a block that the predicate is true for.
    pub(super) fn with(mut self, heap: &Heap, mut wanted: impl FnMut(BlockId) -> bool) -> Self {
        self.0.retain(|(_, chunk)| blocks_over(heap, chunk).any(&mut wanted));
        self
    }

    /// Bytes of all together.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|(_, chunk)| chunk.size).sum()
    }

    /// Gives back at least `bytes` of them, or all.
    pub(super) fn give_back(self, ground: &mut Ground<'_>, unsettled: &mut Unsettled, bytes: u64) -> DriverResult<()> {
        let sizes: Vec<u64> = self.0.iter().map(|(_, chunk)| chunk.size).collect();
        let chosen: Vec<_> = just_enough(&sizes, bytes).into_iter().map(|index| self.0[index]).collect();
        drop_views_over(ground, &chosen)?;
        for (id, chunk) in chosen {
            match gather(ground.heap, &chunk) {
                Ok(block) => grow::release(ground, unsettled, block, id, chunk)?,
                Err(error) => tracing::error!(%error, "a free chunk could not be gathered; it stays"),
            }
        }
        Ok(())
    }
}

/// The blocks that have a byte in a chunk.
fn blocks_over<'a>(heap: &'a Heap, chunk: &Chunk) -> impl Iterator<Item = BlockId> + use<'a> {
    let first = heap.home.as_ref().map_or(BlockId::NONE, |home| home.covering(&heap.blocks, chunk.address));
    let end = chunk.end();
    let next = move |id: &BlockId| Some(heap.blocks[*id].next);
    let inside = move |id: &BlockId| id.is_some() && heap.blocks[*id].address < end;
    std::iter::successors(Some(first), next).take_while(inside)
}

/// The latest epoch in which a part of a chunk was freed, if all of it is free and every stream has passed.
fn freed_at(heap: &Heap, chunk: &Chunk) -> Option<u64> {
    let mut latest = 0;
    let mut kinds = [false; 2];
    for id in blocks_over(heap, chunk) {
        let Block { state, pool, freed_at, .. } = heap.blocks[id];
        kinds[(pool & 1) as usize] = true;
        let large = pool & !1;
        // What was freed in no epoch was never used.
        let passed = large == heap.idle || freed_at == 0 || freed_at < heap.pools[large as usize].passed;
        // What a private pool ever had stays where it is.
        if state != State::Free || !passed || heap.is_private(pool) {
            return None;
        }
        latest = latest.max(freed_at);
    }
    // Large and small memory never become one block.
    (kinds != [true; 2]).then_some(latest)
}

/// Makes the bytes of a free chunk part of one block, that of idle memory: every stream has passed them.
fn gather(heap: &mut Heap, chunk: &Chunk) -> Result<BlockId> {
    let covering = |heap: &Heap, at| heap.home.as_ref().map_or(BlockId::NONE, |home| home.covering(&heap.blocks, at));
    let whole = |heap: &Heap| {
        let id = covering(heap, chunk.address);
        (heap.blocks[id].address <= chunk.address && heap.blocks[id].end() >= chunk.end()).then_some(id)
    };
    let mut at = chunk.address;
    while at < chunk.end() && whole(heap).is_none() {
        let id = covering(heap, at);
        let Block { pool, .. } = heap.blocks[id];
        let end = heap.blocks[id].end().clamp(at, chunk.end());
        let part = heap.carve(id, at, end - at)?;
        heap.index(part);
        heap.hand_over(part, heap.idle | (pool & 1));
        at = end;
    }
    whole(heap).ok_or(Error::Internal("a free chunk is not of one kind"))
}

/// Drops every view over any of the chunks; of those that are in use, or pinned by a private pool, only the mappings of
/// these chunks.
fn drop_views_over(ground: &mut Ground<'_>, chunks: &[(ChunkId, Chunk)]) -> DriverResult<()> {
    let mut ids: Vec<ChunkId> = chunks.iter().map(|(id, _)| *id).collect();
    ids.sort_unstable();
    let gone = |chunk: ChunkId| ids.binary_search(&chunk).is_ok();
    let views = ground.heap.views.iter().filter(|(_, view)| view.chunks.iter().any(|chunk| gone(*chunk)));
    let views: Vec<(ViewId, bool)> = views.map(|(id, view)| (id, view.users > 0 || !view.pins.is_empty())).collect();
    for (view, stays) in views {
        if stays { view::cut(ground, view, gone)? } else { view::drop_view(ground, view)? }
    }
    Ok(())
}

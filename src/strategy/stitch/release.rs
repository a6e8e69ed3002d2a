//! Gives chunks back to the driver, as many as are needed and hardly more.
//!
//! Owns: the choice of the chunks that may be given back, and their order of preference. `backing` makes the calls.

use crate::backing::{StrategyContext, choose, cut_view, drop_view};
use crate::error::Result;
use crate::fallible::{TryCollect, TryPush};
use crate::heap::{Chunk, Heap};
use crate::ids::{BlockId, ChunkId, ViewId};
use rustc_hash::FxHashMap;

/// Chunks in which every byte is free and passed by every stream, in order of preference.
pub(super) struct ReleasableChunks(Vec<(ChunkId, Chunk)>);

/// The views over a chunk.
#[derive(Default)]
struct ViewsOver {
    /// The number of uses of all views (`View::tick`) when a view over the chunk was last used, plus 1; 0 without
    /// views.
    tick: u64,
    /// Whether the GPU may still use a view over the chunk.
    busy: bool,
}

impl ReleasableChunks {
    /// Finds the chunks that may be given back. Chunks without views come first, then chunks whose views are unused
    /// longest. Among equals, chunks freed longest ago come first, and then chunks nearest to the edge at which home
    /// grows, so that home stays compact.
    pub(super) fn of(heap: &Heap) -> Result<Self> {
        let Some(home) = heap.home() else { return Ok(Self(Vec::new())) };
        let mut over: FxHashMap<ChunkId, ViewsOver> = FxHashMap::default();
        for (_, view) in heap.views().iter() {
            let busy = !heap.has_passed(view);
            for chunk in &view.chunks {
                over.try_reserve(1)?;
                let over = over.entry(*chunk).or_default();
                over.busy |= busy;
                // Tick 0 is for chunks without views.
                over.tick = over.tick.max(view.tick + 1);
            }
        }
        let mut found = Vec::new();
        for (id, chunk) in home.chunks() {
            let over = over.remove(&id).unwrap_or_default();
            // Releasing a spilled chunk would give the device no memory.
            let freed_at = heap.freed_at(&chunk).filter(|_| !over.busy && !chunk.spilled);
            let Some(freed_at) = freed_at else { continue };
            // Slabs grow downwards from the end of home.
            let from_edge = if chunk.slab { chunk.address } else { home.span.end() - chunk.end() };
            found.try_push(((over.tick, freed_at, from_edge, found.len()), (id, chunk)))?;
        }
        found.sort_unstable_by_key(|(order, _)| *order);
        Ok(Self(found.into_iter().map(|(_, chunk)| chunk).try_to_vec()?))
    }

    /// Keeps only the chunks that touch a block for which the predicate is true.
    pub(super) fn with(mut self, heap: &Heap, mut wanted: impl FnMut(BlockId) -> bool) -> Self {
        self.0.retain(|(_, chunk)| heap.blocks_over(chunk.span()).any(&mut wanted));
        self
    }

    /// Returns the bytes of all these chunks.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|(_, chunk)| chunk.size).sum()
    }

    /// Gives back chunks of at least `bytes` bytes together, or all chunks if they have fewer bytes.
    pub(super) fn release(self, context: &mut StrategyContext<'_>, bytes: u64) -> Result<()> {
        let sizes = self.0.iter().map(|(_, chunk)| chunk.size).try_to_vec()?;
        let chosen = choose(&sizes, bytes)?.into_iter().map(|index| self.0[index]).try_to_vec()?;
        drop_views_over(context, &chosen)?;
        for (_, chunk) in chosen {
            context.release_chunk(&chunk)?;
        }
        Ok(())
    }
}

/// Drops every view over any of the chunks. If a view is in use or grows, or a private pool has handed out a block of
/// it, only its mappings of these chunks are removed.
fn drop_views_over(context: &mut StrategyContext<'_>, chunks: &[(ChunkId, Chunk)]) -> Result<()> {
    let mut ids = chunks.iter().map(|(id, _)| *id).try_to_vec()?;
    ids.sort_unstable();
    let gone = |chunk: ChunkId| ids.binary_search(&chunk).is_ok();
    let views = context.heap().views().iter().filter(|(_, view)| view.chunks.iter().any(|chunk| gone(*chunk)));
    let views =
        views.map(|(id, view): (ViewId, _)| (id, view.users > 0 || !view.pins.is_empty() || view.growing.is_some()));
    for (view, stays) in views.try_to_vec()? {
        if stays { cut_view(context, view, gone)? } else { drop_view(context, view)? }
    }
    Ok(())
}

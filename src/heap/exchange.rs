//! A chunk is exchanged for several others, at the same addresses.
//!
//! Owns: what is noted of it. Blocks and views keep their addresses; only the chunks behind them change. `backing` makes the
//! calls.

use super::block::Kind;
use super::chunk_map::Chunk;
use super::tables::Heap;
use crate::error::{Error, Result};
use crate::fallible::{Grown, TryPush, with_room};
use crate::ids::{BlockId, ChunkId, Handle};

impl Heap {
    /// Returns the addresses at which a chunk is mapped: its place at home, unless it is bare, and its places in views.
    pub(crate) fn places_of(&self, id: ChunkId) -> Grown<Vec<u64>> {
        let mut places = Vec::new();
        let Some((home, chunk)) = self.home.as_ref().and_then(|home| Some((home, home.chunk(id)?))) else {
            return Ok(places);
        };
        if !home.is_bare(chunk.address, 1) {
            places.try_push(chunk.address)?;
        }
        for (_, view) in self.views.iter() {
            let Some(index) = view.chunks.iter().position(|of| *of == id) else { continue };
            let mut holes = view.holes.iter();
            let sizes = view.chunks.iter().take(index).map(|of| match home.chunk(*of) {
                Some(before) => before.size,
                // Holes are in the order of addresses, as chunks are.
                None => holes.next().map_or(0, |hole| hole.size),
            });
            places.try_push(view.address + sizes.sum::<u64>())?;
        }
        Ok(places)
    }

    /// Makes room for [`Self::exchanged`] with so many new chunks. Returns room for their numbers.
    pub(crate) fn reserve_exchange(&mut self, id: ChunkId, count: usize) -> Result<Vec<ChunkId>> {
        self.views.reserve_splice(id, count.saturating_sub(1))?;
        self.reserve_chunks(count)?;
        Ok(with_room(count)?)
    }

    /// Notes that other chunks are mapped wherever one was: given their sizes, which add up to its own, and handles. The
    /// tables have room for them. What was at home stays there, and nothing is said of the blocks.
    ///
    /// # Errors
    /// There is no such chunk.
    pub(crate) fn exchanged(
        &mut self,
        id: ChunkId,
        new: impl Iterator<Item = (u64, Handle)>,
        mut ids: Vec<ChunkId>,
    ) -> Result<()> {
        const GONE: Error = Error::Internal("a chunk that is gone was exchanged");
        let home = self.home.as_mut().ok_or(GONE)?;
        let old = home.chunk(id).ok_or(GONE)?;
        let bare = home.is_bare(old.address, 1);
        home.remove_chunk(id);
        let mut address = old.address;
        for (size, handle) in new {
            let chunk = Chunk { address, size, handle, ..old };
            ids.push(home.add_chunk(chunk));
            if !bare {
                home.mapped(chunk);
            }
            address += size;
        }
        let more = ids.len().saturating_sub(1) as u64;
        let views = self.views.splice(id, &ids) as u64;
        self.counters.mappings += more * (views + u64::from(!bare));
        Ok(())
    }

    /// Notes that others know the physical memory of a live block, and not only its addresses: it is never exchanged.
    pub(crate) fn fix_memory(&mut self, id: BlockId) {
        let block = self.blocks[id];
        let (start, end) = (block.address, block.end());
        let Some(home) = &mut self.home else { return };
        match block.kind {
            Kind::Home => {
                let mut at = start;
                while let Some((chunk, found)) = home.chunk_at(at).filter(|_| at < end) {
                    home.fix(chunk);
                    at = found.end();
                }
            }
            Kind::View => {
                // All of the view's: more than the block has may be fixed, but never less.
                let chunks = self.views.get(block.view()).into_iter().flat_map(|view| &view.chunks);
                chunks.for_each(|chunk| home.fix(*chunk));
            }
            Kind::Malloc | Kind::Expandable | Kind::Guarded => {}
        }
    }
}

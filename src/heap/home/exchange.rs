//! Exchange of a chunk for several other chunks at the same addresses.
//!
//! Owns: the heap's records of an exchange. Blocks and views keep their addresses. Only the chunks that are mapped at
//! these addresses change. `backing` makes the calls.

use super::chunk_map::Chunk;
use crate::error::{Error, Result};
use crate::fallible::{Grown, TryPush, with_room};
use crate::heap::Kind;
use crate::heap::blocks::block::Slots;
use crate::heap::tables::Heap;
use crate::ids::{BlockId, ChunkId, Handle};
use crate::report::observer::Action;
use crate::span::Span;

const GONE: Error = Error::Internal("a chunk that is gone was exchanged");

/// Room in the tables for an exchange.
pub(crate) struct ExchangeRoom {
    new: Vec<(Span, ChunkId)>,
    slots: Slots,
}

impl Heap {
    /// Returns the addresses at which a chunk is mapped: its place at home, unless the chunk is bare, and its places in
    /// views.
    pub(crate) fn places_of(&self, id: ChunkId) -> Grown<Vec<u64>> {
        let mut places = Vec::new();
        let Some((home, chunk)) = self.home.map.as_ref().and_then(|home| Some((home, home.chunk(id)?))) else {
            return Ok(places);
        };
        if !home.is_bare(chunk.address, 1) {
            places.try_push(chunk.address)?;
        }
        for (_, view) in self.home.views.iter() {
            if let Some(index) = view.chunks.iter().position(|of| *of == id) {
                places.try_push(view.address + view.offset_of(index, |of| Some(home.chunk(of)?.size)))?;
            }
        }
        Ok(places)
    }

    /// Makes room for [`Self::exchanged`] with `count` parts, of which `lost` parts lose their memory. If several
    /// chunks are exchanged together, `count` and `lost` count the parts of all chunks.
    pub(crate) fn reserve_exchange(&mut self, id: ChunkId, count: usize, lost: usize) -> Result<ExchangeRoom> {
        let chunk = self.home.map.as_ref().and_then(|home| home.chunk(id)).ok_or(GONE)?;
        self.home.views.reserve_splice(id, count)?;
        self.reserve_chunks(count)?;
        let slots = self.reserve_parts(self.covering(chunk.address), lost)?;
        Ok(ExchangeRoom { new: with_room(count)?, slots })
    }

    /// Notes that other chunks have replaced a chunk at all its places. `parts` gives the bytes and the handle of each
    /// part. The parts add up to the chunk, and the handle is `None` for a part without memory. `spilled` says whether
    /// the new memory is host memory. The new chunks are mapped at home if the old chunk was mapped there. Observers
    /// get no event about live blocks.
    ///
    /// # Errors
    /// The chunk does not exist.
    pub(crate) fn exchanged(
        &mut self,
        id: ChunkId,
        parts: impl Iterator<Item = (u64, Option<Handle>)>,
        spilled: bool,
        room: ExchangeRoom,
    ) -> Result<()> {
        let ExchangeRoom { mut new, mut slots } = room;
        let home = self.home.map.as_mut().ok_or(GONE)?;
        let old = home.chunk(id).ok_or(GONE)?;
        let bare = home.is_bare(old.address, 1);
        let mapped = u64::from(!bare) + self.home.views.mappings() as u64;
        home.remove_chunk(id);
        let mut offset = 0;
        for (size, handle) in parts {
            let mut number = ChunkId::NONE;
            if let Some(handle) = handle {
                let chunk = Chunk { address: old.address + offset, size, handle, spilled, ..old };
                number = home.add_chunk(chunk);
                if !bare {
                    home.mapped(chunk);
                }
            }
            new.push((Span::new(offset, size), number));
            offset += size;
        }
        let chunks = new.iter().filter(|(_, number)| *number != ChunkId::NONE).count() as u64;
        self.home.views.splice(id, &new, |of| Some(home.chunk(of)?.size));
        let maps = u64::from(!bare) * chunks + self.home.views.mappings() as u64;
        self.journal.mappings_added(maps);
        self.journal.mappings_removed(mapped);
        for (span, number) in new {
            let span = Span::new(old.address + span.start, span.size);
            if let Some(chunk) = self.home.map.as_ref().and_then(|home| home.chunk(number)) {
                if spilled != old.spilled {
                    let action = if spilled { Action::Spilled } else { Action::Returned };
                    self.notify_range(action, Kind::Home, span, self.blocks[self.covering(span.start)].pool);
                    self.count_spilled(&chunk, spilled);
                }
                continue;
            }
            let block = self.block_around(span).ok_or(Error::Internal("memory that is lost was not free"))?;
            if old.spilled {
                self.no_more_spilled(self.blocks[block].pool.class(), span.size);
                self.lose_memory(block, span, &mut slots);
            } else {
                self.unmapped(block, span, &mut slots);
            }
        }
        Ok(())
    }

    /// Notes that code outside the allocator knows the physical memory of a live block. Such memory is never exchanged.
    pub(crate) fn pin_physical(&mut self, id: BlockId) {
        let mut piece = match self.blocks[id].kind {
            Kind::Home => id,
            Kind::View => self.blocks[id].left,
            _ => BlockId::NONE,
        };
        while piece.is_some() {
            let span = self.blocks[piece].span();
            // A block at home is its only piece.
            piece = if piece == id { BlockId::NONE } else { self.blocks[piece].right };
            let Some(home) = &mut self.home.map else { break };
            let mut at = span.start;
            while let Some((chunk, found)) = home.chunk_at(at).filter(|_| at < span.end()) {
                home.pin(chunk);
                at = found.end();
            }
        }
    }
}

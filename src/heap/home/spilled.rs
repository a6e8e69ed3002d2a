//! The spilled memory, and its counts.

use super::chunk_map::{Chunk, ChunkMap};
use super::host_stock::HostStock;
use super::spilling::Spilling;
use crate::fallible::{Grown, TryPush};
use crate::heap::blocks::block::Kind;
use crate::heap::tables::Heap;
use crate::ids::{BlockId, ChunkId, Class};
use crate::span::Span;

impl Heap {
    /// Returns the bytes of host memory that are held for spilled memory.
    #[inline]
    pub(crate) fn spilled(&self) -> u64 {
        let Spilling { bytes, unsettled, .. } = &self.home.spilling;
        bytes.iter().sum::<u64>() + unsettled
    }

    /// Returns the host memory that is kept for the next spill.
    #[inline]
    pub(crate) fn host_stock(&self) -> &HostStock {
        &self.home.spilling.stock
    }

    pub(crate) fn host_stock_mut(&mut self) -> &mut HostStock {
        &mut self.home.spilling.stock
    }

    /// Counts `now` bytes instead of `before` bytes of host memory outside of all chunks. Host memory belongs to no
    /// chunk while physical memory is exchanged, or after driver calls to give the host memory back have failed.
    pub(super) fn pending_on_host(&mut self, now: u64, before: u64) {
        self.home.spilling.unsettled = self.home.spilling.unsettled + now - before;
        self.journal.held_on_host(before, now);
    }

    /// Counts the bytes of a chunk as spilled instead of held, or as held instead of spilled. From its creation to this
    /// call, the chunk's new memory was counted outside of all chunks.
    pub(super) fn count_spilled(&mut self, chunk: &Chunk, spilled: bool) {
        for (class, size) in self.bytes_by_class(chunk) {
            if spilled {
                self.home.spilling.bytes[class as usize] += size;
                self.journal.spilled(class, size);
            } else {
                self.home.spilling.bytes[class as usize] -= size;
                self.journal.returned(class, size);
            }
        }
    }

    /// Stops counting bytes as spilled.
    pub(super) fn no_more_spilled(&mut self, class: Class, size: u64) {
        self.home.spilling.bytes[class as usize] -= size;
        self.journal.dropped_spilled(size);
    }

    /// Returns the spans of home in which a block lies: the block's own span, or the spans of its pieces. A block
    /// outside of home has no such spans.
    pub(in crate::heap) fn home_spans(&self, id: BlockId) -> impl Iterator<Item = Span> + '_ {
        let first = match self.blocks[id].kind {
            Kind::Home => id,
            Kind::View => self.blocks[id].left,
            _ => BlockId::NONE,
        };
        let is_view = self.blocks[id].kind == Kind::View;
        let next = move |piece: &BlockId| if is_view { self.blocks[*piece].right.some() } else { None };
        std::iter::successors(first.some(), next).map(|piece| self.blocks[piece].span())
    }

    /// Returns home if any chunk is spilled. Usually no chunk is spilled, and `None` saves the caller a walk over the
    /// chunks.
    pub(super) fn home_with_spilled(&self) -> Option<&ChunkMap> {
        self.home.map.as_ref().filter(|_| self.spilled() != 0)
    }

    /// Returns the spilled chunks in which a part of a live block lies.
    pub(crate) fn spilled_under(&self, id: BlockId) -> Grown<Vec<ChunkId>> {
        let mut chunks: Vec<ChunkId> = Vec::new();
        let Some(home) = self.home_with_spilled() else { return Ok(chunks) };
        for span in self.home_spans(id) {
            let mut at = span.start;
            while let Some((chunk, of)) = home.chunk_at(at).filter(|_| at < span.end()) {
                if of.spilled && !chunks.contains(&chunk) {
                    chunks.try_push(chunk)?;
                }
                at = of.end();
            }
        }
        Ok(chunks)
    }

    /// Returns whether any part of a live block is spilled.
    pub(crate) fn is_spilled(&self, id: BlockId) -> bool {
        self.spilled_bytes_of(id) != 0
    }

    /// Returns how many bytes of a block are spilled.
    pub(in crate::heap) fn spilled_bytes_of(&self, id: BlockId) -> u64 {
        let Some(home) = self.home_with_spilled() else { return 0 };
        let mut bytes = 0;
        for span in self.home_spans(id) {
            let mut at = span.start;
            while let Some((_, chunk)) = home.chunk_at(at).filter(|_| at < span.end()) {
                let part = chunk.span().intersection(&span).map_or(0, |part| part.size);
                bytes += if chunk.spilled { part } else { 0 };
                at = chunk.end();
            }
        }
        bytes
    }

    /// Returns whether a pending block is spilled, so that its host memory is given back once every stream has passed
    /// the block.
    pub(in crate::heap) fn is_spilled_block(&self, id: BlockId) -> bool {
        self.home.spilling.waits_for_own.contains(&id)
    }

    /// Notes the spans of a block that is about to be free, if the block has waited for its own stream. Every stream
    /// has passed the block. The note is valid until the next operation; before that, the caller gives the spilled
    /// memory back.
    pub(in crate::heap) fn passed_spilled(&mut self, id: BlockId) {
        if !self.home.spilling.waits_for_own.remove(&id) {
            return;
        }
        let now = self.journal.counters().operations();
        if self.home.spilling.passed_at != now {
            self.home.spilling.passed.clear();
            self.home.spilling.passed_at = now;
        }
        let mut passed = std::mem::take(&mut self.home.spilling.passed);
        if self.home_spans(id).try_for_each(|span| passed.try_push(span)).is_err() {
            // If the host has no memory for the list, this spilled memory is given back after the next epoch.
            passed.clear();
        }
        self.home.spilling.passed = passed;
    }

    /// Returns whether spilled blocks have become free in this operation, so that their host memory can be given back.
    pub(crate) fn has_passed_spilled(&self) -> bool {
        self.home.spilling.passed_at == self.journal.counters().operations()
    }
}

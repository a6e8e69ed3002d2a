//! Neighbouring blocks: splits, merges, and the entries of free blocks in the index of their pool.

use super::block::{Block, Kind, Slots, State};
use crate::error::Result;
use crate::heap::tables::Heap;
use crate::ids::BlockId;
use crate::span::Span;

impl Heap {
    /// Puts a block that was already free into the index of its pool.
    pub(crate) fn insert_free(&mut self, id: BlockId) {
        self.blocks[id].state = State::Free;
        let pool = self.blocks[id].pool;
        self.pools[pool].free.insert(&mut self.blocks, id);
    }

    /// Takes a free block out of the index of its pool.
    pub(crate) fn take_free(&mut self, id: BlockId) {
        let pool = self.blocks[id].pool;
        self.pools[pool].free.remove(&mut self.blocks, id);
    }

    /// Merges the next block into this one.
    pub(in crate::heap) fn absorb_next(&mut self, id: BlockId) {
        let next = self.blocks[id].next;
        if let (Kind::Home, Some(home)) = (self.blocks[id].kind, &mut self.home) {
            let after = self.blocks[next].next;
            home.ends(next, self.blocks[next].address, after, self.blocks[after].address);
        }
        self.blocks[id].freed_at = self.blocks[id].freed_at.max(self.blocks[next].freed_at);
        self.blocks[id].size += self.blocks[next].size;
        self.blocks.unlink(next);
        self.blocks.remove(next);
    }

    /// Adds a block right behind `id`.
    #[inline]
    pub(in crate::heap) fn insert_after(&mut self, id: BlockId, block: Block) -> Result<BlockId> {
        let new = self.blocks.insert(block)?;
        self.link_after(id, new);
        Ok(new)
    }

    #[inline]
    pub(in crate::heap) fn link_after(&mut self, id: BlockId, new: BlockId) {
        self.blocks.link_after(id, new);
        let Block { address, kind, .. } = self.blocks[new];
        if let (Kind::Home, Some(home)) = (kind, &mut self.home) {
            home.begins(new, address, id, self.blocks[id].address);
        }
    }

    /// Splits a free block if it has more than `size` bytes. Returns the free block of its first `size` bytes.
    pub(crate) fn part_of(&mut self, id: BlockId, size: u64) -> Result<BlockId> {
        if self.blocks[id].size <= size {
            return Ok(id);
        }
        let part = self.carve(id, Span::new(self.blocks[id].address, size))?;
        self.insert_free(part);
        Ok(part)
    }

    /// Cuts a span out of a free block; the rest stays in the index. Returns the block of the span, which is in no index.
    pub(crate) fn carve(&mut self, id: BlockId, span: Span) -> Result<BlockId> {
        let mut slots = self.reserve_slots(2)?;
        self.take_free(id);
        Ok(self.cut(id, span, &mut slots, Self::insert_free))
    }

    /// Makes a span of a block a block of its own, for which two slots were reserved. The parts before and behind it
    /// are passed to `rest`.
    pub(in crate::heap) fn cut(
        &mut self,
        id: BlockId,
        span: Span,
        slots: &mut Slots,
        rest: impl Fn(&mut Self, BlockId),
    ) -> BlockId {
        let whole = self.blocks[id];
        let before = span.start - whole.address;
        let behind = whole.end() - span.end();
        let mut middle = id;
        if before > 0 {
            self.blocks[id].size = before;
            let part = whole.part(Span::new(span.start, whole.size - before), whole.state);
            middle = self.blocks.insert_reserved(slots, part);
            self.link_after(id, middle);
        }
        if behind > 0 {
            self.blocks[middle].size = span.size;
            let last = self.blocks.insert_reserved(slots, whole.part(Span::new(span.end(), behind), whole.state));
            self.link_after(middle, last);
            rest(self, last);
        }
        if before > 0 {
            rest(self, id);
        }
        middle
    }
}

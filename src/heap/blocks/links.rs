//! Neighbouring blocks: splits and merges, and the entries of free blocks in the index of their pool.

use super::block::{Block, Kind, Slots, State};
use super::table::Blocks;
use crate::error::Result;
use crate::ids::BlockId;
use crate::span::Span;

impl Blocks {
    /// Puts a block that was already free into the index of its pool.
    pub(in crate::heap) fn insert_free(&mut self, id: BlockId) {
        let block = &mut self.table[id];
        block.state = State::Free;
        let pool = block.pool;
        self.free[pool.slot()].insert(&mut self.table, id);
    }

    /// Takes a free block out of the index of its pool.
    pub(in crate::heap) fn take_free(&mut self, id: BlockId) {
        let pool = self.table[id].pool;
        self.free[pool.slot()].remove(&mut self.table, id);
    }

    /// Merges the next block into the block `id`.
    pub(in crate::heap) fn absorb_next(&mut self, id: BlockId) {
        let next = self.table[id].next;
        if self.table[id].kind == Kind::Home {
            let after = self.table[next].next;
            self.starts.ends(next, self.table[next].address, after, self.table[after].address);
        }
        self.table[id].freed_at = self.table[id].freed_at.max(self.table[next].freed_at);
        self.table[id].size += self.table[next].size;
        self.table.unlink(next);
        self.table.remove(next);
    }

    /// Adds a block directly after `id`.
    #[inline]
    pub(in crate::heap) fn insert_after(&mut self, id: BlockId, block: Block) -> Result<BlockId> {
        let new = self.table.insert(block)?;
        self.link_after(id, new);
        Ok(new)
    }

    #[inline]
    pub(in crate::heap) fn link_after(&mut self, id: BlockId, new: BlockId) {
        self.table.link_after(id, new);
        let Block { address, kind, .. } = self.table[new];
        if kind == Kind::Home {
            self.starts.begins(new, address, id, self.table[id].address);
        }
    }

    /// Splits a free block of more than `size` bytes. Returns the free block of the first `size` bytes.
    pub(in crate::heap) fn part_of(&mut self, id: BlockId, size: u64) -> Result<BlockId> {
        if self.table[id].size <= size {
            return Ok(id);
        }
        let part = self.carve(id, Span::new(self.table[id].address, size))?;
        self.insert_free(part);
        Ok(part)
    }

    /// Cuts a span out of a free block. The rest stays in the index. Returns the block of the span, which is in no
    /// index.
    pub(in crate::heap) fn carve(&mut self, id: BlockId, span: Span) -> Result<BlockId> {
        let mut slots = self.reserve(2)?;
        self.take_free(id);
        Ok(self.cut(id, span, &mut slots, Self::insert_free))
    }

    /// Cuts a span out of a block as a block of its own. Two entries of the block table were reserved for the cut. The
    /// parts before and after the span are passed to `rest`.
    pub(in crate::heap) fn cut(
        &mut self,
        id: BlockId,
        span: Span,
        slots: &mut Slots,
        mut rest: impl FnMut(&mut Self, BlockId),
    ) -> BlockId {
        let whole = self.table[id];
        let before = span.start - whole.address;
        let behind = whole.end() - span.end();
        let mut middle = id;
        if before > 0 {
            self.table[id].size = before;
            let part = whole.part(Span::new(span.start, whole.size - before), whole.state);
            middle = self.table.insert_reserved(slots, part);
            self.link_after(id, middle);
        }
        if behind > 0 {
            self.table[middle].size = span.size;
            let last = self.table.insert_reserved(slots, whole.part(Span::new(span.end(), behind), whole.state));
            self.link_after(middle, last);
            rest(self, last);
        }
        if before > 0 {
            rest(self, id);
        }
        middle
    }
}

//! Free neighbours, and how they merge into one block.

use super::block::{Kind, State};
use super::starts::GRANULE;
use super::table::Blocks;
use crate::ids::BlockId;

impl Blocks {
    /// Merges a block with its free neighbours, which leave the index. Returns the block that remains, the number of
    /// blocks merged into it, and their bytes.
    #[inline(always)]
    pub(in crate::heap) fn merge_neighbours(&mut self, mut id: BlockId) -> (BlockId, u64, u64) {
        let (mut merged, mut bytes) = (0, 0);
        let prev = self.table[id].prev;
        if self.are_free_neighbours(prev, id) {
            self.take_free(prev);
            (merged, bytes) = (1, self.table[prev].size);
            self.absorb_next(prev);
            id = prev;
        }
        let next = self.table[id].next;
        if self.are_free_neighbours(id, next) {
            self.take_free(next);
            merged += 1;
            bytes += self.table[next].size;
            self.absorb_next(id);
        }
        (id, merged, bytes)
    }

    /// Returns whether two neighbours merge under a layout that merges all free neighbours: both blocks are free and of
    /// one pool, and they are not two slabs for small blocks at home.
    #[inline(always)]
    pub(in crate::heap) fn are_free_neighbours(&self, before: BlockId, id: BlockId) -> bool {
        let (before, block) = (&self.table[before], &self.table[id]);
        before.state == State::Free
            && block.state == State::Free
            && before.pool == block.pool
            && !(block.kind == Kind::Home && block.address.is_multiple_of(GRANULE) && block.pool.is_small())
    }
}

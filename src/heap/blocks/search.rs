//! Searches: free blocks by size, and blocks at home by address.

use super::starts::Starts;
use super::table::Blocks;
use crate::error::Result;
use crate::fallible::Grown;
use crate::heap::fingerprint::Fingerprint;
use crate::ids::{BlockId, PoolIndex};
use crate::span::Span;

impl Blocks {
    /// Returns the smallest free block of a pool with at least `size` bytes, at the lowest address among equal blocks,
    /// or [`BlockId::NONE`].
    pub(in crate::heap) fn best_fit(&self, pool: PoolIndex, size: u64) -> BlockId {
        self.free[pool.slot()].best_fit(&self.table, size)
    }

    /// Returns the free block of the same pool that comes next in the order of size and address, or [`BlockId::NONE`].
    #[cfg(feature = "baselines")]
    pub(in crate::heap) fn next_free(&self, id: BlockId) -> BlockId {
        self.free[self.table[id].pool.slot()].successor(&self.table, id)
    }

    /// Returns the largest free block of a pool, or [`BlockId::NONE`].
    pub(in crate::heap) fn largest_free(&self, pool: PoolIndex) -> BlockId {
        self.free[pool.slot()].largest(&self.table)
    }

    /// Returns the free blocks of a pool in the order of size and address.
    pub(in crate::heap) fn free_blocks(&self, pool: PoolIndex) -> Result<Vec<BlockId>> {
        Ok(self.free[pool.slot()].in_order(&self.table)?)
    }

    /// Visits the free blocks of a pool with at least `min_size` bytes, in the order of size and address.
    pub(in crate::heap) fn visit_free(
        &self,
        pool: PoolIndex,
        min_size: u64,
        visit: impl FnMut(BlockId) -> Grown<()>,
    ) -> Grown<()> {
        self.free[pool.slot()].visit_from(&self.table, min_size, visit)
    }

    /// Returns the number of free blocks of a pool.
    pub(in crate::heap) fn free_count(&self, pool: PoolIndex) -> usize {
        self.free[pool.slot()].len()
    }

    /// Returns the fingerprint of the free blocks of a pool.
    pub(in crate::heap) fn fingerprint(&self, pool: PoolIndex) -> Fingerprint {
        self.free[pool.slot()].fingerprint()
    }

    /// Returns whether the index of the block's pool holds the block.
    pub(in crate::heap) fn is_indexed(&self, id: BlockId) -> bool {
        self.free[self.table[id].pool.slot()].holds(&self.table, id)
    }

    /// Returns the table of the blocks at home.
    pub(in crate::heap) fn starts(&self) -> &Starts {
        &self.starts
    }

    /// Replaces the table of the blocks at home. From then on, blocks at home are found in the new table.
    pub(in crate::heap) fn set_starts(&mut self, starts: Starts) {
        self.starts = starts;
    }

    /// Notes the first block of a range of home.
    pub(in crate::heap) fn begin_range(&mut self, head: BlockId) {
        self.starts.begins(head, self.table[head].address, BlockId::NONE, 0);
    }

    /// Notes that a range of home, whose only block is `head`, is about to be removed.
    pub(in crate::heap) fn end_range(&mut self, head: BlockId) {
        self.starts.ends(head, self.table[head].address, BlockId::NONE, 0);
    }

    /// Returns the block at home that covers an address, or [`BlockId::NONE`].
    pub(in crate::heap) fn covering(&self, address: u64) -> BlockId {
        self.starts.covering(&self.table, address)
    }

    /// Returns the blocks that have a byte in a span of home.
    pub(in crate::heap) fn over(&self, span: Span) -> impl Iterator<Item = BlockId> + use<'_> {
        let next = |id: &BlockId| Some(self[*id].next);
        let inside = move |id: &BlockId| id.is_some() && self[*id].address < span.end();
        std::iter::successors(Some(self.covering(span.start)), next).take_while(inside)
    }

    /// Returns the block that holds all bytes of a span of home, or `None`.
    pub(in crate::heap) fn around(&self, span: Span) -> Option<BlockId> {
        let id = self.covering(span.start);
        let block = &self[id];
        (block.address <= span.start && block.end() >= span.end()).then_some(id)
    }
}

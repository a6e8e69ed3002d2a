//! Merging of free blocks with their neighbours, as the heap's layout allows.
//!
//! Owns: which neighbours merge, and the moves of a free block from pool to pool.

use super::blocks::layout::{Layout, Merging};
use super::tables::Heap;
use crate::ids::{BlockId, PoolIndex};

impl Heap {
    /// Returns the layout of the memory of public pools.
    #[inline]
    pub(crate) fn layout(&self) -> &Layout {
        &self.rules.layout
    }

    /// Returns the layout of a pool's memory.
    pub(crate) fn layout_of(&self, pool: PoolIndex) -> &Layout {
        if self.is_segmented(pool) { &Layout::PYTORCH } else { &self.rules.layout }
    }

    /// Returns the rule by which free neighbours of a pool become one block.
    #[inline]
    pub(super) fn merging_in(&self, pool: PoolIndex) -> Merging {
        match self.rules.layout.merging {
            Merging::Neighbours => Merging::Neighbours,
            _ => self.layout_of(pool).merging,
        }
    }

    /// Returns whether two neighbours of equal size are the halves of one block.
    #[cfg(feature = "baselines")]
    pub(super) fn are_buddies(&self, before: BlockId, id: BlockId) -> bool {
        let (before, block) = (&self.blocks[before], &self.blocks[id]);
        let start = self.segment(before.segment).map_or(0, |segment| segment.span.start);
        before.size == block.size && (before.address - start).is_multiple_of(2 * before.size)
    }

    /// Merges a block with its buddy, the merged block with its own buddy, and so on. Returns the same values as
    /// [`Heap::merge_free`].
    #[cfg(feature = "baselines")]
    #[cold]
    pub(super) fn merge_buddies(&mut self, mut id: BlockId) -> (BlockId, u64, u64) {
        let (mut merged, mut bytes) = (0, 0);
        loop {
            let (prev, next) = (self.blocks[id].prev, self.blocks[id].next);
            let (first, other) = match () {
                () if self.joins(prev, id) => (prev, prev),
                () if self.joins(id, next) => (id, next),
                () => return (id, merged, bytes),
            };
            self.blocks.take_free(other);
            merged += 1;
            bytes += self.blocks[other].size;
            self.blocks.absorb_next(first);
            id = first;
        }
    }

    /// Merges a block with its free neighbours, as the layout of its pool allows. The neighbours leave the index.
    /// Returns the block that remains, the number of blocks merged into it, and their bytes.
    #[inline]
    pub(super) fn merge_free(&mut self, id: BlockId) -> (BlockId, u64, u64) {
        if self.rules.layout.merging == Merging::Neighbours {
            return self.blocks.merge_neighbours(id);
        }
        self.merge_by_layout(id)
    }

    #[cold]
    fn merge_by_layout(&mut self, id: BlockId) -> (BlockId, u64, u64) {
        match self.merging_in(self.blocks[id].pool) {
            Merging::Neighbours => self.blocks.merge_neighbours(id),
            #[cfg(feature = "baselines")]
            Merging::Buddies => self.merge_buddies(id),
            Merging::Never => (id, 0, 0),
        }
    }

    /// Returns whether two neighbours merge: both blocks are free and of one pool, the layout allows the merge, and
    /// they are not two slabs for small blocks at home.
    pub(super) fn joins(&self, before: BlockId, id: BlockId) -> bool {
        self.blocks.are_free_neighbours(before, id)
            && match self.merging_in(self.blocks[id].pool) {
                Merging::Neighbours => true,
                Merging::Never => false,
                #[cfg(feature = "baselines")]
                Merging::Buddies => self.are_buddies(before, id),
            }
    }

    /// Moves a free block to another pool, where the block merges with its neighbours. Returns the merged block.
    pub(crate) fn hand_over(&mut self, id: BlockId, pool: PoolIndex) -> BlockId {
        self.blocks.take_free(id);
        self.assign(id, pool);
        let (id, ..) = self.merge_free(id);
        self.blocks.insert_free(id);
        id
    }
}

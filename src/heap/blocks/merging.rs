//! Merging of free blocks with their neighbours, as the heap's layout allows.
//!
//! Owns: which neighbours merge, and the moves of a free block from pool to pool.

use super::block::{Block, Kind, State};
use super::layout::{Layout, Merging};
use crate::heap::home::chunk_map::GRANULE;
use crate::heap::tables::Heap;
use crate::ids::{BlockId, PoolIndex};

impl Heap {
    /// Returns how memory of public pools is divided.
    #[inline]
    pub(crate) fn layout(&self) -> &Layout {
        &self.rules.layout
    }

    /// Returns how a pool's memory is divided.
    pub(crate) fn layout_of(&self, pool: PoolIndex) -> &Layout {
        if self.is_segmented(pool) { &Layout::PYTORCH } else { &self.rules.layout }
    }

    /// Returns when free neighbours of a pool become one.
    #[inline]
    pub(in crate::heap) fn merging_in(&self, pool: PoolIndex) -> Merging {
        match self.rules.layout.merging {
            Merging::Neighbours => Merging::Neighbours,
            _ => self.layout_of(pool).merging,
        }
    }

    /// Returns whether two neighbours of one size are the halves of one block.
    pub(super) fn are_buddies(&self, before: BlockId, id: BlockId) -> bool {
        let (before, block) = (&self.blocks[before], &self.blocks[id]);
        let start = self.segment(before.segment).map_or(0, |segment| segment.span.start);
        before.size == block.size && (before.address - start).is_multiple_of(2 * before.size)
    }

    /// Merges a block with its buddy, the merged block with its own buddy, and so on. Returns the same values as
    /// [`Heap::merge_free`].
    #[cold]
    pub(super) fn merge_buddies(&mut self, mut id: BlockId) -> (BlockId, u64, u64) {
        let (mut merged, mut bytes) = (0, 0);
        loop {
            let Block { prev, next, .. } = self.blocks[id];
            let (first, other) = match () {
                () if self.joins(prev, id) => (prev, prev),
                () if self.joins(id, next) => (id, next),
                () => return (id, merged, bytes),
            };
            self.take_free(other);
            merged += 1;
            bytes += self.blocks[other].size;
            self.absorb_next(first);
            id = first;
        }
    }

    /// Merges a block with its free neighbours, which leave the index. Returns the block that remains, how many were
    /// merged into it, and their bytes.
    #[inline]
    pub(in crate::heap) fn merge_free(&mut self, id: BlockId) -> (BlockId, u64, u64) {
        if self.rules.layout.merging == Merging::Neighbours {
            return self.merge_where(id, Self::are_free_neighbours);
        }
        self.merge_by_layout(id)
    }

    #[cold]
    pub(super) fn merge_by_layout(&mut self, id: BlockId) -> (BlockId, u64, u64) {
        match self.rules.layout.merging {
            Merging::Buddies => self.merge_buddies(id),
            Merging::Neighbours | Merging::Never => self.merge_where(id, Self::joins),
        }
    }

    #[inline(always)]
    pub(super) fn merge_where(
        &mut self,
        mut id: BlockId,
        joins: impl Fn(&Self, BlockId, BlockId) -> bool,
    ) -> (BlockId, u64, u64) {
        let (mut merged, mut bytes) = (0, 0);
        let prev = self.blocks[id].prev;
        if joins(self, prev, id) {
            self.take_free(prev);
            (merged, bytes) = (1, self.blocks[prev].size);
            self.absorb_next(prev);
            id = prev;
        }
        let next = self.blocks[id].next;
        if joins(self, id, next) {
            self.take_free(next);
            merged += 1;
            bytes += self.blocks[next].size;
            self.absorb_next(id);
        }
        (id, merged, bytes)
    }

    /// Returns whether two neighbours merge: both are free and of one pool, the layout allows it, and they are not two
    /// slabs for small blocks at home.
    pub(in crate::heap) fn joins(&self, before: BlockId, id: BlockId) -> bool {
        self.are_free_neighbours(before, id)
            && match self.merging_in(self.blocks[id].pool) {
                Merging::Neighbours => true,
                Merging::Never => false,
                Merging::Buddies => self.are_buddies(before, id),
            }
    }

    /// Returns whether two neighbours merge under a layout in which all free neighbours do.
    #[inline(always)]
    pub(super) fn are_free_neighbours(&self, before: BlockId, id: BlockId) -> bool {
        let (before, block) = (&self.blocks[before], &self.blocks[id]);
        before.state == State::Free
            && block.state == State::Free
            && before.pool == block.pool
            && !(block.kind == Kind::Home && block.address.is_multiple_of(GRANULE) && block.pool.is_small())
    }

    /// Moves a free block to another pool, where it merges with its neighbours. Returns the block that it is part of
    /// then.
    pub(crate) fn hand_over(&mut self, id: BlockId, pool: PoolIndex) -> BlockId {
        self.take_free(id);
        self.assign(id, pool);
        let (id, ..) = self.merge_free(id);
        self.insert_free(id);
        id
    }
}

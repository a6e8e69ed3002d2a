//! Private pools with segments of their own: none of their memory is ever anyone else's.
//!
//! Owns: which of their segments can go, and the end of such a pool. The calls are `backing/segments.rs`'s.

use super::block::Kind;
use super::tables::Heap;
use crate::ids::{BlockId, PoolId, PoolIndex};

impl Heap {
    /// Whether a pool is part of a private pool with segments of its own.
    pub(crate) fn is_segmented(&self, pool: PoolIndex) -> bool {
        self.is_private(pool) && self.private.segments(self.owner_of(pool)).is_some()
    }

    /// Whether a pool is part of a private pool with a source of its own.
    pub(crate) fn has_source(&self, pool: PoolIndex) -> bool {
        self.is_private(pool) && self.private.segments(self.owner_of(pool)).is_some_and(|own| own.have_source())
    }

    /// Whether a private pool has never had memory, or has none any more.
    pub(crate) fn holds_nothing(&self, owner: PoolId) -> bool {
        let pairs = self.pairs_of(owner);
        !self.blocks.iter().any(|(_, block)| pairs.contains(&block.pool.large()))
    }

    /// The free blocks of a private pool that are segments of their own.
    pub(crate) fn whole_segments_of(&self, owner: PoolId) -> Vec<BlockId> {
        let pools = self.pairs_of(owner).into_iter().flat_map(|large| [large, large.small()]);
        let free = pools.flat_map(|pool| self.free_blocks(pool));
        free.filter(|id| self.blocks[*id].kind == Kind::Malloc && !self.blocks[*id].is_split()).collect()
    }

    /// Of private pools with segments of their own, those that have ended and have something to give back, or to forget.
    pub(crate) fn has_something_to_reclaim(&self, owner: PoolId) -> bool {
        self.private.segments(owner).is_none() || self.holds_nothing(owner) || !self.whole_segments_of(owner).is_empty()
    }

    /// Forgets a private pool that has ended, if it holds nothing: its source is dropped.
    pub(crate) fn forget_empty(&mut self, owner: PoolId) {
        if !self.holds_nothing(owner) {
            return;
        }
        for pair in self.private_pairs.extract_if(.., |pair| pair.owner == owner).collect::<Vec<_>>() {
            self.views.move_uses(pair.large, None);
            self.vacant_pools.push(pair.large);
        }
        self.private.remove(owner);
    }
}

//! Private pools with segments of their own: none of their memory is ever anyone else's.
//!
//! Owns: which of their segments can go, and the end of such a pool. The calls are strategy/segmented.rs's.

use super::Heap;
use crate::blocks::{BlockId, Kind};
use crate::ids::PoolId;

impl Heap {
    /// Whether a pool is part of a private pool with segments of its own.
    pub(crate) fn is_segmented(&self, pool: u32) -> bool {
        self.is_private(pool) && self.private.segments(self.owner_of(pool)).is_some()
    }

    /// Whether a pool is part of a private pool with a source of its own.
    pub(crate) fn has_source(&self, pool: u32) -> bool {
        self.is_private(pool) && self.private.segments(self.owner_of(pool)).is_some_and(|own| own.have_source())
    }

    /// The large pools of a private pool.
    pub(super) fn pairs_of(&self, owner: PoolId) -> Vec<u32> {
        self.private_pairs.iter().filter(|(of, ..)| *of == owner).map(|(.., large)| *large).collect()
    }

    /// Whether a private pool has never had memory, or has none any more.
    pub(crate) fn holds_nothing(&self, owner: PoolId) -> bool {
        let pairs = self.pairs_of(owner);
        !self.blocks.iter().any(|(_, block)| pairs.contains(&(block.pool & !1)))
    }

    /// The free blocks of a private pool that are segments of their own.
    pub(crate) fn whole_segments_of(&self, owner: PoolId) -> Vec<BlockId> {
        let pools = self.pairs_of(owner).into_iter().flat_map(|large| [large, large + 1]);
        let free = pools.flat_map(|pool| self.pools[pool as usize].free.in_order(&self.blocks));
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
        for (.., large) in self.private_pairs.extract_if(.., |(of, ..)| *of == owner).collect::<Vec<_>>() {
            self.views.move_uses(large, None);
            self.vacant_pools.push(large);
        }
        self.private.remove(owner);
    }
}

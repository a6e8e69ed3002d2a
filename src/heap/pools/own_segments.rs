//! Private pools with segments of their own. The memory of such a pool never serves other pools.
//!
//! Owns: which segments of such a pool can be given back, and the pool's end. `backing/segments.rs` makes the calls.

use crate::error::Result;
use crate::fallible::TryPush;
use crate::heap::blocks::block::Kind;
use crate::heap::tables::Heap;
use crate::ids::{BlockId, PoolId};

impl Heap {
    /// Returns whether a private pool holds no memory.
    pub(crate) fn holds_nothing(&self, owner: PoolId) -> bool {
        !self.blocks.iter().any(|(_, block)| self.is_owned_by(block.pool, owner))
    }

    /// Returns the free blocks of a private pool that are whole segments.
    pub(crate) fn whole_segments_of(&self, owner: PoolId) -> Result<Vec<BlockId>> {
        let mut found = Vec::new();
        for pool in self.pairs_of(owner).flat_map(|large| [large, large.small()]) {
            let whole = |id: &BlockId| self.blocks[*id].kind == Kind::Malloc && !self.blocks[*id].is_split();
            for id in self.free_blocks(pool)?.into_iter().filter(whole) {
                found.try_push(id)?;
            }
        }
        Ok(found)
    }

    /// Returns whether a private pool that has ended can give memory back or be forgotten. A pool without segments of
    /// its own always can.
    pub(crate) fn is_reclaimable(&self, owner: PoolId) -> Result<bool> {
        Ok(self.pools.private.segments(owner).is_none()
            || self.holds_nothing(owner)
            || !self.whole_segments_of(owner)?.is_empty())
    }

    /// Forgets a private pool that has ended, and drops the source of its segments (the program's code), if the pool
    /// holds no memory.
    pub(crate) fn forget_empty(&mut self, owner: PoolId) {
        if !self.holds_nothing(owner) {
            return;
        }
        for pair in self.pools.pairs.extract_if(.., |pair| pair.owner == owner) {
            self.home.views_mut().move_uses(pair.large, None);
            self.pools.vacant.push(pair.large);
        }
        self.pools.private.remove(owner);
    }
}

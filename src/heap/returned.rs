//! The return of a block's bytes to the index of free blocks.

use super::blocks::block::{Block, Kind, State};
use super::tables::Heap;
use crate::ids::BlockId;

impl Heap {
    /// Frees the bytes of a block: the block merges with its neighbours and enters the index. Returns the block that
    /// remains, the number of blocks merged into it, and their bytes.
    #[inline]
    pub(super) fn free_bytes(&mut self, id: BlockId) -> (BlockId, u64, u64) {
        if self.rules.adopts_idle && self.blocks[id].kind == Kind::Home {
            self.adopt_idle(id);
        }
        self.blocks[id].state = State::Free;
        let merged = self.merge_free(id);
        self.insert_freed(merged.0);
        merged
    }

    /// Puts a block that has just become free into the index of its pool.
    #[inline]
    pub(super) fn insert_freed(&mut self, id: BlockId) {
        let block = &mut self.blocks[id];
        block.freed_at = if block.kind == Kind::Home {
            // Both pools of a stream share the epochs of the large pool.
            let stream = &mut self.pools[block.pool.large()];
            stream.freed_in_epoch = true;
            stream.epoch
        } else {
            self.pools.clock(block.pool.class())
        };
        self.blocks.insert_free(id);
    }

    /// Moves the idle ranges beside a block that is about to become free into the block's pool, where they merge with
    /// the block.
    pub(super) fn adopt_idle(&mut self, id: BlockId) {
        let Block { prev, next, pool, .. } = self.blocks[id];
        if pool.is_small() {
            return;
        }
        for beside in [prev, next] {
            let idle = self.blocks[beside].state == State::Free && self.blocks[beside].pool == self.pools.idle();
            // A private pool keeps all memory that it gets, so idle memory does not join its blocks.
            if idle && !self.is_private(pool) {
                self.hand_over(beside, pool);
            }
        }
    }
}

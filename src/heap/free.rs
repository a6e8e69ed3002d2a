//! The steps from a live block to a free block: its free is requested, then completed; the block merges with its free
//! neighbours and enters the free index.
//!
//! Owns: the order of these steps, and how pending blocks are freed. `merging.rs` has the merges.

use super::blocks::block::{Block, Freeing, Kind, State};
use super::blocks::starts::GRANULE;
use super::notify::allocation_of;
use super::tables::Heap;
use crate::error::Result;
use crate::ids::{BlockId, Class, PoolIndex};
use crate::span::Span;

impl Heap {
    /// Notes that the program frees an allocation that was taken out of the address table. The block is no longer
    /// allocated, but is still active.
    pub(crate) fn free_requested(&mut self, id: BlockId) {
        self.journal.free_requested(allocation_of(&self.blocks[id]), &self.pools);
    }

    /// Frees an allocation that was taken out of the address table. Every stream has finished with the allocation.
    #[inline(always)]
    pub(crate) fn free_at_once(&mut self, id: BlockId) {
        self.journal.freed(allocation_of(&self.blocks[id]), &self.pools);
        self.complete(id);
    }

    /// Frees a block with which every stream has finished. The block merges with its free neighbours and can be handed
    /// out again.
    pub(crate) fn free_completed(&mut self, id: BlockId) {
        self.passed_spilled(id);
        self.journal.free_completed(allocation_of(&self.blocks[id]), &self.pools);
        self.complete(id);
    }

    #[inline(never)]
    fn complete(&mut self, id: BlockId) {
        let Block { pool, kind, .. } = self.blocks[id];
        let class = pool.class();
        match kind {
            Kind::Malloc => {
                let (id, merged, merged_bytes) = self.free_bytes(id);
                // PyTorch counts the net change of a whole free, not each merged neighbour.
                let (added, added_bytes) = if self.blocks[id].is_split() {
                    (1, self.blocks[id].size)
                } else {
                    let due = self.blocks[id].size >= self.rules.layout.release_from;
                    self.home.set_release_due(due);
                    (0, 0)
                };
                self.journal.inactive_split_merged(class, (added, added_bytes), (merged, merged_bytes));
            }
            Kind::Expandable => {
                self.free_bytes(id);
            }
            Kind::Home => {
                let (id, ..) = self.free_bytes(id);
                if class == Class::Small {
                    self.return_slab(id);
                }
            }
            Kind::View => self.return_pieces(id),
            Kind::Guarded => self.retire(id),
        }
    }

    /// Marks a freed block as waiting for streams.
    pub(crate) fn set_pending(&mut self, id: BlockId) {
        self.blocks[id].freeing = Freeing::AtOnce;
        self.blocks[id].state = State::Pending;
    }

    /// Notes that work of a pending block's own stream may still use the block. Returns the block's large pool, and the
    /// epoch that must be passed before another stream may have the block.
    pub(crate) fn note_pending(&mut self, id: BlockId) -> (PoolIndex, u64) {
        let large = self.blocks[id].pool.large();
        let stream = &mut self.pools[large];
        stream.freed_in_epoch = true;
        (large, stream.epoch)
    }

    /// Returns whether a pending block may be handed out before the CPU has seen the end of its uses. Guarded memory
    /// and spilled memory may not, since they are unmapped instead.
    pub(crate) fn may_be_taken_early(&self, id: BlockId) -> bool {
        matches!(self.blocks[id].kind, Kind::Home | Kind::View) && !self.is_spilled_block(id)
    }

    /// Returns whether another stream may have a pending block. A part of a slab stays with the slab's stream:
    /// otherwise free parts of the slab would be in two pools and could never merge.
    pub(crate) fn may_change_stream(&self, id: BlockId) -> bool {
        let in_slab = |span: Span| self.home.map().is_some_and(|home| home.is_slab(span.start));
        self.home_spans(id).all(|span| span.size.is_multiple_of(GRANULE) || !in_slab(span))
    }

    /// Makes room in the tables for [`Self::free_early`] of a pending block.
    pub(crate) fn reserve_early(&mut self, id: BlockId, to: PoolIndex) -> Result<()> {
        let block = self.blocks[id];
        if block.kind == Kind::View {
            self.home.views_mut().reserve_use(block.view(), to.large())?;
        }
        Ok(())
    }

    /// Frees a pending block for a pool whose stream waits on the GPU for all work that uses the block.
    pub(crate) fn free_early(&mut self, id: BlockId, to: PoolIndex) {
        self.journal.free_completed(allocation_of(&self.blocks[id]), &self.pools);
        self.assign(id, to);
        self.complete(id);
    }

    /// Notes that freeing a live block takes more steps than merging with free neighbours.
    pub(crate) fn set_has_uses(&mut self, id: BlockId) {
        let freeing = &mut self.blocks[id].freeing;
        if *freeing == Freeing::AtOnce {
            *freeing = Freeing::BySteps;
        }
    }

    /// Notes that freeing a block takes no step but merging with free neighbours.
    pub(crate) fn clear_uses(&mut self, id: BlockId) {
        self.blocks[id].freeing = Freeing::AtOnce;
    }
}

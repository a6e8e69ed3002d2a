//! What the driver's pool of stream-ordered memory holds: each allocation of it is a segment with one block, and the rest is idle.
//!
//! Owns: the bytes of the pool that are part of no block. The driver alone divides them.

use super::block::Slots;
use super::tables::Heap;
use crate::config::rounding::MIN_BLOCK;
use crate::driver::{Call, DriverResult};
use crate::ids::{BlockId, Class, PoolIndex};
use crate::span::Span;

/// The bytes of the driver's pool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DriverPoolBytes {
    /// In blocks.
    blocks: u64,
    /// In none: free memory, and what was lost to rounding.
    pub(super) idle: u64,
}

impl Heap {
    /// Adds an allocation of the pool. Returns its block, which is not in the free index. How much the pool holds then is not
    /// known before [`Self::set_pool_held`].
    pub(crate) fn add_pooled_segment(&mut self, pool: PoolIndex, span: Span, slots: &mut Slots) -> BlockId {
        // First, so that no peak counts its bytes twice.
        let before = self.driver_pool.idle;
        self.set_idle(before.saturating_sub(span.size));
        let id = self.add_malloc_segment(pool, span, slots);
        self.driver_pool.blocks += span.size;
        id
    }

    /// Does what [`Heap::check_answer`] does for an allocation of the pool, without a walk over all of them while all are live: the
    /// driver would have to give the same address twice.
    pub(crate) fn check_pooled(&self, span: Span) -> DriverResult<()> {
        let all_are_live = self.counters.segment.current() == self.counters.allocation.current();
        let is_sound = span.start != 0
            && span.start.is_multiple_of(MIN_BLOCK)
            && span.start.checked_add(span.size).is_some()
            && !self.addresses.contains_key(&span.start);
        if all_are_live && is_sound { Ok(()) } else { self.check_answer(Call::PoolMalloc, span, MIN_BLOCK) }
    }

    /// Removes a free allocation that was given back to the pool. That was reported before.
    pub(crate) fn remove_pooled_segment(&mut self, id: BlockId) {
        let size = self.blocks[id].size;
        self.remove_malloc_segment(id);
        self.driver_pool.blocks = self.driver_pool.blocks.saturating_sub(size);
        self.set_idle(self.driver_pool.idle + size);
    }

    /// Notes how many bytes the pool holds in all.
    pub(crate) fn set_pool_held(&mut self, held: u64) {
        self.set_idle(held.saturating_sub(self.driver_pool.blocks));
    }

    /// Returns how many bytes the pool holds in all, as far as is known.
    pub(crate) fn pool_held(&self) -> u64 {
        self.driver_pool.blocks + self.driver_pool.idle
    }

    /// Returns how many bytes of the pool are in blocks.
    pub(crate) fn pool_used(&self) -> u64 {
        self.driver_pool.blocks
    }

    fn set_idle(&mut self, idle: u64) {
        let before = std::mem::replace(&mut self.driver_pool.idle, idle);
        self.counters.reserved_bytes.add(Class::Large, idle.saturating_sub(before));
        self.counters.reserved_bytes.sub(Class::Large, before.saturating_sub(idle));
    }
}

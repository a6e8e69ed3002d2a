//! Memory of the driver's stream-ordered pool. Each allocation of the pool is a segment with one block. The pool's
//! other memory serves no allocation, and counts as idle.
//!
//! Owns: how allocations of the pool are added and removed. Only the driver divides the pool's memory.

use crate::config::rounding::MIN_BLOCK;
use crate::driver::{Call, DriverResult};
use crate::error::Result;
use crate::heap::blocks::block::Slots;
use crate::heap::tables::Heap;
use crate::ids::{BlockId, Class, PoolIndex};
use crate::span::Span;

impl Heap {
    /// Adds an allocation of the pool. Returns its block, which is not in the free index. The pool's total bytes are
    /// unknown from then on until [`Self::set_pool_held`].
    pub(crate) fn add_pooled_segment(&mut self, pool: PoolIndex, span: Span, slots: &mut Slots) -> BlockId {
        // The idle bytes are reduced first, so that no peak counts the bytes twice.
        let before = self.home.driver_pool.idle;
        self.set_idle(before.saturating_sub(span.size));
        let id = self.add_malloc_segment(pool, span, slots);
        self.home.driver_pool.blocks += span.size;
        self.home.driver_pool.spans.insert((span.start, span.size));
        id
    }

    /// Makes room for one more allocation of the pool. Returns the slot for its block.
    pub(crate) fn reserve_pooled(&mut self, pool: PoolIndex) -> Result<Slots> {
        self.home.driver_pool.spans.reserve(1)?;
        self.reserve_segment(pool)
    }

    /// Checks the addresses of an allocation of the pool as [`Heap::check_answer`] does. If all segments are
    /// allocations of the pool, the check needs no walk over the segments.
    pub(crate) fn check_pooled(&self, span: Span) -> DriverResult<()> {
        let spans = &self.home.driver_pool.spans;
        if spans.len() as u64 != self.journal.counters().segment.current() {
            return self.check_answer(Call::PoolMalloc, span, MIN_BLOCK);
        }
        let end = span.start.checked_add(span.size).filter(|_| span.start != 0 && span.start.is_multiple_of(MIN_BLOCK));
        let is_apart = |end: u64| spans.before((end, 0)).is_none_or(|(start, size)| start + size <= span.start);
        // If the addresses are wrong, the walk over all segments makes the text of the error.
        if end.is_some_and(is_apart) { Ok(()) } else { self.check_answer(Call::PoolMalloc, span, MIN_BLOCK) }
    }

    /// Removes a free allocation that was given back to the pool. Observers were told of the release before.
    pub(crate) fn remove_pooled_segment(&mut self, id: BlockId) {
        let Span { start, size } = self.blocks[id].span();
        self.remove_malloc_segment(id);
        self.home.driver_pool.spans.remove(&(start, size));
        self.home.driver_pool.blocks = self.home.driver_pool.blocks.saturating_sub(size);
        self.set_idle(self.home.driver_pool.idle + size);
    }

    /// Notes the total bytes that the pool holds.
    pub(crate) fn set_pool_held(&mut self, held: u64) {
        self.set_idle(held.saturating_sub(self.home.driver_pool.blocks));
    }

    /// Returns the total bytes that the pool holds, as last read.
    pub(crate) fn pool_held(&self) -> u64 {
        self.home.driver_pool.blocks + self.home.driver_pool.idle
    }

    /// Returns how many bytes of the pool are in blocks.
    pub(crate) fn pool_used(&self) -> u64 {
        self.home.driver_pool.blocks
    }

    fn set_idle(&mut self, idle: u64) {
        let before = std::mem::replace(&mut self.home.driver_pool.idle, idle);
        self.journal.held(Class::Large, before, idle);
    }
}

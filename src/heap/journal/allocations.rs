//! Events of blocks: a block is handed out, freed or divided.

use super::counters::Counter;
use super::flight::Entry;
use super::{Journal, PoolNames};
use crate::ids::{Class, PoolIndex};
use crate::report::observer::Action;
use crate::span::Span;

/// The figures of a handed-out block that events report.
#[derive(Clone, Copy)]
pub(in crate::heap) struct Allocation {
    pub(in crate::heap) address: u64,
    /// The bytes that the program requested.
    pub(in crate::heap) requested: u64,
    /// The bytes of the block.
    pub(in crate::heap) size: u64,
    pub(in crate::heap) pool: PoolIndex,
}

impl Allocation {
    const fn requested(&self) -> Span {
        Span::new(self.address, self.requested)
    }
}

impl Journal {
    /// Notes that a block was handed out.
    #[inline(always)]
    pub(in crate::heap) fn allocated(&mut self, block: Allocation, names: &impl PoolNames) {
        let Allocation { address, requested, size, pool } = block;
        let class = pool.class();
        let counters = &mut self.counters;
        counters.allocation.add(class, 1);
        counters.allocated_bytes.add(class, size);
        counters.active.add(class, 1);
        counters.active_bytes.add(class, size);
        counters.requested_bytes.add(class, requested);
        if size >= self.oversize_from {
            counters.oversize_allocations.add(Class::Large, 1);
        }
        self.tell_fast(Entry::alloc(address, requested, pool), names);
    }

    /// Notes that the program has freed a block that other streams may still use.
    pub(in crate::heap) fn free_requested(&mut self, block: Allocation, names: &impl PoolNames) {
        self.count_requested(&block);
        self.tell(Action::FreeRequested, block.requested(), block.pool, names);
    }

    /// Notes that every stream has finished with a block that the program had freed.
    pub(in crate::heap) fn free_completed(&mut self, block: Allocation, names: &impl PoolNames) {
        self.tell(Action::FreeCompleted, block.requested(), block.pool, names);
        self.count_completed(&block);
    }

    /// Notes that the program has freed a block that no stream uses any more.
    #[inline(always)]
    pub(in crate::heap) fn freed(&mut self, block: Allocation, names: &impl PoolNames) {
        self.count_completed(&block);
        self.count_requested(&block);
        self.tell_fast(Entry::freed(block.address, block.requested, block.pool), names);
    }

    #[inline(always)]
    fn count_requested(&mut self, block: &Allocation) {
        let class = block.pool.class();
        self.counters.allocation.sub(class, 1);
        self.counters.allocated_bytes.sub(class, block.size);
        if block.size >= self.oversize_from {
            self.counters.oversize_allocations.sub(Class::Large, 1);
        }
    }

    #[inline(always)]
    fn count_completed(&mut self, block: &Allocation) {
        let class = block.pool.class();
        self.counters.active.sub(class, 1);
        self.counters.active_bytes.sub(class, block.size);
        self.counters.requested_bytes.sub(class, block.requested);
    }

    /// Notes that one allocation became two: the first `at` bytes, and the rest. `block` is the allocation before the
    /// split.
    pub(in crate::heap) fn allocation_split(&mut self, block: Allocation, at: u64) {
        let class = block.pool.class();
        self.counters.allocation.add(class, 1);
        self.counters.active.add(class, 1);
        let oversize = |size: u64| u64::from(size >= self.oversize_from);
        let (before, after) = (oversize(block.size), oversize(at) + oversize(block.size - at));
        self.counters.oversize_allocations.add(Class::Large, after.saturating_sub(before));
        self.counters.oversize_allocations.sub(Class::Large, before.saturating_sub(after));
    }

    /// Counts free blocks that became part of a divided segment.
    #[inline]
    pub(in crate::heap) fn inactive_split_added(&mut self, class: Class, blocks: u64, bytes: u64) {
        self.counters.inactive_split.add(class, blocks);
        self.counters.inactive_split_bytes.add(class, bytes);
    }

    /// Counts free blocks of a divided segment that were handed out, or merged into a whole segment.
    #[inline]
    pub(in crate::heap) fn inactive_split_removed(&mut self, class: Class, blocks: u64, bytes: u64) {
        self.counters.inactive_split.sub(class, blocks);
        self.counters.inactive_split_bytes.sub(class, bytes);
    }

    /// Counts a free block of a divided segment into which other blocks merged. `added` and `merged` are numbers of
    /// blocks and their bytes. As in PyTorch, only the net change is counted.
    #[inline]
    pub(in crate::heap) fn inactive_split_merged(&mut self, class: Class, added: (u64, u64), merged: (u64, u64)) {
        net(&mut self.counters.inactive_split, class, added.0, merged.0);
        net(&mut self.counters.inactive_split_bytes, class, added.1, merged.1);
    }
}

#[inline]
fn net(counter: &mut Counter, class: Class, added: u64, removed: u64) {
    if added >= removed {
        counter.add(class, added - removed);
    } else {
        counter.sub(class, removed - added);
    }
}

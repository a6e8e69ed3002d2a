//! Events of memory: taken from the driver, given back, mapped, asleep, spilled.

use super::tell::Range;
use super::{Journal, PoolNames};
use crate::ids::{Class, PoolIndex};
use crate::report::observer::Action;
use crate::span::Span;

impl Journal {
    /// Notes that a segment was taken from the driver with `malloc`.
    pub(in crate::heap) fn segment_added(&mut self, span: Span, pool: PoolIndex, names: &impl PoolNames) {
        let class = pool.class();
        self.counters.segment.add(class, 1);
        self.count_taken(class, span.size);
        if span.size >= self.oversize_from {
            self.counters.oversize_segments.add(Class::Large, 1);
        }
        self.tell(Action::SegmentAlloc, span, pool, names);
    }

    /// Notes that a segment taken with `malloc` was given back. Observers were told before the driver was called.
    pub(in crate::heap) fn segment_removed(&mut self, size: u64, class: Class) {
        self.counters.segment.sub(class, 1);
        self.count_released(class, size);
        if size >= self.oversize_from {
            self.counters.oversize_segments.sub(Class::Large, 1);
        }
    }

    /// Notes that memory was mapped into a segment.
    pub(in crate::heap) fn memory_mapped(&mut self, range: Range, names: &impl PoolNames) {
        self.count_taken(range.pool.class(), range.span.size);
        self.tell_range(Action::SegmentMap, range, names);
    }

    /// Notes that memory of a segment was unmapped and given back.
    pub(in crate::heap) fn memory_unmapped(&mut self, range: Range, names: &impl PoolNames) {
        self.tell_range(Action::SegmentUnmap, range, names);
        self.count_released(range.pool.class(), range.span.size);
    }

    fn count_taken(&mut self, class: Class, bytes: u64) {
        self.counters.reserved_bytes.add(class, bytes);
        self.counters.num_device_alloc += 1;
    }

    fn count_released(&mut self, class: Class, bytes: u64) {
        self.counters.reserved_bytes.sub(class, bytes);
        self.counters.num_device_free += 1;
    }

    /// Notes that a part of the held memory changed its size: memory that failed calls left behind, the idle part of a
    /// driver's pool, or memory that falls asleep or wakes.
    pub(in crate::heap) fn held(&mut self, class: Class, before: u64, now: u64) {
        self.counters.reserved_bytes.add(class, now.saturating_sub(before));
        self.counters.reserved_bytes.sub(class, before.saturating_sub(now));
    }

    /// Notes that memory changed its class.
    pub(in crate::heap) fn reclassified(&mut self, size: u64, from: Class, to: Class) {
        self.counters.reserved_bytes.sub(from, size);
        self.counters.reserved_bytes.add(to, size);
    }

    /// Counts chunks that were mapped, at home or in views.
    pub(in crate::heap) fn mappings_added(&mut self, count: u64) {
        self.counters.mappings += count;
    }

    /// Counts mappings of chunks that were removed.
    pub(in crate::heap) fn mappings_removed(&mut self, count: u64) {
        self.counters.mappings -= count;
    }

    /// Notes that a view was built, with this many mappings.
    pub(in crate::heap) fn view_built(&mut self, mappings: u64) {
        self.counters.views_built += 1;
        self.counters.mappings += mappings;
    }

    /// Notes that an existing view served a request.
    pub(in crate::heap) fn view_reused(&mut self) {
        self.counters.views_reused += 1;
    }

    /// Notes that a view was dropped. The view's mappings were removed before.
    pub(in crate::heap) fn view_dropped(&mut self) {
        self.counters.views_dropped += 1;
    }

    /// Notes that all chunks of a private pool have fallen asleep.
    pub(in crate::heap) fn fell_asleep(&mut self) {
        self.counters.sleeps += 1;
    }

    /// Notes that all chunks of a private pool have woken.
    pub(in crate::heap) fn woke_up(&mut self) {
        self.counters.wakes += 1;
    }

    /// Notes that memory of the device was spilled to host memory.
    pub(in crate::heap) fn spilled(&mut self, class: Class, size: u64) {
        self.counters.reserved_bytes.sub(class, size);
        self.counters.spilled_bytes.add_again(Class::Large, size);
    }

    /// Notes that spilled memory came back to the device.
    pub(in crate::heap) fn returned(&mut self, class: Class, size: u64) {
        self.counters.reserved_bytes.add_again(class, size);
        self.dropped_spilled(size);
    }

    /// Notes that spilled memory was given back without a copy to the device.
    pub(in crate::heap) fn dropped_spilled(&mut self, size: u64) {
        self.counters.spilled_bytes.sub(Class::Large, size);
    }

    /// Notes that the host memory that is held outside of all chunks, because calls failed, changed its size.
    pub(in crate::heap) fn held_on_host(&mut self, before: u64, now: u64) {
        self.counters.spilled_bytes.add(Class::Large, now.saturating_sub(before));
        self.counters.spilled_bytes.sub(Class::Large, before.saturating_sub(now));
    }
}

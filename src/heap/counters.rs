//! Counters of all that an allocator has done.
//!
//! Owns: the counters behind [`Stats`]. They are written at every operation: three writes to add, one to subtract.

use crate::ids::{Class, StreamId};
use crate::report::stats::{
    HeadroomStats, PendingWaits, SpillStats, SplitStats, Stalls, Stat, StatByPool, Stats, Waits,
};

#[derive(Clone, Copy, Debug, Default)]
struct PoolCount {
    current: u64,
    peak: u64,
    /// All that was ever added, modulo 2^64, since a long run allocates more bytes than that. The part that was taken
    /// away is `added` less `current`.
    added: u64,
    /// `added`, and the part taken away, at the last reset of accumulated figures.
    added_at_reset: u64,
    freed_at_reset: u64,
}

impl PoolCount {
    fn stat(&self) -> Stat {
        Stat {
            current: self.current,
            peak: self.peak,
            allocated: self.added.wrapping_sub(self.added_at_reset),
            freed: self.added.wrapping_sub(self.current).wrapping_sub(self.freed_at_reset),
        }
    }

    fn reset_accumulated(&mut self) {
        self.added_at_reset = self.added;
        self.freed_at_reset = self.added.wrapping_sub(self.current);
    }
}

/// The counter behind a [`StatByPool`]: three writes to add, one to take away.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counter {
    pools: [PoolCount; 2],
    peak: u64,
}

impl Counter {
    pub(crate) fn add(&mut self, class: Class, amount: u64) {
        let pool = &mut self.pools[class as usize];
        pool.current += amount;
        pool.added = pool.added.wrapping_add(amount);
        pool.peak = pool.peak.max(pool.current);
        self.peak = self.peak.max(self.pools[0].current + self.pools[1].current);
    }

    /// Subtracts. More than the present value would be a broken invariant, and makes the counter 0.
    pub(crate) fn sub(&mut self, class: Class, amount: u64) {
        let pool = &mut self.pools[class as usize];
        debug_assert!(pool.current >= amount, "a counter would fall below 0");
        pool.current = pool.current.saturating_sub(amount);
    }

    /// Adds what was added before and taken away again, as no new amount.
    pub(crate) fn add_again(&mut self, class: Class, amount: u64) {
        let pool = &mut self.pools[class as usize];
        pool.current += amount;
        pool.peak = pool.peak.max(pool.current);
        self.peak = self.peak.max(self.pools[0].current + self.pools[1].current);
    }

    /// Returns the present value of one class.
    pub(crate) fn of(&self, class: Class) -> u64 {
        self.pools[class as usize].current
    }

    pub(crate) fn current(&self) -> u64 {
        self.pools[0].current + self.pools[1].current
    }

    /// Returns the highest value since the last reset of peaks.
    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }

    /// Returns all that was ever added, modulo 2^64.
    pub(crate) fn ever(&self) -> u64 {
        self.pools[0].added.wrapping_add(self.pools[1].added)
    }

    fn reset_peak(&mut self) {
        for pool in &mut self.pools {
            pool.peak = pool.current;
        }
        self.peak = self.current();
    }

    fn reset_accumulated(&mut self) {
        self.pools.iter_mut().for_each(PoolCount::reset_accumulated);
    }

    fn by_pool(&self) -> StatByPool {
        let [large, small] = [self.pools[0].stat(), self.pools[1].stat()];
        StatByPool {
            all: Stat {
                current: large.current + small.current,
                peak: self.peak,
                allocated: large.allocated.wrapping_add(small.allocated),
                freed: large.freed.wrapping_add(small.freed),
            },
            small_pool: small,
            large_pool: large,
        }
    }
}

/// All counters of an allocator.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) allocation: Counter,
    pub(crate) segment: Counter,
    pub(crate) active: Counter,
    pub(crate) inactive_split: Counter,
    pub(crate) allocated_bytes: Counter,
    pub(crate) reserved_bytes: Counter,
    pub(crate) active_bytes: Counter,
    pub(crate) inactive_split_bytes: Counter,
    pub(crate) requested_bytes: Counter,
    /// Memory of the machine.
    pub(crate) spilled_bytes: Counter,
    pub(crate) oversize_allocations: Counter,
    pub(crate) oversize_segments: Counter,
    pub(crate) num_alloc_retries: u64,
    pub(crate) num_ooms: u64,
    pub(crate) num_sync_all_streams: u64,
    pub(crate) num_device_alloc: u64,
    pub(crate) num_device_free: u64,
    pub(crate) mappings: u64,
    pub(crate) views_built: u64,
    pub(crate) views_reused: u64,
    pub(crate) views_dropped: u64,
    pub(crate) stream_waits: u64,
    pub(crate) waits: Waits,
    /// When the newest event was recorded for which the present request waits, and on which stream; 0 without a wait.
    pub(crate) newest_wait: (u64, StreamId),
    pub(crate) pending_waits: PendingWaits,
    pub(crate) splits: SplitStats,
    pub(crate) headroom: HeadroomStats,
    pub(crate) sleeps: u64,
    pub(crate) wakes: u64,
    pub(crate) spills: SpillStats,
    pub(crate) stalls: Stalls,
}

impl Counters {
    fn each(&mut self) -> [&mut Counter; 12] {
        [
            &mut self.allocation,
            &mut self.segment,
            &mut self.active,
            &mut self.inactive_split,
            &mut self.allocated_bytes,
            &mut self.reserved_bytes,
            &mut self.active_bytes,
            &mut self.inactive_split_bytes,
            &mut self.requested_bytes,
            &mut self.spilled_bytes,
            &mut self.oversize_allocations,
            &mut self.oversize_segments,
        ]
    }

    /// Returns the number of allocations and frees so far, modulo 2^64. It serves as a clock.
    pub(crate) fn operations(&self) -> u64 {
        let of = |pool: &PoolCount| pool.added.wrapping_mul(2).wrapping_sub(pool.current);
        of(&self.allocation.pools[0]).wrapping_add(of(&self.allocation.pools[1]))
    }

    /// Counts a GPU-side wait for an event that was recorded on a stream when [`Self::operations`] was `at`.
    pub(crate) fn add_stream_wait(&mut self, at: u64, awaited: StreamId) {
        self.stream_waits += 1;
        self.newest_wait = self.newest_wait.max((at, awaited));
        self.waits.add(self.operations().wrapping_sub(at));
    }

    pub(crate) fn reset_peak(&mut self) {
        self.each().into_iter().for_each(Counter::reset_peak);
        self.stalls.worst_ns = 0;
        self.waits.reset_peak();
        self.pending_waits.reset_peak();
    }

    pub(crate) fn reset_accumulated(&mut self) {
        self.each().into_iter().for_each(Counter::reset_accumulated);
        self.num_alloc_retries = 0;
        self.num_ooms = 0;
        self.num_sync_all_streams = 0;
        self.num_device_alloc = 0;
        self.num_device_free = 0;
        self.stalls = Stalls::default();
    }

    /// Returns a copy for users. The caller adds the figures that are not counted here.
    pub(crate) fn stats(&self) -> Stats {
        Stats {
            strategy: Default::default(),
            instead_of: None,
            allocation: self.allocation.by_pool(),
            segment: self.segment.by_pool(),
            active: self.active.by_pool(),
            inactive_split: self.inactive_split.by_pool(),
            allocated_bytes: self.allocated_bytes.by_pool(),
            reserved_bytes: self.reserved_bytes.by_pool(),
            active_bytes: self.active_bytes.by_pool(),
            inactive_split_bytes: self.inactive_split_bytes.by_pool(),
            requested_bytes: self.requested_bytes.by_pool(),
            oversize_allocations: self.oversize_allocations.by_pool().all,
            oversize_segments: self.oversize_segments.by_pool().all,
            num_alloc_retries: self.num_alloc_retries,
            num_ooms: self.num_ooms,
            num_sync_all_streams: self.num_sync_all_streams,
            num_device_alloc: self.num_device_alloc,
            num_device_free: self.num_device_free,
            max_split_size: None,
            mappings: self.mappings,
            view_mappings: 0,
            views: 0,
            view_address_space_bytes: 0,
            views_built: self.views_built,
            views_reused: self.views_reused,
            views_dropped: self.views_dropped,
            stream_waits: self.stream_waits,
            waits: self.waits,
            pending_waits: self.pending_waits,
            splits: self.splits,
            headroom: self.headroom,
            sleep: Default::default(),
            spilled_bytes: self.spilled_bytes.by_pool().all,
            spill_kept_bytes: 0,
            spills: self.spills,
            host_bytes: 0,
            guard: Default::default(),
            stalls: self.stalls,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_counts_allocations_and_frees() {
        let mut counters = Counters::default();
        for _ in 0..3 {
            counters.allocation.add(Class::Small, 1);
            counters.allocation.add(Class::Large, 1);
        }
        counters.allocation.sub(Class::Large, 1);
        counters.reset_accumulated();
        assert_eq!(counters.operations(), 7);
    }

    #[test]
    fn the_peak_of_all_pools_is_not_the_sum_of_their_peaks() {
        let mut counter = Counter::default();
        counter.add(Class::Small, 10);
        counter.sub(Class::Small, 10);
        counter.add(Class::Large, 7);
        let stat = counter.by_pool();
        assert_eq!((stat.small_pool.peak, stat.large_pool.peak, stat.all.peak), (10, 7, 10));
        assert_eq!(stat.all, Stat { current: 7, peak: 10, allocated: 17, freed: 10 });
    }

    #[test]
    fn resets_are_those_of_pytorch() {
        let mut counters = Counters::default();
        counters.allocation.add(Class::Small, 5);
        counters.allocation.sub(Class::Small, 2);
        counters.num_ooms = 3;
        counters.reset_peak();
        assert_eq!(counters.stats().allocation.all, Stat { current: 3, peak: 3, allocated: 5, freed: 2 });
        counters.reset_accumulated();
        assert_eq!(counters.stats().allocation.all, Stat { current: 3, peak: 3, allocated: 0, freed: 0 });
        assert_eq!(counters.stats().num_ooms, 0);
        counters.allocation.sub(Class::Small, 3);
        assert_eq!(counters.stats().allocation.all.freed, 3);
    }
}

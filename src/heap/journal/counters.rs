//! Counters of all operations of an allocator.
//!
//! Owns: the counters behind [`Stats`]. Every operation updates them: an addition makes three writes, a subtraction
//! one.

use super::times::add_wait;
use crate::ids::{Class, StreamId};
use crate::report::stats::{
    HeadroomStats, PendingWaits, SpillStats, SplitStats, Stalls, Stat, StatByPool, Stats, Waits,
};

#[derive(Clone, Copy, Debug, Default)]
struct PoolCount {
    current: u64,
    peak: u64,
    /// The sum of all additions, modulo 2^64, because a long run may allocate more than 2^64 bytes. The sum of all
    /// subtractions is `added` less `current`.
    added: u64,
    /// The sums of additions and of subtractions when the accumulated figures were last reset.
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

/// The counter behind a [`StatByPool`]. An addition makes three writes, a subtraction one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counter {
    pools: [PoolCount; 2],
    /// The highest value since the last reset of peaks or the beginning of the present window ([`Self::begin_window`]),
    /// whichever came last.
    peak: u64,
    /// The highest value from the last reset of peaks to the last call of [`Self::begin_window`], if the reset came
    /// first.
    peak_before_window: u64,
    /// The highest value from the last call of [`Self::begin_window`] to the last reset of peaks, if the call came
    /// first.
    peak_before_reset: u64,
}

impl Counter {
    pub(crate) fn add(&mut self, class: Class, amount: u64) {
        let pool = &mut self.pools[class as usize];
        pool.current += amount;
        pool.added = pool.added.wrapping_add(amount);
        pool.peak = pool.peak.max(pool.current);
        self.peak = self.peak.max(self.pools[0].current + self.pools[1].current);
    }

    /// Subtracts an amount. If the amount is above the present value, which a broken invariant causes, the value
    /// becomes 0.
    pub(crate) fn sub(&mut self, class: Class, amount: u64) {
        let pool = &mut self.pools[class as usize];
        debug_assert!(pool.current >= amount, "a counter would fall below 0");
        pool.current = pool.current.saturating_sub(amount);
    }

    /// Adds an amount that was added before and then subtracted. The amount does not count as newly added.
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
        self.peak.max(self.peak_before_window)
    }

    /// Returns the highest value since the last call (a window), and begins another window. Resets of peaks do not
    /// change this value.
    pub(super) fn begin_window(&mut self) -> u64 {
        let of_window = self.peak.max(std::mem::take(&mut self.peak_before_reset));
        self.peak_before_window = self.peak();
        self.peak = self.current();
        of_window
    }

    /// Returns the sum of all additions, modulo 2^64.
    pub(crate) fn ever(&self) -> u64 {
        self.pools[0].added.wrapping_add(self.pools[1].added)
    }

    fn reset_peak(&mut self) {
        for pool in &mut self.pools {
            pool.peak = pool.current;
        }
        self.peak_before_reset = self.peak_before_reset.max(self.peak);
        (self.peak, self.peak_before_window) = (self.current(), 0);
    }

    fn reset_accumulated(&mut self) {
        self.pools.iter_mut().for_each(PoolCount::reset_accumulated);
    }

    fn by_pool(&self) -> StatByPool {
        let [large, small] = [self.pools[0].stat(), self.pools[1].stat()];
        StatByPool {
            all: Stat {
                current: large.current + small.current,
                peak: self.peak(),
                allocated: large.allocated.wrapping_add(small.allocated),
                freed: large.freed.wrapping_add(small.freed),
            },
            small_pool: small,
            large_pool: large,
        }
    }
}

macro_rules! counters_of {
    (
        by_pool { $( $(#[$by_pool_doc:meta])* $by_pool:ident, )* }
        over_time { $( $(#[$over_time_doc:meta])* $over_time:ident, )* }
        since_reset { $( $(#[$reset_doc:meta])* $reset:ident: $reset_type:ty, )* }
        since_the_beginning { $( $(#[$kept_doc:meta])* $kept:ident: $kept_type:ty, )* }
        looked_up { $( $(#[$looked_up_doc:meta])* $looked_up:ident: $looked_up_type:ty, )* }
    ) => {
        /// All counters of an allocator.
        #[derive(Clone, Debug, Default)]
        pub(crate) struct Counters {
            $( pub(crate) $by_pool: Counter, )*
            $( pub(crate) $over_time: Counter, )*
            $( pub(crate) $reset: $reset_type, )*
            $( pub(crate) $kept: $kept_type, )*
            /// The newest event for which the present request waits: the number of the operation that recorded the
            /// event (0 without a wait), and the event's stream.
            pub(crate) newest_wait: (u64, StreamId),
            pub(crate) sleeps: u64,
            pub(crate) wakes: u64,
        }

        impl Counters {
            pub(crate) fn reset_peak(&mut self) {
                $( self.$by_pool.reset_peak(); )*
                $( self.$over_time.reset_peak(); )*
                self.stalls.worst_ns = 0;
                (self.waits.age_least, self.waits.age_most) = (None, 0);
                self.pending_waits.worst_ns = 0;
            }

            pub(crate) fn reset_accumulated(&mut self) {
                $( self.$by_pool.reset_accumulated(); )*
                $( self.$over_time.reset_accumulated(); )*
                $( self.$reset = Default::default(); )*
            }

            /// Returns a copy of the counters for users. The caller adds the figures that are not counted here.
            pub(crate) fn stats(&self) -> Stats {
                let mut stats = Stats::default();
                $( stats.$by_pool = self.$by_pool.by_pool(); )*
                $( stats.$over_time = self.$over_time.by_pool().all; )*
                $( stats.$reset = self.$reset; )*
                $( stats.$kept = self.$kept; )*
                stats
            }
        }
    };
}
seamalloc_report::statistics!(counters_of);

impl Counters {
    /// Returns the number of allocations and frees so far, modulo 2^64. The number serves as a clock.
    pub(crate) fn operations(&self) -> u64 {
        let of = |pool: &PoolCount| pool.added.wrapping_mul(2).wrapping_sub(pool.current);
        of(&self.allocation.pools[0]).wrapping_add(of(&self.allocation.pools[1]))
    }

    /// Counts a GPU-side wait for an event that was recorded on a stream when [`Self::operations`] returned `at`.
    pub(crate) fn add_stream_wait(&mut self, at: u64, awaited: StreamId) {
        self.stream_waits += 1;
        self.newest_wait = self.newest_wait.max((at, awaited));
        let age = self.operations().wrapping_sub(at);
        add_wait(&mut self.waits, age);
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
    fn a_window_has_its_own_peak_whatever_is_reset() {
        let mut counter = Counter::default();
        let reach = |counter: &mut Counter, value: u64| {
            counter.add(Class::Large, value);
            counter.sub(Class::Large, value);
        };
        reach(&mut counter, 9);
        assert_eq!((counter.begin_window(), counter.peak()), (9, 9));
        reach(&mut counter, 5);
        assert_eq!(counter.peak(), 9, "the peak is that of all windows");
        counter.reset_peak();
        reach(&mut counter, 3);
        assert_eq!((counter.peak(), counter.begin_window(), counter.peak()), (3, 5, 3));
        assert_eq!((counter.begin_window(), counter.peak()), (0, 3));
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

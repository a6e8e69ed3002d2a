//! Counting and timing of driver calls without a lock.
//!
//! Owns: the counters. The drivers decide which calls are counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::{Call, CallStat, CallStats};

/// [`CallStats`] that several threads add to.
#[derive(Debug)]
pub struct CallCounters {
    counts: [AtomicU64; Call::COUNT],
    nanoseconds: [AtomicU64; Call::COUNT],
    busy: AtomicU64,
    /// The time at which [`Self::clock_ns`] is 0.
    start: Instant,
}

impl Default for CallCounters {
    fn default() -> Self {
        let zeros = || [const { AtomicU64::new(0) }; Call::COUNT];
        Self { counts: zeros(), nanoseconds: zeros(), busy: AtomicU64::new(0), start: Instant::now() }
    }
}

impl CallCounters {
    /// Counts one call that began at `start` and ends now.
    pub fn add(&self, call: Call, start: Instant) {
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: no other memory depends on the figures, and a reader may see one call's count before its time.
        self.counts[call as usize].fetch_add(1, Ordering::Relaxed);
        self.nanoseconds[call as usize].fetch_add(ns, Ordering::Relaxed);
        self.busy.fetch_add(ns, Ordering::Relaxed);
    }

    /// Returns the real time since the counters were made, in nanoseconds.
    pub fn clock_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the figures so far.
    pub fn snapshot(&self) -> CallStats {
        CallStats::from_fn(|call| CallStat {
            count: self.counts[call as usize].load(Ordering::Relaxed),
            total_ns: self.nanoseconds[call as usize].load(Ordering::Relaxed),
        })
    }

    /// Returns the total time of all calls, in nanoseconds.
    pub fn busy_ns(&self) -> u64 {
        self.busy.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_is_counted_once_and_busy_is_the_sum() {
        let counters = CallCounters::default();
        let start = Instant::now();
        std::thread::scope(|scope| {
            for call in [Call::Map, Call::Unmap] {
                let counters = &counters;
                scope.spawn(move || (0..100).for_each(|_| counters.add(call, start)));
            }
        });
        let stats = counters.snapshot();
        assert_eq!(stats.get(Call::Map).count, 100);
        assert_eq!(stats.get(Call::Unmap).count, 100);
        assert_eq!(stats.get(Call::Create), CallStat::default());
        assert!(stats.get(Call::Map).total_ns > 0);
        assert_eq!(counters.busy_ns(), stats.total_ns());
    }
}

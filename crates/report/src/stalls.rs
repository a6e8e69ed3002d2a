//! The time that operations spent in the driver: a histogram of fixed size, so that counting allocates no memory.

/// Buckets of the histogram: bucket 0 holds stalls below 1 us, bucket i stalls from 2^(i-1) us to below 2^i us, and the
/// last bucket all longer stalls (from 4.2 s).
pub const STALL_BUCKETS: usize = 24;

/// Operations that called the driver, and the time that they spent in the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stalls {
    /// Operations that made any driver call.
    pub count: u64,
    /// The total time in the driver, in nanoseconds.
    pub total_ns: u64,
    /// The longest stall, in nanoseconds, since the last reset of peaks.
    pub worst_ns: u64,
    /// The number of stalls in each bucket; see [`STALL_BUCKETS`].
    pub by_us: [u64; STALL_BUCKETS],
}

impl Stalls {
    /// Returns the stalls since an earlier copy. `worst_ns` is not a difference: this figure counts since the last
    /// reset of peaks.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut out = *self;
        out.count = self.count.saturating_sub(earlier.count);
        out.total_ns = self.total_ns.saturating_sub(earlier.total_ns);
        for (now, before) in out.by_us.iter_mut().zip(earlier.by_us) {
            *now = now.saturating_sub(before);
        }
        out
    }

    /// Returns a time in nanoseconds that this part (0 to 1) of the stalls did not exceed. The time is the upper edge
    /// of a bucket, at most twice the exact figure, and never more than the longest stall. Returns 0 without stalls.
    #[must_use]
    pub fn percentile_ns(&self, part: f64) -> u64 {
        let total: u64 = self.by_us.iter().sum();
        let wanted = ((total as f64 * part.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.by_us.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                let edge = if bucket + 1 == STALL_BUCKETS { u64::MAX } else { 1000 << bucket };
                return edge.min(self.worst_ns);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_edges_of_buckets_and_never_beyond_the_worst() {
        let mut stalls = Stalls::default();
        assert_eq!(stalls.percentile_ns(0.99), 0);
        stalls.worst_ns = 3_000_000;
        (stalls.by_us[1], stalls.by_us[6], stalls.by_us[12]) = (98, 1, 1);
        assert_eq!(stalls.percentile_ns(0.5), 2000);
        assert_eq!(stalls.percentile_ns(0.99), 64_000);
        assert_eq!((stalls.percentile_ns(1.0), stalls.percentile_ns(7.0)), (3_000_000, 3_000_000));
        assert_eq!(stalls.percentile_ns(0.0), 2000, "the least is in the first bucket that holds any");
    }

    #[test]
    fn what_came_since_is_counted_alone() {
        let mut before = Stalls { count: 1, total_ns: 5000, worst_ns: 5000, ..Stalls::default() };
        before.by_us[3] = 1;
        let mut stalls = Stalls { count: 2, total_ns: 6500, ..before };
        stalls.by_us[1] = 1;
        let since = stalls.since(&before);
        assert_eq!((since.count, since.total_ns, since.by_us[1], since.by_us[3]), (1, 1500, 1, 0));
        assert_eq!(before.since(&stalls).count, 0, "the wrong way round is nothing");
    }
}

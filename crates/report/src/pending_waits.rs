//! Waits of the CPU for memory, before a request would be refused.

/// Requests that found too little memory, and for which the CPU waited until work on the GPU was done with freed memory
/// ([`Config::wait_ms`](seamalloc_config::Config::wait_ms)). Times are nanoseconds of the device's clock. On a
/// simulated device, times are units of the simulated clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PendingWaits {
    /// The number of requests that waited.
    pub requests: u64,
    /// The number of events that these requests waited for, each of them the end of some work that uses freed memory.
    pub events: u64,
    /// The number of waits for all work of the device, as the last resort.
    pub device: u64,
    /// The number of requests whose wait ended at the bound `wait_ms`.
    pub expired: u64,
    /// The total time that requests waited.
    pub total_ns: u64,
    /// The longest time that one request waited, since the last reset of peaks.
    pub worst_ns: u64,
}

impl PendingWaits {
    /// Returns the waits since an earlier copy. `worst_ns` is not a difference: this figure counts since the last reset
    /// of peaks.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(earlier.requests),
            events: self.events.saturating_sub(earlier.events),
            device: self.device.saturating_sub(earlier.device),
            expired: self.expired.saturating_sub(earlier.expired),
            total_ns: self.total_ns.saturating_sub(earlier.total_ns),
            worst_ns: self.worst_ns,
        }
    }
}

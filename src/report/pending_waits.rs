//! Waits of the CPU for memory, before a request would be refused.

/// Requests that found too little memory, and for which the CPU waited until work on the GPU was done with freed memory
/// ([`Config::wait_ms`](crate::Config::wait_ms)). Times are nanoseconds of the device's clock; on a simulated device,
/// units of its clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PendingWaits {
    /// The number of requests that waited.
    pub requests: u64,
    /// The number of events that they waited for, each the end of some work that uses freed memory.
    pub events: u64,
    /// The number of waits for all work of the device, as the last means.
    pub device: u64,
    /// The number of requests whose wait ended at the bound.
    pub expired: u64,
    /// The total time that requests waited.
    pub total_ns: u64,
    /// The longest time that one request waited, since the last reset of peaks.
    pub worst_ns: u64,
}

impl PendingWaits {
    /// Adds waits for `events` events, which took `ns` together.
    pub(crate) fn add_events(&mut self, events: u64, ns: u64) {
        self.events += events;
        self.total_ns = self.total_ns.saturating_add(ns);
    }

    /// Adds a request's wait for the device.
    pub(crate) fn add_device(&mut self, ns: u64) {
        self.device += 1;
        self.requests += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        self.worst_ns = self.worst_ns.max(ns);
    }

    /// Adds a request that waited for events, for `ns` together. Its waits, and the wait for the device in `last`, are
    /// added already.
    pub(crate) fn add_request(&mut self, ns: u64, expired: bool, last: &Self) {
        self.requests += 1 - last.device.min(1);
        self.expired += u64::from(expired);
        self.worst_ns = self.worst_ns.max(ns.saturating_add(last.total_ns));
    }

    /// Returns the waits since an earlier copy. `worst_ns` is not a difference: it counts since the last reset of
    /// peaks.
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

    pub(crate) fn reset_peak(&mut self) {
        self.worst_ns = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_add_up_and_the_worst_is_one_of_them() {
        let mut waits = PendingWaits::default();
        waits.add_events(3, 500);
        waits.add_request(500, false, &PendingWaits::default());
        let before = waits;
        waits.add_events(1, 150);
        let last = waits;
        waits.add_device(50);
        waits.add_request(150, true, &waits.since(&last));
        let all = PendingWaits { requests: 2, events: 4, device: 1, expired: 1, total_ns: 700, worst_ns: 500 };
        assert_eq!(waits, all);
        let last = PendingWaits { requests: 1, events: 1, device: 1, expired: 1, total_ns: 200, worst_ns: 500 };
        assert_eq!(waits.since(&before), last);
        waits.reset_peak();
        assert_eq!(waits, PendingWaits { worst_ns: 0, ..all });
    }
}

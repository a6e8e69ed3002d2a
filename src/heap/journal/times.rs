//! Sums of stalls and of waits.
//!
//! Owns: how an operation is added to the sums. `report` has the figures for users.

use crate::report::stats::{PendingWaits, STALL_BUCKETS, Stalls, Waits};

/// Adds an operation that spent `ns` nanoseconds in the driver. 0 ns means that the operation made no
/// driver call, which is also possible for a miss; such an operation is not counted.
pub(super) fn add_stall(stalls: &mut Stalls, ns: u64) {
    if ns == 0 {
        return;
    }
    stalls.count += 1;
    stalls.total_ns = stalls.total_ns.saturating_add(ns);
    stalls.worst_ns = stalls.worst_ns.max(ns);
    stalls.by_us[bucket_of(ns)] += 1;
}

fn bucket_of(ns: u64) -> usize {
    ((ns / 1000).checked_ilog2().map_or(0, |power| power as usize + 1)).min(STALL_BUCKETS - 1)
}

/// Adds a stream's wait for an event that was recorded `age` operations ago.
pub(super) fn add_wait(waits: &mut Waits, age: u64) {
    waits.age_total = waits.age_total.saturating_add(age);
    waits.age_least = Some(waits.age_least.map_or(age, |least| least.min(age)));
    waits.age_most = waits.age_most.max(age);
}

/// Adds waits of the CPU for `events` events, which took `ns` nanoseconds together.
pub(super) fn add_events(waits: &mut PendingWaits, events: u64, ns: u64) {
    waits.events += events;
    waits.total_ns = waits.total_ns.saturating_add(ns);
}

/// Adds a request's wait for the device, of `ns` nanoseconds.
pub(super) fn add_device(waits: &mut PendingWaits, ns: u64) {
    waits.device += 1;
    waits.requests += 1;
    waits.total_ns = waits.total_ns.saturating_add(ns);
    waits.worst_ns = waits.worst_ns.max(ns);
}

/// Adds a request that waited `ns` nanoseconds for events. Each of these waits was added before, and so was a wait of
/// the request for the device, if any: `last` has that wait.
pub(super) fn add_request(waits: &mut PendingWaits, ns: u64, expired: bool, last: &PendingWaits) {
    waits.requests += 1 - last.device.min(1);
    waits.expired += u64::from(expired);
    waits.worst_ns = waits.worst_ns.max(ns.saturating_add(last.total_ns));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_without_a_driver_call_is_no_stall() {
        let mut stalls = Stalls::default();
        for ns in [0, 7, 0, 5] {
            add_stall(&mut stalls, ns);
        }
        assert_eq!((stalls.count, stalls.total_ns, stalls.worst_ns, stalls.by_us[0]), (2, 12, 7, 2));
    }

    #[test]
    fn buckets_double_and_the_last_holds_the_rest() {
        for (ns, bucket) in [(1, 0), (999, 0), (1000, 1), (1999, 1), (2000, 2), (1_024_000, 11), (u64::MAX, 23)] {
            assert_eq!(bucket_of(ns), bucket, "{ns}");
        }
    }

    #[test]
    fn the_extremes_of_waits_are_kept() {
        let mut waits = Waits::default();
        [7, 3, 12].iter().for_each(|age| add_wait(&mut waits, *age));
        assert_eq!((waits.age_total, waits.age_least, waits.age_most), (22, Some(3), 12));
    }

    #[test]
    fn requests_add_up_and_the_worst_is_one_of_them() {
        let mut waits = PendingWaits::default();
        let figures = |waits: &PendingWaits| {
            (waits.requests, waits.events, waits.device, waits.expired, waits.total_ns, waits.worst_ns)
        };
        add_events(&mut waits, 3, 500);
        add_request(&mut waits, 500, false, &PendingWaits::default());
        let before = waits;
        add_events(&mut waits, 1, 150);
        let last = waits;
        add_device(&mut waits, 50);
        let since = waits.since(&last);
        add_request(&mut waits, 150, true, &since);
        assert_eq!(figures(&waits), (2, 4, 1, 1, 700, 500));
        assert_eq!(figures(&waits.since(&before)), (1, 1, 1, 1, 200, 500));
    }
}

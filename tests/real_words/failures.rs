//! Each call of the driver fails in turn while a program makes an operation.

use crate::device::{Calls, Fault};
use crate::length::rounds;
use seamalloc::driver::{Call, Status};
use std::collections::BTreeSet;

/// Makes attempts at an operation. In the first one no call fails; then `count` calls from each of its calls on fail, by turns.
/// Returns the kinds of calls that have failed.
///
/// The short form lets the first call of each kind fail, and one of twelve others, which differ between the ways to
/// fail.
pub(crate) fn fail_each(count: u64, status: Status, attempt: impl Fn(Fault) -> Calls) -> BTreeSet<Call> {
    let every = rounds(12, 1);
    let shift = count % every + u64::from(status == Status::OUT_OF_MEMORY);
    let none = attempt(Fault { nth: u64::MAX, count, status });
    assert_eq!(none.failed, []);
    let mut failed = BTreeSet::new();
    for (nth, call) in (1..).zip(&none.counted) {
        let before = &none.counted[..nth as usize - 1];
        if !before.contains(call) || (nth + shift).is_multiple_of(every) {
            failed.extend(attempt(Fault { nth, count, status }).failed);
        }
    }
    failed
}

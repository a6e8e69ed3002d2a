//! Driver calls that fail at random, one after the other, while the allocator is at work.
//!
//! Owns: the layer over the driver that refuses them. A thread says which of its calls fails next, so that the program's own
//! calls never do, and neither do those of an operation that the program could not take back.

use crate::random::Random;
use seamalloc::driver::{Call, Driver, DriverError, DriverResult, ForwardingDriver, Status};
use std::cell::Cell;
use std::sync::Arc;

/// The statuses that a failing call returns: shortage, which is overcome where possible, and worse.
const STATUSES: [Status; 4] = [Status::OUT_OF_MEMORY, Status::OUT_OF_MEMORY, Status::UNKNOWN, Status::INVALID_VALUE];
/// The call that fails is one of so many.
const CALLS: u64 = 12;

thread_local! {
    /// How many calls of this thread come before the one that fails, and what that answers.
    static NEXT: Cell<Option<(u64, Status)>> = const { Cell::new(None) };
}

/// Lets a call of those that `operate` makes fail, perhaps.
pub(crate) fn during<T>(random: &mut Random, operate: impl FnOnce() -> T) -> T {
    let status = STATUSES[random.below(STATUSES.len() as u64) as usize];
    NEXT.set(Some((random.below(CALLS), status)));
    let result = operate();
    NEXT.set(None);
    result
}

/// A driver of which calls fail.
pub(crate) struct Failing(pub(crate) Arc<dyn Driver>);

impl ForwardingDriver for Failing {
    fn inner(&self) -> &dyn Driver {
        &*self.0
    }

    fn make_call<T>(&self, call: Call, make: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
        match NEXT.get() {
            Some((0, status)) => {
                NEXT.set(None);
                return Err(DriverError::new(call, status, "made to fail"));
            }
            Some((before, status)) => NEXT.set(Some((before - 1, status))),
            None => {}
        }
        make(&*self.0)
    }
}

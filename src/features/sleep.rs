//! The callbacks that are called when a tag sleeps and wakes.
//!
//! Owns: the list of callbacks, and the call of one. The allocator's lock is not held during a call; this file does not
//! know the lock.

use crate::fallible::{Grown, TryCollect, TryPush};
use crate::features::pressure::CallbackId;
use crate::report::sleep::SleepNotice;
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

pub(crate) type Callback = Arc<dyn Fn(&SleepNotice) -> bool + Send + Sync>;

#[derive(Default)]
struct State {
    callbacks: Vec<(CallbackId, Callback)>,
    next: u64,
}

/// The callbacks of one allocator.
#[derive(Default)]
pub(crate) struct SleepCallbacks(Mutex<State>);

impl SleepCallbacks {
    pub(crate) fn add(&self, callback: Callback) -> Grown<CallbackId> {
        let mut state = self.0.lock();
        let id = CallbackId::from_number(state.next);
        state.callbacks.try_push((id, callback))?;
        state.next += 1;
        Ok(id)
    }

    pub(crate) fn remove(&self, id: CallbackId) -> bool {
        let mut state = self.0.lock();
        let at = state.callbacks.iter().position(|(of, _)| *of == id);
        let removed = at.map(|at| state.callbacks.remove(at));
        // The callback belongs to the program. Dropping it may run any code, so the lock is released first.
        drop(state);
        removed.is_some()
    }

    /// Returns all callbacks, in the order in which they were added.
    pub(crate) fn all(&self) -> Grown<Vec<Callback>> {
        self.0.lock().callbacks.iter().map(|(_, callback)| Arc::clone(callback)).try_to_vec()
    }
}

/// Calls a callback of the program. Returns whether the callback agrees; `false` if it panics.
pub(crate) fn call(callback: &Callback, notice: &SleepNotice) -> bool {
    catch_unwind(AssertUnwindSafe(|| callback(notice))).unwrap_or_else(|panic| {
        tracing::error!(stage = ?notice.stage, "a callback for sleep panicked");
        drop(catch_unwind(AssertUnwindSafe(|| drop(panic))));
        false
    })
}

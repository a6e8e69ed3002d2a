//! The callbacks that ask programs to free memory.
//!
//! Owns: the order of the calls, and the removal of a callback that panics. The allocator's lock is not held during a
//! call; this file does not know the lock.

use crate::fallible::{Grown, TryCollect, TryPush};
use crate::report::pressure::MemoryPressure;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::ThreadId;

/// Identifies a callback, to remove it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallbackId(u64);

impl CallbackId {
    /// Returns the callback's number, for programs that can store only numbers.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Returns the id with this number.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }
}

type Callback = Arc<dyn Fn(&MemoryPressure) -> bool + Send + Sync>;

#[derive(Default)]
struct State {
    callbacks: Vec<(CallbackId, Callback)>,
    next: u64,
    /// The threads that are calling callbacks at this moment.
    calling: Vec<ThreadId>,
}

/// The callbacks of one allocator.
#[derive(Default)]
pub(crate) struct Callbacks(Mutex<State>);

impl Callbacks {
    pub(crate) fn add(&self, callback: Callback) -> CallbackId {
        let mut state = self.0.lock();
        let id = CallbackId(state.next);
        state.next += 1;
        state.callbacks.push((id, callback));
        id
    }

    /// Removes a callback. Returns whether it existed.
    pub(crate) fn remove(&self, id: CallbackId) -> bool {
        let mut state = self.0.lock();
        let at = state.callbacks.iter().position(|(of, _)| *of == id);
        let removed = at.map(|at| state.callbacks.remove(at));
        // The callback belongs to the program. Dropping it may run any code, so the lock is released first.
        drop(state);
        removed.is_some()
    }

    /// Returns the calls for a request of this thread, in the order in which callbacks were added. Returns `None` if
    /// there are no callbacks, or if a callback makes the request, since calls would then recurse without end.
    pub(crate) fn begin(&self) -> Grown<Option<Calls<'_>>> {
        let mut state = self.0.lock();
        if state.callbacks.is_empty() {
            return Ok(None);
        }
        let thread = std::thread::current().id();
        if state.calling.contains(&thread) {
            return Ok(None);
        }
        let left = state.callbacks.iter().map(|(id, _)| *id).try_to_vec()?.into();
        state.calling.try_push(thread)?;
        Ok(Some(Calls { of: self, thread, left }))
    }

    fn get(&self, id: CallbackId) -> Option<Callback> {
        let state = self.0.lock();
        state.callbacks.iter().find(|(of, _)| *of == id).map(|(_, callback)| Arc::clone(callback))
    }
}

/// The callbacks that one thread still has to call for its request. `Calls` holds ids and no callbacks, so dropping it
/// runs no code of the program. Its `Drop` takes the lock of the callback list, so the value must not be dropped under
/// that lock.
pub(crate) struct Calls<'a> {
    of: &'a Callbacks,
    thread: ThreadId,
    left: VecDeque<CallbackId>,
}

impl Calls<'_> {
    /// Calls the next callback that was not removed meanwhile, and removes it if it panics. Returns whether the
    /// callback freed anything, or `None` after the last callback.
    pub(crate) fn next(&mut self, pressure: &MemoryPressure) -> Option<bool> {
        let (id, callback) = loop {
            let id = self.left.pop_front()?;
            if let Some(callback) = self.of.get(id) {
                break (id, callback);
            }
        };
        let freed = catch_unwind(AssertUnwindSafe(|| callback(pressure)));
        Some(freed.unwrap_or_else(|panic| {
            tracing::error!("a callback for memory pressure panicked; it is not called any more");
            drop(catch_unwind(AssertUnwindSafe(|| {
                self.of.remove(id);
                drop((panic, callback));
            })));
            // The callback may have freed memory before the panic.
            true
        }))
    }
}

impl Drop for Calls<'_> {
    fn drop(&mut self) {
        let mut state = self.of.0.lock();
        if let Some(at) = state.calling.iter().position(|thread| *thread == self.thread) {
            state.calling.swap_remove(at);
        }
    }
}

//! The observers of an allocator, and how each observer is told of an event.
//!
//! Owns: the list of observers, and the rule that an observer that panics gets no more events, while the other
//! observers do.

use crate::error::Result;
use crate::report::observer::{Event, Observer, ObserverId};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// All observers. The first observer is set without an allocation of host memory. The others are added.
#[derive(Default)]
pub(super) struct Observers {
    first: Option<Box<dyn Observer>>,
    others: Vec<(ObserverId, Box<dyn Observer>)>,
    last_id: u64,
}

impl Observers {
    pub(in crate::heap) fn is_empty(&self) -> bool {
        self.first.is_none() && self.others.is_empty()
    }

    /// Replaces the first observer. Returns the previous first observer.
    pub(super) fn set_first(&mut self, observer: Option<Box<dyn Observer>>) -> Option<Box<dyn Observer>> {
        std::mem::replace(&mut self.first, observer)
    }

    /// Adds an observer. Returns the observer's id. On an error the observer is dropped.
    pub(in crate::heap) fn add(&mut self, observer: Box<dyn Observer>) -> Result<ObserverId> {
        self.others.try_reserve(1)?;
        self.last_id += 1;
        let id = ObserverId::new(self.last_id);
        self.others.push((id, observer));
        Ok(id)
    }

    /// Removes an observer that was added. Returns the observer, or `None`.
    pub(in crate::heap) fn remove(&mut self, id: ObserverId) -> Option<Box<dyn Observer>> {
        let at = self.others.iter().position(|(of, _)| *of == id)?;
        Some(self.others.remove(at).1)
    }

    /// Tells all observers of an event, in the order in which they were added.
    pub(in crate::heap) fn tell(&mut self, event: &Event) {
        if let Some(first) = &mut self.first
            && !told(first, event)
        {
            drop_quietly(self.first.take());
        }
        let mut at = 0;
        while let Some((_, observer)) = self.others.get_mut(at) {
            if told(observer, event) {
                at += 1;
            } else {
                drop_quietly(self.others.remove(at));
            }
        }
    }
}

/// Tells one observer of an event. An observer is the program's code, called in the middle of a change, and a panic of
/// this code must not end the change. Returns `false` if the observer panicked.
fn told(observer: &mut Box<dyn Observer>, event: &Event) -> bool {
    match catch_unwind(AssertUnwindSafe(|| observer.event(event))) {
        Ok(()) => true,
        Err(panic) => {
            tracing::error!(action = event.action.name(), "an observer panicked; it is told nothing more");
            drop_quietly(panic);
            false
        }
    }
}

/// Drops a value of the program, and catches a panic of the value's destructor.
fn drop_quietly<T>(value: T) {
    drop(catch_unwind(AssertUnwindSafe(|| drop(value))));
}

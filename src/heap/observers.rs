//! The observers of an allocator, and how each is told of an event.
//!
//! Owns: which there are, and that one which panics is told nothing more, while the others are.

use crate::error::Result;
use crate::report::observer::{Event, Observer, ObserverId};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// All observers. The first is set without a word of the host's memory; the others are added.
#[derive(Default)]
pub(super) struct Observers {
    first: Option<Box<dyn Observer>>,
    others: Vec<(ObserverId, Box<dyn Observer>)>,
    last_id: u64,
}

impl Observers {
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none() && self.others.is_empty()
    }

    /// Replaces the first. Returns the one before.
    pub(super) fn set_first(&mut self, observer: Option<Box<dyn Observer>>) -> Option<Box<dyn Observer>> {
        std::mem::replace(&mut self.first, observer)
    }

    /// Adds one. On an error it is dropped.
    pub(super) fn add(&mut self, observer: Box<dyn Observer>) -> Result<ObserverId> {
        self.others.try_reserve(1)?;
        self.last_id += 1;
        let id = ObserverId(self.last_id);
        self.others.push((id, observer));
        Ok(id)
    }

    /// Removes one that was added.
    pub(super) fn remove(&mut self, id: ObserverId) -> Option<Box<dyn Observer>> {
        let at = self.others.iter().position(|(of, _)| *of == id)?;
        Some(self.others.remove(at).1)
    }

    /// Tells all of an event, in the order in which they came.
    pub(super) fn tell(&mut self, event: &Event) {
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

/// Tells one observer. It is the program's code, called in the middle of a change: a panic in it must not end that change.
/// Returns `false` if it panicked.
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

/// Drops what belongs to the program, and may panic once more.
fn drop_quietly<T>(value: T) {
    drop(catch_unwind(AssertUnwindSafe(|| drop(value))));
}

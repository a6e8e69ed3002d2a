//! Each event goes to the flight recorder, and to the observers if there are any.

use super::flight::Entry;
use super::{Journal, PoolNames};
use crate::error::Result;
use crate::ids::{PoolIndex, StreamId};
use crate::report::observer::{Action, Event, Observer, ObserverId};
use crate::span::Span;

/// The figures of a range of memory that events report.
#[derive(Clone, Copy)]
pub(in crate::heap) struct Range {
    pub(in crate::heap) span: Span,
    pub(in crate::heap) pool: PoolIndex,
    /// Whether the memory moves between streams, so that it belongs to no single stream.
    pub(in crate::heap) shared: bool,
}

impl Journal {
    /// Reports an action on a block of a pool, or on a request.
    pub(in crate::heap) fn tell(&mut self, action: Action, span: Span, pool: PoolIndex, names: &impl PoolNames) {
        self.flight.note(Entry::of(action, span, pool));
        if self.observers.is_empty() {
            return;
        }
        let (stream, pool) = names.name(pool);
        self.send(Event { action, address: span.start, size: span.size, stream, pool });
    }

    /// Reports a range that joined a segment or left a segment.
    pub(in crate::heap) fn tell_range(&mut self, action: Action, range: Range, names: &impl PoolNames) {
        if !self.is_told() {
            return;
        }
        let Range { span, pool, shared } = range;
        let (stream, owner) = names.segment_name(pool, shared);
        // An entry of the recorder has only a pool, from which the stream is found later.
        let of = if stream == StreamId::DEFAULT { PoolIndex::DEFAULT } else { pool };
        self.flight.note(Entry::of(action, span, of));
        self.send(Event { action, address: span.start, size: span.size, stream, pool: owner });
    }

    /// Reports an operation of the hot path.
    #[inline(always)]
    pub(super) fn tell_fast(&mut self, entry: Entry, names: &impl PoolNames) {
        if !self.flight.push(entry) {
            self.tell_slowly(entry, names);
        }
    }

    #[cold]
    fn tell_slowly(&mut self, entry: Entry, names: &impl PoolNames) {
        self.flight.push_slowly(entry);
        if self.observers.is_empty() {
            return;
        }
        let (span, (stream, pool)) = (entry.span(), names.name(pool_of(entry, names)));
        for action in entry.actions() {
            self.send(Event { action: *action, address: span.start, size: span.size, stream, pool });
        }
    }

    /// Returns whether an observer or the flight recorder is told of changes.
    pub(in crate::heap) fn is_told(&self) -> bool {
        self.flight.is_on() || !self.observers.is_empty()
    }

    /// Makes each operation tell the observers, if there are any.
    fn listen(&mut self) {
        self.flight.listen(!self.observers.is_empty());
    }

    fn send(&mut self, event: Event) {
        if self.observers.is_empty() {
            return;
        }
        self.observers.tell(&event);
        if self.observers.is_empty() {
            self.listen();
        }
    }

    /// Replaces the first observer. Returns the previous first observer.
    pub(crate) fn set_observer(&mut self, observer: Option<Box<dyn Observer>>) -> Option<Box<dyn Observer>> {
        let before = self.observers.set_first(observer);
        self.listen();
        before
    }

    /// Adds an observer. Returns the observer's id.
    pub(crate) fn add_observer(&mut self, observer: Box<dyn Observer>) -> Result<ObserverId> {
        let id = self.observers.add(observer)?;
        self.listen();
        Ok(id)
    }

    /// Removes an observer that was added. Returns the observer, or `None`.
    pub(crate) fn remove_observer(&mut self, id: ObserverId) -> Option<Box<dyn Observer>> {
        let removed = self.observers.remove(id);
        self.listen();
        removed
    }
}

/// Returns the pool of an entry. A size beyond every address space, which a faulty driver may give, overflows into the
/// pool's bits. If such an entry names no existing pool, the default pool is returned.
pub(super) fn pool_of(entry: Entry, names: &impl PoolNames) -> PoolIndex {
    let pool = entry.pool();
    if names.exists(pool) { pool } else { PoolIndex::DEFAULT }
}

//! The events that an observer gets: blocks, segments that come and go, and memory that moves between segments.
//!
//! PyTorch's viewer replays the history backwards from a snapshot. So at every event, the segments in the history must
//! agree with the snapshots before and after byte for byte, and a block may be live only inside a segment.

use super::flight::Entry;
use crate::error::Result;
use crate::heap::blocks::block::Kind;
use crate::heap::snapshot::Shown;
use crate::heap::tables::Heap;
use crate::ids::{BlockId, PoolIndex, StreamId};
use crate::report::observer::{Action, Event, Observer, ObserverId};
use crate::span::Span;

impl Heap {
    /// Assigns a free block to another pool.
    pub(crate) fn assign(&mut self, id: BlockId, pool: PoolIndex) {
        let before = std::mem::replace(&mut self.blocks[id].pool, pool);
        if before != pool {
            self.notify_moved(id, before);
        }
    }

    /// Reports that a block which is not live came from another pool, if snapshots show that pool's memory in another
    /// segment.
    #[inline(never)]
    pub(in crate::heap) fn notify_moved(&mut self, id: BlockId, before: PoolIndex) {
        if !self.is_told() {
            return;
        }
        let (kind, pool, span) = (self.blocks[id].kind, self.blocks[id].pool, self.blocks[id].span());
        if self.shown(kind, before) != self.shown(kind, pool) {
            self.notify_range(Action::SegmentLeft, kind, span, before);
            self.notify_range(Action::SegmentJoined, kind, span, pool);
        }
    }

    /// Reports that a range joined a segment or left it.
    pub(in crate::heap) fn notify_range(&mut self, action: Action, kind: Kind, span: Span, pool: PoolIndex) {
        if !self.is_told() {
            return;
        }
        let Shown { stream, pool: owner, .. } = self.shown(kind, pool);
        // The recorder keeps a pool, which has the stream.
        let of = if stream == StreamId::DEFAULT { PoolIndex::DEFAULT } else { pool };
        self.flight.note(Entry::of(action, span, of));
        self.send(Event { action, address: span.start, size: span.size, stream, pool: owner });
    }

    /// Reports an action on a block of a pool, or on a request.
    pub(crate) fn notify(&mut self, action: Action, span: Span, pool: PoolIndex) {
        self.flight.note(Entry::of(action, span, pool));
        if self.observers.is_empty() {
            return;
        }
        let (stream, pool) = (self.pools[pool].stream, self.owner_of(pool));
        self.send(Event { action, address: span.start, size: span.size, stream, pool });
    }

    /// Notes an operation of the hot path, and tells the observer if there is one.
    #[inline(always)]
    pub(in crate::heap) fn tell(&mut self, entry: Entry) {
        if !self.flight.push(entry) {
            self.tell_slowly(entry);
        }
    }

    #[cold]
    fn tell_slowly(&mut self, entry: Entry) {
        self.flight.push_slowly(entry);
        if self.observers.is_empty() {
            return;
        }
        let (span, pool) = (entry.span(), self.pool_of_entry(entry));
        let (stream, pool) = (self.pools[pool].stream, self.owner_of(pool));
        for action in entry.actions() {
            self.send(Event { action: *action, address: span.start, size: span.size, stream, pool });
        }
    }

    /// Returns the pool of an entry. Sizes beyond every address space, which a faulty driver may give, overflow into
    /// the pool's bits: if such an entry names no existing pool, the default pool is returned.
    pub(super) fn pool_of_entry(&self, entry: Entry) -> PoolIndex {
        let pool = entry.pool();
        if pool.slot() < self.pools.len() { pool } else { PoolIndex::DEFAULT }
    }

    /// Returns whether an observer or the flight recorder is told of changes.
    pub(super) fn is_told(&self) -> bool {
        self.flight.is_on() || !self.observers.is_empty()
    }

    /// Makes each operation tell the observers, if there are any.
    pub(super) fn listen(&mut self) {
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

    /// Replaces the first observer. Returns the previous one.
    pub(crate) fn set_observer(&mut self, observer: Option<Box<dyn Observer>>) -> Option<Box<dyn Observer>> {
        let before = self.observers.set_first(observer);
        self.listen();
        before
    }

    /// Adds an observer.
    pub(crate) fn add_observer(&mut self, observer: Box<dyn Observer>) -> Result<ObserverId> {
        let id = self.observers.add(observer)?;
        self.listen();
        Ok(id)
    }

    /// Removes an observer that was added.
    pub(crate) fn remove_observer(&mut self, id: ObserverId) -> Option<Box<dyn Observer>> {
        let removed = self.observers.remove(id);
        self.listen();
        removed
    }
}

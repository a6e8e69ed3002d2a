//! What an observer is told: of blocks, of segments that come and go, and of memory that goes from one to another.
//!
//! PyTorch's viewer plays the history backwards from a snapshot. So each byte has to leave and to join segments in the
//! history as it does in the snapshots before and after, and no block may be live where no segment is, at any event.

use super::block::Kind;
use super::snapshot::Shown;
use super::tables::Heap;
use crate::ids::{BlockId, PoolIndex};
use crate::report::observer::{Action, Event};
use crate::span::Span;
use std::panic::{AssertUnwindSafe, catch_unwind};

impl Heap {
    /// A free block is of another pool from now on.
    pub(crate) fn assign(&mut self, id: BlockId, pool: PoolIndex) {
        let before = std::mem::replace(&mut self.blocks[id].pool, pool);
        if self.observer.is_some() {
            self.notify_moved(id, before);
        }
    }

    /// Says that a block which is not live came from another pool, where snapshots show it in another segment.
    pub(super) fn notify_moved(&mut self, id: BlockId, before: PoolIndex) {
        let (kind, pool, span) = (self.blocks[id].kind, self.blocks[id].pool, self.blocks[id].span());
        if before != pool && self.shown(kind, before) != self.shown(kind, pool) {
            self.notify_range(Action::SegmentLeft, kind, span, before);
            self.notify_range(Action::SegmentJoined, kind, span, pool);
        }
    }

    /// Says that a range came to a segment or left it.
    pub(super) fn notify_range(&mut self, action: Action, kind: Kind, span: Span, pool: PoolIndex) {
        if self.observer.is_some() {
            let Shown { stream, pool, .. } = self.shown(kind, pool);
            self.send(Event { action, address: span.start, size: span.size, stream, pool });
        }
    }

    /// Says what happened to a block of a pool, or to a request.
    pub(crate) fn notify(&mut self, action: Action, span: Span, pool: PoolIndex) {
        if self.observer.is_none() {
            return;
        }
        let (stream, pool) = (self.pools[pool].stream, self.owner_of(pool));
        self.send(Event { action, address: span.start, size: span.size, stream, pool });
    }

    fn send(&mut self, event: Event) {
        let Some(observer) = &mut self.observer else { return };
        // It is the program's code, called halfway through a change: a panic must not end the change there.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| observer.event(&event))) {
            tracing::error!(action = event.action.name(), "the observer panicked; it is told nothing more");
            let observer = self.observer.take();
            drop(catch_unwind(AssertUnwindSafe(|| drop((panic, observer)))));
        }
    }
}

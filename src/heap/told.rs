//! What an observer is told: of blocks, of segments that come and go, and of memory that goes from one to another.
//!
//! PyTorch's viewer plays the history backwards from a snapshot. So each byte has to leave and to join segments in the
//! history as it does in the snapshots before and after, and no block may be live where no segment is, at any event.

use super::Heap;
use super::picture::Shown;
use crate::blocks::{Block, BlockId, Kind};
use crate::observer::{Action, Event};
use std::panic::{AssertUnwindSafe, catch_unwind};

impl Heap {
    /// A free block is of another pool from now on.
    pub(crate) fn assign(&mut self, id: BlockId, pool: u32) {
        let before = std::mem::replace(&mut self.blocks[id].pool, pool);
        if self.observer.is_some() {
            self.moved(id, before);
        }
    }

    /// Says that a block which is not live came from another pool, where snapshots show it in another segment.
    pub(super) fn moved(&mut self, id: BlockId, before: u32) {
        let Block { kind, address, size, pool, .. } = self.blocks[id];
        if before != pool && self.shown(kind, before) != self.shown(kind, pool) {
            self.emit_range(Action::SegmentLeft, kind, (address, size), before);
            self.emit_range(Action::SegmentJoined, kind, (address, size), pool);
        }
    }

    /// Says that a range, address and bytes, came to a segment or left it.
    pub(super) fn emit_range(&mut self, action: Action, kind: Kind, (address, size): (u64, u64), pool: u32) {
        if self.observer.is_some() {
            let Shown { stream, pool, .. } = self.shown(kind, pool);
            self.tell(Event { action, address, size, stream, pool });
        }
    }

    /// Says what happened to a block of a pool, or to a request.
    pub(crate) fn emit(&mut self, action: Action, address: u64, size: u64, pool: u32) {
        if self.observer.is_none() {
            return;
        }
        let (stream, pool) = (self.pools[pool as usize].stream, self.owner_of(pool));
        self.tell(Event { action, address, size, stream, pool });
    }

    fn tell(&mut self, event: Event) {
        let Some(observer) = &mut self.observer else { return };
        // It is the program's code, called halfway through a change: a panic must not end the change there.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| observer.event(&event))) {
            tracing::error!(action = event.action.name(), "the observer panicked; it is told nothing more");
            let observer = self.observer.take();
            drop(catch_unwind(AssertUnwindSafe(|| drop((panic, observer)))));
        }
    }
}

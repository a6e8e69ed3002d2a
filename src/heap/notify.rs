//! The events of the heap's memory that the journal gets: segments that are added or removed, and memory that moves
//! between segments.
//!
//! PyTorch's viewer replays the history backwards from a snapshot. So at every event, the segments in the history must
//! agree with the snapshots before and after the event, byte for byte, and a block may be live only inside a segment.

use super::blocks::block::{Block, Kind};
use super::journal::Journal;
use super::journal::allocations::Allocation;
use super::journal::flight_log::Kept;
use super::journal::tell::Range;
use super::pools::shown::Shown;
use super::tables::Heap;
use crate::error::Result;
use crate::ids::{BlockId, PoolIndex};
use crate::report::observer::Action;
use crate::span::Span;

impl Heap {
    /// Returns the journal, for reports of events that change no table.
    pub(crate) fn journal_mut(&mut self) -> &mut Journal {
        &mut self.journal
    }

    /// Returns the operations that the flight recorder keeps, the oldest first.
    pub(crate) fn flight(&self) -> Result<Kept> {
        self.journal.kept(&self.pools)
    }

    /// Assigns a free block to another pool.
    pub(crate) fn assign(&mut self, id: BlockId, pool: PoolIndex) {
        let before = std::mem::replace(&mut self.blocks[id].pool, pool);
        if before != pool {
            self.notify_moved(id, before);
        }
    }

    /// Reports that a block which is not live came from another pool, if snapshots show the previous pool's memory in
    /// another segment.
    #[inline(never)]
    pub(super) fn notify_moved(&mut self, id: BlockId, before: PoolIndex) {
        if !self.journal.is_told() {
            return;
        }
        let (kind, pool, span) = (self.blocks[id].kind, self.blocks[id].pool, self.blocks[id].span());
        if self.shown(kind, before) != self.shown(kind, pool) {
            self.notify_range(Action::SegmentLeft, kind, span, before);
            self.notify_range(Action::SegmentJoined, kind, span, pool);
        }
    }

    /// Reports that a range joined a segment or left a segment.
    pub(super) fn notify_range(&mut self, action: Action, kind: Kind, span: Span, pool: PoolIndex) {
        let range = self.range(kind, span, pool);
        self.journal.tell_range(action, range, &self.pools);
    }

    /// Returns how a snapshot shows the memory of a pool.
    pub(super) fn shown(&self, kind: Kind, pool: PoolIndex) -> Shown {
        self.pools.shown(pool, self.is_shared(kind))
    }

    /// Returns a range in the form that events report.
    pub(super) fn range(&self, kind: Kind, span: Span, pool: PoolIndex) -> Range {
        Range { span, pool, shared: self.is_shared(kind) }
    }

    /// Returns whether memory of this kind belongs to no single stream. PyTorch's viewer joins mapped ranges only if
    /// they are of one stream. Memory at home moves between streams all the time, and when a private pool ends, even
    /// live blocks move. So all memory at home is shown under one stream.
    fn is_shared(&self, kind: Kind) -> bool {
        kind == Kind::Home && self.rules.home_is_shared
    }

    /// Reports an action on a block of a pool, or on a request.
    pub(crate) fn notify(&mut self, action: Action, span: Span, pool: PoolIndex) {
        self.journal.tell(action, span, pool, &self.pools);
    }
}

/// Returns a block in the form that events report.
#[inline(always)]
pub(super) fn allocation_of(block: &Block) -> Allocation {
    let Block { address, requested, size, pool, .. } = *block;
    Allocation { address, requested, size, pool }
}

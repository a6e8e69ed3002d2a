//! The flight recorder: the last operations of a heap, in a ring. The recorder can be off.
//!
//! Owns: how an operation is written in 16 bytes, and the ring. This module does not use the heap. `flight_log.rs`
//! turns entries back into events.
//!
//! ```text
//! word 0   address, a multiple of 16            | kind of entry (4 bits)
//! word 1   pool (17 bits)                       | size in bytes (47 bits)
//! ```
//! Chunks that fall asleep and chunks that wake share one kind. Their sizes are even, and the lowest bit is set for a
//! chunk that wakes. A hit writes one entry from values in registers, reads no clock, and looks up no stream. An
//! operation that calls the driver writes one more entry with the time. The few operations that give a pool to another
//! stream write one more entry with the pool's previous stream.

use crate::error::Result;
use crate::fallible::with_room;
use crate::ids::{PoolIndex, StreamId};
use crate::report::observer::Action;
use crate::span::Span;

/// The ring grows in steps of this many entries (4 KiB), so that a program with few operations touches few pages of the
/// ring. A recorder that is off has a ring of one step: writing an entry takes no longer than checking whether the
/// recorder is on.
const STEP: usize = 256;
/// The place of the next entry while an observer listens. This place is beyond the end of the ring, so that each entry
/// takes the slow path, which tells the observer.
const CLOSED: usize = usize::MAX;

const KIND: u64 = 15;
/// The bits of a size: user addresses of x86-64 have no more bits.
const SIZE_BITS: u32 = 47;
const SIZE: u64 = (1 << SIZE_BITS) - 1;

/// The kinds of entries.
const ALLOC: u64 = 0;
const SPILLED: u64 = 1;
const FREE_REQUESTED: u64 = 2;
const FREE_COMPLETED: u64 = 3;
const SEGMENT_ALLOC: u64 = 4;
const SEGMENT_FREE: u64 = 5;
const SEGMENT_MAP: u64 = 6;
const SEGMENT_UNMAP: u64 = 7;
const SEGMENT_LEFT: u64 = 8;
const SEGMENT_JOINED: u64 = 9;
const OOM: u64 = 10;
/// The request and the completion of a free that waits for no stream.
const FREED: u64 = 11;
/// A mark, which is no operation: word 1 is the time, in microseconds since 1970.
const TIME: u64 = 12;
/// A mark, which is no operation: word 1 is the stream to which a pair of pools belonged until then. The upper bits of
/// word 0 have the number of the pair's large pool.
const POOL_WAS: u64 = 13;
const RETURNED: u64 = 14;
/// A chunk falls asleep or, with [`IS_AWAKE`], wakes.
const SLEEP: u64 = 15;
/// The lowest bit of a size. Sizes of chunks are whole granules and do not use this bit.
const IS_AWAKE: u64 = 1;

/// One operation, or a mark.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    what: u64,
    amount: u64,
}

impl Entry {
    #[inline(always)]
    const fn new(kind: u64, address: u64, size: u64, pool: PoolIndex) -> Self {
        Self { what: address | kind, amount: size | (pool.slot() as u64) << SIZE_BITS }
    }

    /// Returns the entry of an allocation.
    #[inline(always)]
    pub(super) const fn alloc(address: u64, requested: u64, pool: PoolIndex) -> Self {
        Self::new(ALLOC, address, requested, pool)
    }

    /// Returns the entry of a free that waits for no stream.
    #[inline(always)]
    pub(in crate::heap) const fn freed(address: u64, requested: u64, pool: PoolIndex) -> Self {
        Self::new(FREED, address, requested, pool)
    }

    /// Returns the entry of any operation except an allocation and a free that waits for no stream.
    pub(in crate::heap) const fn of(action: Action, span: Span, pool: PoolIndex) -> Self {
        let kind = match action {
            Action::Alloc => ALLOC,
            Action::FreeRequested => FREE_REQUESTED,
            Action::FreeCompleted => FREE_COMPLETED,
            Action::SegmentAlloc => SEGMENT_ALLOC,
            Action::SegmentFree => SEGMENT_FREE,
            Action::SegmentMap => SEGMENT_MAP,
            Action::SegmentUnmap => SEGMENT_UNMAP,
            Action::SegmentLeft => SEGMENT_LEFT,
            Action::SegmentJoined => SEGMENT_JOINED,
            Action::Oom => OOM,
            Action::Spilled => SPILLED,
            Action::Returned => RETURNED,
            // Chunks that fall asleep or wake.
            _ => SLEEP,
        };
        let awake = if matches!(action, Action::Awake) { IS_AWAKE } else { 0 };
        // The size of a refused request may exceed the bits of a size.
        let size = if span.size > SIZE { SIZE } else { span.size };
        Self::new(kind, span.start & !KIND, size | awake, pool)
    }

    /// Returns an entry that only marks the time, in microseconds since 1970.
    pub(in crate::heap) const fn time(us: u64) -> Self {
        Self { what: TIME, amount: us }
    }

    /// Returns an entry that only marks a change: a pair of pools (small and large) belonged to this stream until now.
    pub(super) const fn pool_was(large: PoolIndex, stream: StreamId) -> Self {
        Self { what: (large.slot() as u64) << 4 | POOL_WAS, amount: stream.0 }
    }

    /// Returns the mark of the entry, or `None` for an operation.
    pub(super) const fn as_mark(self) -> Option<Mark> {
        match self.kind() {
            TIME => Some(Mark::Time(self.amount)),
            POOL_WAS => Some(Mark::PoolWas(PoolIndex::of_slot((self.what >> 4) as usize), StreamId(self.amount))),
            _ => None,
        }
    }

    const fn kind(self) -> u64 {
        self.what & KIND
    }

    /// Returns whether the entry is a mark rather than an operation.
    pub(super) const fn is_mark(self) -> bool {
        matches!(self.kind(), TIME | POOL_WAS)
    }

    /// Returns the addresses of the operation.
    pub(in crate::heap) const fn span(self) -> Span {
        let size = self.amount & SIZE;
        Span::new(self.what & !KIND, if self.kind() == SLEEP { size & !IS_AWAKE } else { size })
    }

    /// Returns the pool of the operation.
    pub(in crate::heap) const fn pool(self) -> PoolIndex {
        PoolIndex::of_slot((self.amount >> SIZE_BITS) as usize)
    }

    /// Returns the actions of the entry in order: one or two actions, or none for a mark.
    pub(super) const fn actions(self) -> &'static [Action] {
        match self.kind() {
            ALLOC => &[Action::Alloc],
            FREE_REQUESTED => &[Action::FreeRequested],
            FREE_COMPLETED => &[Action::FreeCompleted],
            SEGMENT_ALLOC => &[Action::SegmentAlloc],
            SEGMENT_FREE => &[Action::SegmentFree],
            SEGMENT_MAP => &[Action::SegmentMap],
            SEGMENT_UNMAP => &[Action::SegmentUnmap],
            SEGMENT_LEFT => &[Action::SegmentLeft],
            SEGMENT_JOINED => &[Action::SegmentJoined],
            OOM => &[Action::Oom],
            SPILLED => &[Action::Spilled],
            RETURNED => &[Action::Returned],
            SLEEP if self.amount & IS_AWAKE == 0 => &[Action::Asleep],
            SLEEP => &[Action::Awake],
            FREED => &[Action::FreeRequested, Action::FreeCompleted],
            _ => &[],
        }
    }
}

/// The meaning of an entry that is a mark, not an operation: a time, or the previous stream of a pair of pools (small
/// and large).
pub(super) enum Mark {
    Time(u64),
    PoolWas(PoolIndex, StreamId),
}

/// The last operations of a heap.
pub(crate) struct FlightRecorder {
    entries: Vec<Entry>,
    /// The place of the next entry. The place is beyond the end of the ring if the entry has to take the slow path.
    at: usize,
    /// The place of the next entry while an observer listens and `at` is [`CLOSED`].
    parked: usize,
    /// How often the ring was filled to its end.
    laps: u64,
    /// The number of marks (entries that are no operations) written so far.
    marks: u64,
    /// The number of entries for which the ring has room.
    capacity: usize,
    is_on: bool,
}

impl FlightRecorder {
    /// Makes a recorder of this many operations. With 0, the recorder is off.
    pub(in crate::heap) fn new(operations: usize) -> Result<Self> {
        let (is_on, capacity) = if operations == 0 { (false, STEP) } else { (true, operations) };
        let mut entries = with_room(capacity)?;
        entries.resize(capacity.min(STEP), Entry::default());
        Ok(Self { entries, at: 0, parked: 0, laps: 0, marks: 0, capacity, is_on })
    }

    /// Returns whether the recorder is on.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Returns the most operations that the recorder keeps.
    pub(in crate::heap) fn capacity(&self) -> usize {
        if self.is_on { self.capacity } else { 0 }
    }

    /// Writes an entry. Returns `false`, and writes no entry, if [`Self::push_slowly`] has to write it.
    #[inline(always)]
    pub(in crate::heap) fn push(&mut self, entry: Entry) -> bool {
        match self.entries.get_mut(self.at) {
            Some(place) => {
                *place = entry;
                self.at += 1;
                true
            }
            None => false,
        }
    }

    /// Writes an entry by the slow path: at the end of the ring's used part or of the whole ring, or for an observer.
    #[cold]
    pub(super) fn push_slowly(&mut self, entry: Entry) {
        let is_closed = self.at == CLOSED;
        let mut at = if is_closed { self.parked } else { self.at };
        let len = self.entries.len();
        if at >= len && len < self.capacity {
            // The memory was reserved when the recorder was made.
            self.entries.resize(self.capacity.min(len + STEP), Entry::default());
        } else if at >= len {
            self.laps += 1;
            at = 0;
        }
        if let Some(place) = self.entries.get_mut(at) {
            *place = entry;
        }
        *if is_closed { &mut self.parked } else { &mut self.at } = at + 1;
    }

    /// Writes an entry.
    pub(in crate::heap) fn note(&mut self, entry: Entry) {
        if !self.push(entry) {
            self.push_slowly(entry);
        }
    }

    /// Writes a mark (an entry that is no operation), unless the recorder is off.
    pub(in crate::heap) fn mark(&mut self, entry: Entry) {
        if self.is_on {
            self.marks += 1;
            self.note(entry);
        }
    }

    /// Sends every entry by the slow path while `listens` is true.
    pub(super) fn listen(&mut self, listens: bool) {
        match (listens, self.at == CLOSED) {
            (true, false) => (self.parked, self.at) = (self.at, CLOSED),
            (false, true) => self.at = self.parked,
            _ => {}
        }
    }

    /// Returns the entries that are kept, the oldest first.
    pub(in crate::heap) fn kept(&self) -> impl DoubleEndedIterator<Item = Entry> + '_ {
        let at = (if self.at == CLOSED { self.parked } else { self.at }).min(self.entries.len());
        let (new, old) = self.entries.split_at_checked(at).unwrap_or((&self.entries, &[]));
        let old = if self.laps > 0 { old } else { &[] };
        old.iter().chain(new).copied().filter(|_| self.is_on)
    }

    /// Returns the number of operations so far, and the number of operations that the ring still has.
    pub(in crate::heap) fn counts(&self) -> (u64, u64) {
        if !self.is_on {
            return (0, 0);
        }
        let at = if self.at == CLOSED { self.parked } else { self.at };
        let written = self.laps * self.entries.len() as u64 + at as u64;
        let kept = self.kept().filter(|entry| !entry.is_mark()).count() as u64;
        (written.saturating_sub(self.marks), kept)
    }
}

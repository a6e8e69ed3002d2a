//! What happens in a step: which large requests are made, and when each is freed.
//!
//! Owns: the records of the present step. A record is 32 bytes, and a step of training has some thousand.

use crate::fallible::{Grown, TryPush, filled};
use crate::heap::{Heap, State};
use crate::ids::{BlockId, PoolIndex};
use crate::span::Span;
use std::hash::BuildHasher;

/// A step of fewer large requests is not planned.
pub(super) const LEAST_REQUESTS: usize = 8;
/// The most requests of a step that is planned.
pub(super) const MAX_REQUESTS: usize = 1 << 20;
/// The most frees that are watched until other streams have passed. Of more, the later ones count as passed at once.
const MAX_WATCHED: usize = 256;
/// The moment of a free that has not come.
pub(super) const NEVER: u32 = u32::MAX;
/// The address of a request without a place.
pub(super) const NOWHERE: u64 = 0;

/// What tells one request from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// Bytes, rounded.
    pub(super) size: u64,
    /// The large pool of its stream.
    pub(super) pool: PoolIndex,
}

/// A request of the present step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) key: Key,
    pub(super) block: BlockId,
    pub(super) lower: u32,
    /// When the last stream had passed its free; [`NEVER`] before that.
    pub(super) upper: u32,
    /// Whether the program has freed it.
    pub(super) is_freed: bool,
}

/// A block of an earlier step that was freed in this one.
#[derive(Clone, Debug)]
pub(super) struct Earlier {
    pub(super) key: Key,
    pub(super) upper: u32,
    /// Its place among the requests of earlier steps: the older, the less. 0: it was not noted.
    pub(super) age: u64,
    /// Where it lay, if in one piece; or in which pieces.
    pub(super) at: Span,
    pub(super) pieces: Vec<Span>,
}

impl Earlier {
    /// Returns where it lay.
    pub(super) fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        std::iter::once(self.at).chain(self.pieces.iter().copied()).filter(|span| span.size > 0)
    }
}

fn age(step: u32, number: u32) -> u64 {
    (u64::from(step) << 32) | u64::from(number)
}

/// A moment of a step, and how many requests came before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub(super) records: usize,
    pub(super) moment: u32,
}

/// A step that has ended.
#[derive(Debug, Default)]
pub(super) struct Ended {
    pub(super) records: Vec<Record>,
    pub(super) earlier: Vec<Earlier>,
    pub(super) moments: u32,
    pub(super) is_partial: bool,
}

impl Ended {
    /// Returns a hash of the requests in their order.
    pub(super) fn signature(&self) -> u64 {
        signature(&self.records)
    }
}

/// Returns a hash of requests in their order.
pub(super) fn signature(records: &[Record]) -> u64 {
    let hasher = rustc_hash::FxBuildHasher;
    records.iter().fold(0, |all, record| hasher.hash_one((all, record.key)))
}

/// The records of the present step.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    pub(super) records: Vec<Record>,
    pub(super) earlier: Vec<Earlier>,
    pub(super) moment: u32,
    /// For each slot of the table of blocks: the step and the number of the record whose block it last was.
    of_block: Vec<(u32, u32)>,
    step: u32,
    /// Freed blocks that other streams still use, with the numbers of their records.
    watched: Vec<(BlockId, u32)>,
    /// Whether something could not be recorded.
    pub(super) is_partial: bool,
}

impl Recorder {
    /// Returns whether a block at home is free for large requests, or is of the present step or the one before it.
    pub(super) fn is_open(&self, heap: &Heap, id: BlockId) -> bool {
        let block = heap.block(id);
        match block.state {
            State::Free => !block.pool.is_small() && !heap.is_private(block.pool),
            State::Pending => true,
            State::Allocated => {
                let step = self.of_block.get(id.0 as usize).map_or(0, |(step, _)| *step);
                step != 0 && step.wrapping_add(1) >= self.step
            }
            _ => false,
        }
    }

    /// Returns where the step is now.
    pub(super) fn position(&self) -> Position {
        Position { records: self.records.len(), moment: self.moment }
    }

    /// Ends the step at an earlier position, or the present one. What came after it belongs to the next step. In a program that
    /// repeats itself it takes no memory: lists are used by turns.
    pub(super) fn end_at(&mut self, end: Position, into: &mut Ended) -> Grown<()> {
        let Position { records: count, moment } = end;
        let count = count.min(self.records.len());
        let Ended { records: ended, earlier, .. } = &mut *into;
        ended.clear();
        earlier.clear();
        ended.try_reserve(self.records.len().saturating_sub(count))?;
        earlier.try_reserve(self.earlier.len() + count)?;
        // They come to hold what is left for the next step, and then change places with the lists of the ended one.
        ended.extend_from_slice(self.records.get(count..).unwrap_or_default());
        self.records.truncate(count);
        std::mem::swap(ended, &mut self.records);
        let crossing = |(_, record): &(u32, &mut Record)| record.upper != NEVER && record.upper > moment;
        for (number, record) in (0..).zip(ended.iter_mut()).filter(crossing) {
            earlier.push(Earlier {
                key: record.key,
                upper: record.upper - moment,
                age: age(self.step, number),
                at: Span::default(),
                pieces: Vec::new(),
            });
            record.upper = NEVER;
        }
        self.earlier.retain_mut(|of| {
            if of.upper > moment {
                earlier.push(Earlier { upper: of.upper - moment, pieces: std::mem::take(&mut of.pieces), ..*of });
            }
            of.upper <= moment
        });
        earlier.sort_unstable_by_key(|of| of.upper);
        std::mem::swap(earlier, &mut self.earlier);
        (into.moments, into.is_partial) = (moment, std::mem::take(&mut self.is_partial));
        self.begin_next(count as u32, moment);
        Ok(())
    }

    /// Numbers the records anew from the beginning of the next step.
    fn begin_next(&mut self, count: u32, moment: u32) {
        // Records of step 0 are nobody's.
        let before = self.step;
        self.step = before.wrapping_add(1).max(1);
        self.moment = self.moment.saturating_sub(moment);
        for (number, record) in (0_u32..).zip(&mut self.records) {
            record.lower = record.lower.saturating_sub(moment);
            if record.upper != NEVER {
                record.upper = record.upper.saturating_sub(moment);
            }
            // The slot may be another block's since.
            if let Some(slot) = self.of_block.get_mut(record.block.0 as usize)
                && *slot == (before, number + count)
            {
                *slot = (self.step, number);
            }
        }
        self.watched.retain_mut(|(_, number)| {
            let is_next = *number >= count;
            *number = number.wrapping_sub(count);
            is_next
        });
    }

    /// Notes a request that was served.
    #[inline]
    pub(super) fn served(&mut self, heap: &Heap, key: Key, block: BlockId) {
        if !self.watched.is_empty() {
            self.look_at_watched(heap);
        }
        let number = self.records.len();
        let noted = number < MAX_REQUESTS && self.note_block(block, number as u32).is_ok();
        let record = Record { key, block, lower: self.moment, upper: NEVER, is_freed: false };
        self.is_partial |= !noted || self.records.try_push(record).is_err();
        self.moment = self.moment.saturating_add(1);
    }

    #[inline]
    fn note_block(&mut self, block: BlockId, number: u32) -> Grown<()> {
        let slot = block.0 as usize;
        if slot >= self.of_block.len() {
            self.grow(slot)?;
        }
        self.of_block[slot] = (self.step, number);
        Ok(())
    }

    #[cold]
    fn grow(&mut self, slot: usize) -> Grown<()> {
        let len = (slot + 1).next_power_of_two();
        let mut grown = filled((0, 0), len)?;
        grown[..self.of_block.len()].copy_from_slice(&self.of_block);
        self.of_block = grown;
        Ok(())
    }

    /// Notes that the program frees a block. `in_use`: other streams may use it still.
    pub(super) fn freed(&mut self, heap: &Heap, block: BlockId, in_use: bool) {
        let noted = self.of_block.get(block.0 as usize).copied().filter(|(step, _)| *step == self.step);
        match noted {
            Some((_, number)) => {
                if let Some(record) = self.records.get_mut(number as usize) {
                    (record.upper, record.is_freed) = (self.moment, true);
                }
                if in_use && self.watched.len() < MAX_WATCHED {
                    self.is_partial |= self.watched.try_push((block, number)).is_err();
                }
            }
            None => {
                let of = heap.block(block);
                let key = Key { size: of.size, pool: of.pool.large() };
                let mut pieces = Vec::new();
                let mut spans = heap.home_spans(block);
                let at = spans.next().unwrap_or_default();
                let listed = spans.try_for_each(|span| pieces.try_push(span));
                let noted = self.of_block.get(block.0 as usize).map_or(0, |(step, number)| age(*step, *number));
                let earlier = Earlier { key, upper: self.moment, age: noted, at, pieces };
                let full = self.earlier.len() >= MAX_REQUESTS;
                self.is_partial |= full || listed.is_err() || self.earlier.try_push(earlier).is_err();
            }
        }
        self.moment = self.moment.saturating_add(1);
    }

    /// Notes which freed blocks other streams have passed since.
    #[cold]
    fn look_at_watched(&mut self, heap: &Heap) {
        let Self { watched, records, moment, .. } = self;
        watched.retain(|(block, number)| {
            let waits = heap.block(*block).state == State::Pending;
            if let Some(record) = records.get_mut(*number as usize) {
                record.upper = *moment;
            }
            waits
        });
    }

    /// Returns the bytes of host memory that the records take.
    pub(super) fn host_bytes(&self) -> usize {
        self.records.capacity() * size_of::<Record>()
            + self.earlier.capacity() * size_of::<Earlier>()
            + self.of_block.capacity() * size_of::<(u32, u32)>()
    }
}

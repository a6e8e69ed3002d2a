//! Requests that live on into the next step.
//!
//! Owns: which ones they are, and where they lie. They have the same places in every plan, so that a step finds free what its own
//! plan has free, whatever step came before it.
//!
//! ```text
//! step of length 5    |1|2|3|4|aaaaaa|bb|      |    1 to 4: gradients, which the next step frees
//! step of length 8    |1|2|3|4|aaaaaaaaa|bbb|  |
//! ```

use super::recorder::{Earlier, Ended, Key, NEVER, NOWHERE, Record};
use crate::fallible::{Grown, TryPush, filled, with_room};
use crate::span::Span;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Which requests live on in the next step, and until when.
pub(super) struct Carried {
    /// By record; 0: not at all, as far as is known.
    pub(super) to: Vec<u32>,
    /// By block of an earlier step: whether a request of this one takes its part in the next.
    pub(super) is_matched: Vec<bool>,
}

impl Carried {
    /// Matches blocks that an earlier step left with those that this one leaves, each in the order of their requests: where a
    /// program repeats itself, each is freed at that moment of the next step at which its predecessor was.
    pub(super) fn of(records: &[Record], earlier: &[Earlier]) -> Grown<Self> {
        let mut in_order: Vec<usize> = with_room(earlier.len())?;
        in_order.extend(0..earlier.len());
        in_order.sort_by_key(|index| earlier[*index].age);
        let mut waiting: FxHashMap<Key, VecDeque<usize>> = FxHashMap::default();
        for index in in_order {
            waiting.try_reserve(1)?;
            let queue = waiting.entry(earlier[index].key).or_default();
            queue.try_reserve(1)?;
            queue.push_back(index);
        }
        let mut carried = Self { to: filled(0, records.len())?, is_matched: filled(false, earlier.len())? };
        for (number, record) in records.iter().enumerate().filter(|(_, record)| record.upper == NEVER) {
            let Some(queue) = waiting.get_mut(&record.key) else { continue };
            let Some(index) = queue.front().copied().filter(|index| earlier[*index].upper <= record.lower) else {
                continue;
            };
            queue.pop_front();
            carried.to[number] = earlier[index].upper;
            carried.is_matched[index] = true;
        }
        Ok(carried)
    }

    /// Returns whether a request is still live when the next step makes it again: in each step it lies where its predecessor does not, so
    /// that only two steps together have a place for it, as where a program keeps its last output until it has the next one.
    pub(super) fn outlives_its_step(ended: &Ended) -> Grown<bool> {
        let Ended { records, earlier, .. } = ended;
        let half = records.len() / 2;
        let halves = records.iter().zip(records.iter().skip(half));
        if records.len() == 2 * half && halves.take(half).all(|(one, other)| one.key == other.key) {
            return Ok(false);
        }
        let mut late: FxHashMap<Key, u32> = FxHashMap::default();
        for of in earlier {
            late.try_reserve(1)?;
            let upper = late.entry(of.key).or_default();
            *upper = of.upper.max(*upper);
        }
        let outlives = |record: &Record| late.get(&record.key).is_some_and(|upper| *upper > record.lower);
        Ok(records.iter().any(|record| record.upper == NEVER && outlives(record)))
    }

    /// Returns the bytes of the requests that the program has not freed, and that took nobody's part.
    pub(super) fn left(&self, records: &[Record]) -> u64 {
        let left = records.iter().zip(&self.to).filter(|(record, to)| !record.is_freed && **to == 0);
        left.map(|(record, _)| record.key.size).sum()
    }
}

/// Where requests lie that live on into the next step: the addresses of each size and stream, in the order of the requests.
#[derive(Debug, Default)]
pub(super) struct CommonPlaces {
    places: FxHashMap<Key, Vec<u64>>,
}

impl CommonPlaces {
    /// Returns the place of each request, in ranges that a plan may use: the one that it has already, or a new one, from the
    /// beginning of the ranges from `first_whole` on. `NOWHERE`: there is none.
    pub(super) fn places(
        &mut self,
        keys: impl Iterator<Item = Key>,
        ranges: &[Span],
        first_whole: usize,
    ) -> Grown<Vec<u64>> {
        let mut sorted: Vec<Span> = with_room(ranges.len())?;
        sorted.extend_from_slice(ranges);
        sorted.sort_unstable_by_key(|span| span.start);
        let is_open = |span: Span| {
            let after = sorted.partition_point(|range| range.start <= span.start);
            after.checked_sub(1).is_some_and(|index| span.end() <= sorted[index].end())
        };
        let mut room = Room { ranges: ranges.get(first_whole..).unwrap_or_default(), taken: self.taken()?, at: 0 };
        let (mut places, mut ordinals) = (Vec::new(), FxHashMap::<Key, usize>::default());
        for key in keys {
            ordinals.try_reserve(1)?;
            let ordinal = ordinals.entry(key).or_default();
            self.places.try_reserve(1)?;
            let known = self.places.entry(key).or_default();
            match known.get_mut(*ordinal) {
                Some(place) if is_open(Span::new(*place, key.size)) => places.try_push(*place)?,
                Some(place) => {
                    let found = room.take(key.size);
                    *place = if found == NOWHERE { *place } else { found };
                    places.try_push(found)?;
                }
                None => {
                    let found = room.take(key.size);
                    if found != NOWHERE {
                        known.try_push(found)?;
                    }
                    places.try_push(found)?;
                }
            }
            *ordinal += 1;
        }
        Ok(places)
    }

    /// Returns what all places take, in the order of their addresses.
    fn taken(&self) -> Grown<Vec<Span>> {
        let mut taken: Vec<Span> = with_room(self.places.values().map(Vec::len).sum())?;
        for (key, places) in &self.places {
            taken.extend(places.iter().map(|place| Span::new(*place, key.size)));
        }
        taken.sort_unstable_by_key(|span| span.start);
        Ok(taken)
    }

    /// Returns the bytes of host memory that the table takes.
    pub(super) fn host_bytes(&self) -> usize {
        let lists = self.places.values().map(|places| places.capacity() * size_of::<u64>()).sum::<usize>();
        lists + self.places.capacity() * size_of::<(Key, Vec<u64>)>()
    }
}

/// What is left of ranges for new places, from their beginnings on.
struct Room<'a> {
    ranges: &'a [Span],
    /// What older places take.
    taken: Vec<Span>,
    /// The address in the first range from which on it is free; 0: its start.
    at: u64,
}

impl Room<'_> {
    fn take(&mut self, size: u64) -> u64 {
        while let Some((range, others)) = self.ranges.split_first() {
            let mut at = self.at.max(range.start);
            let first = self.taken.partition_point(|span| span.end() <= at);
            for span in self.taken.get(first..).unwrap_or_default() {
                if span.start >= at + size {
                    break;
                }
                at = span.end();
            }
            if at + size <= range.end() {
                self.at = at + size;
                return at;
            }
            (self.ranges, self.at) = (others, 0);
        }
        NOWHERE
    }
}

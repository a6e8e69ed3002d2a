//! The records of guard mode: allocations, live and freed, by address.
//!
//! Owns: the records, and the choice of the record to which an address belongs.

use crate::backing::GUARD_RANGE;
use crate::ids::StreamId;
use crate::report::guard::{Explanation, Freed, FreedMemory, GuardedAllocation, Place};
use std::collections::{BTreeMap, VecDeque};

/// The most freed allocations that are remembered of those that were not guarded. Each record takes about 200 bytes.
const FREED_KEPT: usize = 1 << 16;

/// An allocation, and the state of its checks.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) allocation: GuardedAllocation,
    /// The bytes of memory before the allocation in its mapping.
    pub(super) slack: u64,
    /// Whether the bytes around the allocation were filled and have not been checked.
    pub(super) has_canary: bool,
    /// Whether the allocation was filled at its free and has not been checked.
    pub(super) is_poisoned: bool,
    /// Whether the allocation's stream has ended. The stream's handle may now belong to another stream, which does not
    /// own the allocation.
    pub(super) is_of_no_stream: bool,
    /// The streams that use the allocation according to the program, with the number of the last use on each.
    pub(super) uses: Vec<(StreamId, u64)>,
}

impl Record {
    /// Returns whether the allocation was made for this stream, and the stream has not ended.
    pub(super) fn is_of(&self, stream: StreamId) -> bool {
        self.allocation.stream == stream && !self.is_of_no_stream
    }

    /// Notes that a stream has ended and its work is done.
    pub(super) fn forget_stream(&mut self, stream: StreamId) {
        self.is_of_no_stream |= self.allocation.stream == stream;
        self.uses.retain(|(of, _)| *of != stream);
    }

    /// Returns the place of an address in the allocation or at its edge; `None` for other addresses.
    fn place(&self, address: u64) -> Option<Place> {
        let GuardedAllocation { address: start, size, rounded, guarded, .. } = self.allocation;
        let around = if guarded { GUARD_RANGE } else { 0 };
        if address < start {
            let distance = start - address;
            return (guarded && distance <= self.slack + around).then_some(Place::Before(distance));
        }
        let offset = address - start;
        if offset < size {
            return Some(Place::Inside(offset));
        }
        (offset < rounded + around).then_some(Place::Behind(offset - size))
    }
}

/// The records of allocations.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// The number of allocations made.
    made: u64,
    live: BTreeMap<u64, Record>,
    /// The last allocation that was freed at each address.
    freed: BTreeMap<u64, Record>,
    /// The records of `freed` that are not guarded, oldest first, as addresses and numbers of allocations.
    unguarded: VecDeque<(u64, u64)>,
}

impl Records {
    /// Returns the number of allocations made.
    pub(super) fn made(&self) -> u64 {
        self.made
    }

    /// Counts an allocation. Returns its number.
    pub(super) fn number(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    pub(super) fn add(&mut self, allocation: GuardedAllocation, slack: u64, has_canary: bool) {
        let (is_poisoned, is_of_no_stream, uses) = (false, false, Vec::new());
        let record = Record { allocation, slack, has_canary, is_poisoned, is_of_no_stream, uses };
        self.live.insert(allocation.address, record);
    }

    /// Returns the live allocation that starts at an address.
    pub(super) fn live(&self, address: u64) -> Option<&Record> {
        self.live.get(&address)
    }

    /// Returns every live allocation.
    pub(super) fn all_live(&mut self) -> impl Iterator<Item = &mut Record> {
        self.live.values_mut()
    }

    /// Returns the live allocation that contains an address.
    pub(super) fn containing(&mut self, address: u64) -> Option<&mut Record> {
        let (_, record) = self.live.range_mut(..=address).next_back()?;
        matches!(record.place(address), Some(Place::Inside(_))).then_some(record)
    }

    /// Notes the free of a live allocation.
    pub(super) fn free(&mut self, address: u64, stream: StreamId) {
        let Some(mut record) = self.live.remove(&address) else { return };
        let guarded = record.allocation.guarded;
        let memory = if guarded { FreedMemory::Mapped } else { FreedMemory::Reused };
        record.allocation.freed = Some(Freed { after: self.made, stream, memory });
        record.uses = Vec::new();
        if !guarded {
            self.unguarded.push_back((address, record.allocation.number));
            if self.unguarded.len() > FREED_KEPT
                && let Some((oldest, number)) = self.unguarded.pop_front()
                && self.freed.get(&oldest).is_some_and(|found| found.allocation.number == number)
            {
                self.freed.remove(&oldest);
            }
        }
        self.freed.insert(address, record);
    }

    /// Returns the last allocation that was freed at an address.
    pub(super) fn freed(&mut self, address: u64) -> Option<&mut Record> {
        self.freed.get_mut(&address)
    }

    /// Returns whether a guarded allocation was freed at this address and its memory is still mapped.
    pub(super) fn is_mapped(&self, address: u64) -> bool {
        let freed = self.freed.get(&address).and_then(|record| record.allocation.freed);
        freed.is_some_and(|freed| freed.memory == FreedMemory::Mapped)
    }

    /// Notes that the memory of a freed allocation was unmapped.
    pub(super) fn unmapped(&mut self, address: u64) {
        let freed = self.freed.get_mut(&address).and_then(|record| record.allocation.freed.as_mut());
        if let Some(freed) = freed {
            freed.memory = FreedMemory::Unmapped;
        }
    }

    /// Forgets a freed allocation whose addresses may be reused from now on.
    pub(super) fn forget(&mut self, address: u64) {
        self.freed.remove(&address);
    }

    /// Returns the allocation to which an address belongs: an allocation that contains the address, a live one if
    /// possible, or else the allocation with the nearest edge.
    pub(super) fn explain(&self, address: u64) -> Option<Explanation> {
        let around = |of: &BTreeMap<u64, Record>| {
            let before = of.range(..=address).next_back().map(|(_, record)| record.clone());
            let behind = of.range(address.saturating_add(1)..).next().map(|(_, record)| record.clone());
            [before, behind]
        };
        let found = around(&self.live).into_iter().chain(around(&self.freed)).flatten();
        let placed = found.filter_map(|record| record.place(address).map(|place| (place, record.allocation)));
        let order = |place: &Place| match *place {
            Place::Inside(_) => 0,
            Place::Behind(distance) => distance.saturating_add(1),
            Place::Before(distance) => distance,
            _ => u64::MAX,
        };
        let (place, allocation) = placed.min_by_key(|(place, _)| order(place))?;
        Some(Explanation { address, place, allocation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(records: &mut Records, address: u64, size: u64, guarded: bool) {
        let allocation = GuardedAllocation {
            number: records.number(),
            address,
            size,
            rounded: size.next_multiple_of(512),
            stream: StreamId(1),
            guarded,
            freed: None,
        };
        records.add(allocation, 1000, false);
    }

    fn explained(records: &Records, address: u64) -> Option<(Place, u64, bool)> {
        let found = records.explain(address)?;
        Some((found.place, found.allocation.number, found.allocation.freed.is_some()))
    }

    #[test]
    fn an_address_belongs_to_what_it_lies_in_or_next_to() {
        let mut records = Records::default();
        let (first, second) = (100 << 20, 200 << 20);
        allocation(&mut records, first, 700, true);
        allocation(&mut records, second, 512, false);
        records.free(first, StreamId(1));
        assert_eq!(explained(&records, first), Some((Place::Inside(0), 1, true)));
        assert_eq!(explained(&records, first + 700), Some((Place::Behind(0), 1, true)));
        assert_eq!(explained(&records, first + 1024 + GUARD_RANGE - 1).map(|found| found.1), Some(1));
        assert_eq!(explained(&records, first + 1024 + GUARD_RANGE), None);
        assert_eq!(explained(&records, first - 1000 - GUARD_RANGE).map(|found| found.1), Some(1));
        assert_eq!(explained(&records, first - 1001 - GUARD_RANGE), None);
        assert_eq!(explained(&records, second + 511), Some((Place::Inside(511), 2, false)));
        assert_eq!(explained(&records, second + 512), None, "what is not guarded has neighbours");
        assert_eq!(explained(&records, second - 1), None);
        records.forget(first);
        assert_eq!(explained(&records, first), None);
    }

    #[test]
    fn a_live_allocation_hides_the_freed_one_at_its_place() {
        let mut records = Records::default();
        allocation(&mut records, 4096, 1000, false);
        records.free(4096, StreamId(1));
        allocation(&mut records, 4096, 100, false);
        assert_eq!(explained(&records, 4100), Some((Place::Inside(4), 2, false)));
        assert_eq!(explained(&records, 4096 + 200), Some((Place::Inside(200), 1, true)));
        assert!(records.containing(4100).is_some() && records.containing(4096 + 200).is_none());
    }

    #[test]
    fn freed_allocations_without_a_guard_are_forgotten_in_the_end() {
        let mut records = Records::default();
        for index in 0..FREED_KEPT as u64 + 3 {
            allocation(&mut records, (index + 1) << 10, 512, false);
            records.free((index + 1) << 10, StreamId(1));
        }
        assert_eq!(records.freed.len(), FREED_KEPT);
        assert_eq!(explained(&records, 3 << 10), None);
        assert!(explained(&records, 4 << 10).is_some());
    }
}

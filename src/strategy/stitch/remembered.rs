//! Choices of free ranges that were made earlier for the same free memory.
//!
//! Owns: a bounded table of choices, found by the fingerprint of the free memory. Choosing the ranges of a view takes a
//! walk over all free ranges. A program that repeats itself returns to the same free memory, and then needs no walk.

use crate::fallible::filled;
use crate::heap::{Heap, PlanHash, Request};

/// The number of remembered choices of the free ranges for a view. A training step makes dozens to hundreds of choices.
/// A later choice replaces an earlier one in the same slot.
const SLOTS: usize = 1024;

/// The result of a search for free memory, if no single range at home served the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The ranges with this hash. A view over these ranges may or may not exist.
    View(PlanHash),
    /// The number of missing bytes.
    Missing(u64),
}

/// The request and the free memory for which a choice was made, as one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Key(u64);

impl Key {
    /// Returns the key of a request for large memory with the present free memory. Needs no walk over the free ranges.
    pub(super) fn of(heap: &Heap, request: &Request, spares_slabs: bool) -> Self {
        let free = heap.fingerprint(request.pool).with(request.size);
        Self(if spares_slabs { free.with(1) } else { free }.number())
    }

    fn slot(self) -> usize {
        (self.0 >> (u64::BITS - SLOTS.ilog2())) as usize
    }
}

/// The latest choices.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    /// The slots; empty before the first choice, and if the host had no memory for the table, in which case no choice
    /// is remembered.
    slots: Vec<(Key, Option<Choice>)>,
}

impl Remembered {
    /// Returns the bytes of host memory that the table takes.
    pub(super) fn host_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<(Key, Option<Choice>)>()
    }

    pub(super) fn get(&self, key: Key) -> Option<Choice> {
        self.slots.get(key.slot()).filter(|(of, _)| *of == key).and_then(|(_, choice)| *choice)
    }

    pub(super) fn put(&mut self, key: Key, choice: Choice) {
        if self.slots.is_empty() {
            self.slots = filled((Key::default(), None), SLOTS).unwrap_or_default();
        }
        if let Some(slot) = self.slots.get_mut(key.slot()) {
            *slot = (key, Some(choice));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_found_until_another_takes_its_slot() {
        let mut remembered = Remembered::default();
        let [first, same_slot, other] = [1, 2, 1 << 63].map(Key);
        assert_eq!((remembered.get(first), remembered.get(Key::default())), (None, None));
        assert_eq!(remembered.host_bytes(), 0);
        remembered.put(first, Choice::Missing(7));
        remembered.put(other, Choice::Missing(8));
        assert_eq!(remembered.get(first), Some(Choice::Missing(7)));
        assert_eq!((remembered.get(same_slot), remembered.get(Key::default())), (None, None));
        remembered.put(same_slot, Choice::Missing(9));
        assert_eq!((remembered.get(first), remembered.get(same_slot)), (None, Some(Choice::Missing(9))));
        assert_eq!(remembered.get(other), Some(Choice::Missing(8)));
        assert_eq!(remembered.host_bytes(), 24 << 10);
    }
}

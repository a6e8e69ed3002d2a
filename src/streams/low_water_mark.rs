//! The low-water mark of live memory, which tells the allocator when a step of the program ends.
//!
//! Owns: the rule when live memory counts as low. At such a moment the caller gathers memory: makes passed memory idle.
//!
//! ```text
//! live   /\    /\    /\       a step of training begins and ends low, and is high in between
//!       /  \  /  \  /  \
//!      /    \/    \/    \     gathered at each low: every step starts from the same free ranges
//! ```

use crate::heap::Heap;

/// The number of allocations and frees within which memory does not count as low twice. If a program allocates and
/// frees one block over and over, making passed memory idle each time would take longer than all other work, and would
/// free no memory.
const SHORT_STEP: u64 = 8;

/// The rise and fall of live memory. Making passed memory idle at each low point gives every training step the same
/// free ranges, and therefore the same views.
#[derive(Debug, Default)]
pub(crate) struct LowWaterMark {
    /// The bytes beyond which live memory counts as rising again.
    high: u64,
    /// The bytes below which live memory is low: while memory rises, the highest live bytes less a quarter of the
    /// reserved bytes; after a fall, the value that `fall` chooses.
    mark: u64,
    /// Whether live memory was low and has not risen again.
    is_low: bool,
    /// The fewest live bytes since live memory last rose. `last_lowest` is this value for the previous fall.
    lowest: u64,
    last_lowest: u64,
    /// The count of operations before which memory does not count as low again.
    next: u64,
}

impl LowWaterMark {
    /// Returns whether live memory has just fallen below the mark. `freed` is the bytes just freed.
    #[inline]
    pub(crate) fn is_reached(&mut self, freed: u64, heap: &Heap) -> bool {
        let live = heap.counters().allocated_bytes.current();
        if live + freed > self.high {
            self.rise(live + freed, heap.reserved() / 4);
        }
        self.lowest = self.lowest.min(live);
        live < self.mark && self.fall(live, heap)
    }

    fn rise(&mut self, live: u64, quarter: u64) {
        if std::mem::take(&mut self.is_low) {
            self.last_lowest = self.lowest;
            self.lowest = u64::MAX;
        }
        self.high = live;
        self.mark = live.saturating_sub(quarter);
    }

    #[cold]
    fn fall(&mut self, live: u64, heap: &Heap) -> bool {
        let (reserved, operations) = (heap.reserved(), heap.counters().operations());
        self.is_low = true;
        self.high = live + reserved / 4;
        // The next mark is the highest of these values that does not exceed live memory: live memory less a quarter of
        // the reserved bytes, the last lowest point plus 1/128 of the reserved bytes, or that point plus one byte.
        // Steps are similar, but not always equal.
        let marks = [live.saturating_sub(reserved / 4), self.last_lowest + reserved / 128, self.last_lowest + 1];
        self.mark = marks.into_iter().filter(|mark| *mark <= live).max().unwrap_or_default();
        if operations < self.next {
            return false;
        }
        self.next = operations + SHORT_STEP;
        true
    }
}

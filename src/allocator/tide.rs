//! The rise and fall of live memory, by which the allocator knows the steps of a program.
//!
//! Owns: when live memory is said to have ebbed. What is done then is the strategy's.

use crate::heap::Heap;

/// Memory does not ebb twice within so many allocations and frees. Where a program allocates a block and frees it, over
/// and over, nothing is to be gathered, and doing so each time would take longer than all else.
const SHORT_STEP: u64 = 8;

/// The rise and fall of live memory. A step of training begins and ends low; what is gathered there gives every step the
/// same start, and so the same choices and views.
#[derive(Debug, Default)]
pub(super) struct Tide {
    /// Live memory rises again once it has been above this.
    high: u64,
    /// It ebbs once it is below this: by a quarter of what is reserved, and where it came to lie the last time.
    low: u64,
    /// Whether it has ebbed and not risen since.
    ebbed: bool,
    /// The fewest live bytes since it rose last, and in the fall before.
    trough: u64,
    last_trough: u64,
    /// It does not ebb again before there were so many operations in all.
    next: u64,
}

impl Tide {
    /// Whether live memory has just fallen below the mark, `freed` bytes having been freed.
    #[inline]
    pub(super) fn has_ebbed(&mut self, freed: u64, heap: &Heap) -> bool {
        let live = heap.counters.allocated_bytes.current();
        if live + freed > self.high {
            self.rise(live + freed, heap.reserved() / 4);
        }
        self.trough = self.trough.min(live);
        live < self.low && self.ebb(live, heap)
    }

    fn rise(&mut self, live: u64, quarter: u64) {
        if std::mem::take(&mut self.ebbed) {
            self.last_trough = self.trough;
            self.trough = u64::MAX;
        }
        self.high = live;
        self.low = live.saturating_sub(quarter);
    }

    #[cold]
    fn ebb(&mut self, live: u64, heap: &Heap) -> bool {
        let (reserved, operations) = (heap.reserved(), heap.counters.operations());
        self.ebbed = true;
        self.high = live + reserved / 4;
        // Near the last trough, and exactly there: steps are alike, if not equal.
        let marks = [live.saturating_sub(reserved / 4), self.last_trough + reserved / 128, self.last_trough + 1];
        self.low = marks.into_iter().filter(|mark| *mark <= live).max().unwrap_or_default();
        if operations < self.next {
            return false;
        }
        self.next = operations + SHORT_STEP;
        true
    }
}

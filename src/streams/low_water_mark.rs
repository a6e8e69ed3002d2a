//! The low-water mark of live memory, by which the allocator knows the steps of a program.
//!
//! Owns: when live memory is said to be low. What is done then is the caller's.
//!
//! ```text
//! live   /\    /\    /\       a step of training begins and ends low, and is high in between
//!       /  \  /  \  /  \
//!      /    \/    \/    \     consolidated at each low: every step starts from the same free ranges
//! ```

use crate::heap::Heap;

/// Memory is not said to be low twice within so many allocations and frees. Where a program allocates a block and frees it,
/// over and over, nothing is to be gathered, and doing so each time would take longer than all else.
const SHORT_STEP: u64 = 8;

/// The rise and fall of live memory. What is gathered at a low gives every step of training the same start, and so the same
/// choices and views.
#[derive(Debug, Default)]
pub(crate) struct LowWaterMark {
    /// Live memory rises again once it has been above this.
    high: u64,
    /// It is low once it is below this: by a quarter of what is reserved, and where it came to lie the last time.
    mark: u64,
    /// Whether it was low and has not risen since.
    is_low: bool,
    /// The fewest live bytes since it rose last, and in the fall before.
    lowest: u64,
    last_lowest: u64,
    /// It is not low again before there were so many operations in all.
    next: u64,
}

impl LowWaterMark {
    /// Whether live memory has just fallen below the mark, `freed` bytes having been freed.
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
        // Near the last lowest point, and exactly there: steps are alike, if not equal.
        let marks = [live.saturating_sub(reserved / 4), self.last_lowest + reserved / 128, self.last_lowest + 1];
        self.mark = marks.into_iter().filter(|mark| *mark <= live).max().unwrap_or_default();
        if operations < self.next {
            return false;
        }
        self.next = operations + SHORT_STEP;
        true
    }
}

//! The moment of a pass at which the most memory is held, and the memory by its use at that moment (a
//! [`Fragmentation`]).
//!
//! Owns: the choice of the events at which measurements are taken. A measurement walks over the free ranges. A
//! measurement is taken before a free, while the most memory is still held. The next measurement comes only after as
//! many events as there were free ranges, so that the total cost is linear in the events of any trace.

use crate::summary::fullest;
use crate::trace::TraceEvent;
use seamalloc::Allocator;
use seamalloc::fragmentation::Fragmentation;
use std::time::{Duration, Instant};

/// Searches for the moment in a pass.
#[derive(Debug, Default)]
pub(super) struct Peak {
    /// The time spent in driver calls up to the last free. As long as this time does not change, no memory was
    /// reserved.
    busy_ns: u64,
    /// The most bytes held in the pass so far.
    reserved: u64,
    /// From this event on, a measurement is due before the next free; `usize::MAX` if no memory was reserved since the
    /// last measurement.
    look_from: usize,
    /// The first event at which the next measurement may be taken.
    not_before: usize,
    /// The event after which the most bytes are live. In a pass in which no memory is reserved, the measurement is made
    /// at this event.
    fullest: Option<usize>,
    found: Option<(usize, Fragmentation)>,
    spent: Duration,
}

impl Peak {
    /// Begins a pass.
    pub(super) fn begin(&mut self, allocator: &Allocator, busy_ns: u64, events: &[TraceEvent]) {
        let reserved = allocator.reports().reserved();
        if reserved > 0 && self.fullest.is_none() {
            self.fullest = Some(fullest(events));
        }
        let look_from = self.fullest.unwrap_or(usize::MAX);
        *self = Self { busy_ns, reserved, look_from, fullest: self.fullest, ..Self::default() };
    }

    /// Measures the memory's use before a free, if a measurement is due.
    #[inline]
    pub(super) fn before_free(&mut self, allocator: &Allocator, busy_ns: u64, event: usize) {
        if busy_ns != self.busy_ns || event >= self.look_from {
            self.consider(allocator, busy_ns, event);
        }
    }

    #[cold]
    fn consider(&mut self, allocator: &Allocator, busy_ns: u64, event: usize) {
        self.busy_ns = busy_ns;
        let reserved = allocator.reports().reserved();
        if reserved > self.reserved {
            (self.reserved, self.look_from) = (reserved, self.not_before);
        }
        if event >= self.look_from {
            self.look(allocator, event);
        }
    }

    /// Returns the time that the measurements have taken so far.
    pub(super) fn spent(&self) -> Duration {
        self.spent
    }

    /// Ends the pass. Returns the event at which the most memory was held, and the memory by its use at that event.
    pub(super) fn end(&mut self, allocator: &Allocator, busy_ns: u64, event: usize) -> (usize, Fragmentation) {
        self.not_before = 0;
        self.consider(allocator, busy_ns, event);
        if self.look_from != usize::MAX || self.found.is_none() {
            self.look(allocator, event);
        }
        self.found.take().unwrap_or_default()
    }

    fn look(&mut self, allocator: &Allocator, event: usize) {
        let start = Instant::now();
        let memory = allocator.reports().fragmentation();
        // If memory was given back since the most was held, the peak is over, and an earlier measurement is closer to
        // it.
        if memory.reserved >= self.reserved || self.found.is_none() {
            let ranges: u64 = memory.pools.iter().map(|pool| pool.ranges).sum();
            self.not_before = event + ranges as usize;
            self.found = Some((event, memory));
        }
        self.look_from = usize::MAX;
        self.spent += start.elapsed();
    }
}

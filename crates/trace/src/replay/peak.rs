//! The moment at which a pass holds most, and how the memory was divided up then.
//!
//! Owns: when to look. A look walks over the free ranges, so it is taken before a free, while the most is still held,
//! and never again before as many events have passed as there were ranges: a replay costs no more than before, whatever
//! the trace does.

use crate::summary::fullest;
use crate::trace::TraceEvent;
use seamalloc::Allocator;
use seamalloc::fragmentation::Fragmentation;
use std::time::{Duration, Instant};

/// Looks for the moment of a pass.
#[derive(Debug, Default)]
pub(super) struct Peak {
    /// The driver's time at the last free: as long as it stands still, nothing has grown.
    busy_ns: u64,
    /// The most bytes held in the pass so far.
    reserved: u64,
    /// Look before the first free from this event on; the last number of all where there is nothing new to see.
    look_from: usize,
    /// No look before this event.
    not_before: usize,
    /// The event after which most is live: the moment of passes in which nothing grows.
    fullest: Option<usize>,
    found: Option<(usize, Fragmentation)>,
    spent: Duration,
}

impl Peak {
    /// A pass begins.
    pub(super) fn begin(&mut self, allocator: &Allocator, busy_ns: u64, events: &[TraceEvent]) {
        let reserved = allocator.reports().reserved();
        if reserved > 0 && self.fullest.is_none() {
            self.fullest = Some(fullest(events));
        }
        let look_from = self.fullest.unwrap_or(usize::MAX);
        *self = Self { busy_ns, reserved, look_from, fullest: self.fullest, ..Self::default() };
    }

    /// A free is about to be carried out.
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

    /// How long the looks took so far.
    pub(super) fn spent(&self) -> Duration {
        self.spent
    }

    /// The pass ends. The event at which most was held, and the division of it.
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
        // What was given back in the meantime is no peak any more; an earlier look is nearer to it.
        if memory.reserved >= self.reserved || self.found.is_none() {
            let ranges: u64 = memory.pools.iter().map(|pool| pool.ranges).sum();
            self.not_before = event + ranges as usize;
            self.found = Some((event, memory));
        }
        self.look_from = usize::MAX;
        self.spent += start.elapsed();
    }
}

//! Watchers of a replay, which are called for each operation.

use crate::trace::TraceEvent;
use seamalloc::Allocator;

/// An event of a trace that was carried out.
pub struct Step<'a> {
    /// The event's number in the trace, from 0.
    pub event: usize,
    /// The event.
    pub what: TraceEvent,
    /// The address of the block that was allocated or freed; 0 for a completed free.
    pub address: u64,
    /// The allocator, after the event. A watcher must not make calls that change the allocator.
    pub allocator: &'a Allocator,
}

/// Watches a replay.
pub trait Watcher {
    /// Called after each event that was carried out, in the trace's order, and not for a request that was refused.
    fn step(&mut self, step: &Step<'_>);

    /// Called when a pass has reached its end or a refused request, before the live blocks are freed.
    fn end(&mut self, allocator: &Allocator);
}

/// A watcher that does nothing.
pub(super) struct Unwatched;

impl Watcher for Unwatched {
    #[inline]
    fn step(&mut self, _: &Step<'_>) {}

    fn end(&mut self, _: &Allocator) {}
}

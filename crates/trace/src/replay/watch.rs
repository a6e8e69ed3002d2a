//! Who looks on while a trace is replayed, operation by operation.

use crate::trace::TraceEvent;
use seamalloc::Allocator;

/// An event of a trace that was carried out.
pub struct Step<'a> {
    /// Its number in the trace, from 0.
    pub event: usize,
    /// What the trace says.
    pub what: TraceEvent,
    /// Where the block lies that was allocated, or lay that was freed; 0 where a free has completed.
    pub address: u64,
    /// The allocator, after the event. Nothing may be asked of it that changes it.
    pub allocator: &'a Allocator,
}

/// Looks on while a trace is replayed.
pub trait Watcher {
    /// Called after each event that was carried out, in the trace's order; not for a request that was refused.
    fn step(&mut self, step: &Step<'_>);

    /// Called when a pass has come to its end or to a request that was refused, before what is still live is freed.
    fn end(&mut self, allocator: &Allocator);
}

/// Nobody.
pub(super) struct Unwatched;

impl Watcher for Unwatched {
    #[inline]
    fn step(&mut self, _: &Step<'_>) {}

    fn end(&mut self, _: &Allocator) {}
}

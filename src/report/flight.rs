//! What the flight recorder has kept: the last operations of an allocator, and what it held at that moment.
//!
//! Owns: the plain values. `heap/flight.rs` keeps them, `seamalloc-trace` writes them to files.

use super::observer::Event;
use super::snapshot::Snapshot;

/// Something that happened in an allocator, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct TimedEvent {
    /// What happened.
    pub event: Event,
    /// When, in microseconds since 1970.
    pub time_us: u64,
}

/// The last operations of an allocator, from [`Reports::flight`](crate::operations::Reports::flight).
///
/// An operation is an allocation, a free, the end of a free that had to wait for other streams, memory that came to a segment
/// or left it, or a request that was refused. A free that waits for nobody is one operation and two events.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Flight {
    /// What the allocator held when the events were read, which lead up to it.
    pub snapshot: Snapshot,
    /// The operations that are kept, the oldest first. The time of an operation that called the driver is exact to some
    /// microseconds; those between two of them are spread evenly, so that a hit reads no clock. The private pool of an event is
    /// not kept once the pool has ended.
    pub events: Vec<TimedEvent>,
    /// Operations since the allocator was made, those that are kept and those that are not.
    pub operations: u64,
    /// Of these, the oldest ones, which later ones have overwritten.
    pub overwritten: u64,
    /// How many operations are kept at most: [`Config::flight_recorder`](crate::Config::flight_recorder). 0 if it is off.
    pub capacity: u64,
}

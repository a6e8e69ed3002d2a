//! The record of the flight recorder: the last operations of an allocator, and the memory that the allocator held when
//! the record was read.
//!
//! Owns: the plain values. `heap/journal/flight.rs` records the operations, and `seamalloc-trace` writes them to files.

use super::observer::Event;
use super::snapshot::Snapshot;

/// An event of an allocator, with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct TimedEvent {
    /// The event.
    pub event: Event,
    /// The time of the event, in microseconds since 1970.
    pub time_us: u64,
}

/// The last operations of an allocator, from `Reports::flight`.
///
/// An operation is an allocation, a free, the end of a free that had to wait for other streams, memory that a segment
/// gained or lost, or a request that was refused. A free that waits for no stream is one operation and two events.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Flight {
    /// The memory that the allocator held when the events were read, after the last event.
    pub snapshot: Snapshot,
    /// The recorded operations, the oldest first. The time of an operation that called the driver is exact to some
    /// microseconds; the times of operations between two such operations are spread evenly, so that a hit reads no
    /// clock. The private pool of an event is not kept once the pool has ended.
    pub events: Vec<TimedEvent>,
    /// Operations since the allocator was made, including operations that were overwritten.
    pub operations: u64,
    /// The part of `operations` that later operations have overwritten.
    pub overwritten: u64,
    /// The most operations that are recorded: [`Config::flight_recorder`](seamalloc_config::Config::flight_recorder).
    /// The value is 0 if the recorder is off.
    pub capacity: u64,
}

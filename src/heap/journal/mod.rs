//! The journal: the heap's events, for statistics, for observers and for the flight recorder.
//!
//! Owns: the counters, the observers and the flight recorder. Each method for an event tells all three. The journal
//! knows no block, no pool and no chunk: [`PoolNames`] gives the name of a pool in an event.
//!
//! | file | owns |
//! |---|---|
//! | allocations, memory | events of blocks, and of their memory |
//! | work | waits, refusals, spills and splits, as the layers above report them |
//! | tell | who hears of an event |
//! | counters | the counters behind the statistics |
//! | times | how stalls and waits are added to their sums |
//! | observers | the observers, and how each is told |
//! | flight, flight_log | the flight recorder: the last operations |

pub(super) mod allocations;
pub(super) mod counters;
pub(super) mod flight;
pub(super) mod flight_log;
mod memory;
mod observers;
pub(super) mod tell;
mod times;
mod work;

use crate::error::Result;
use crate::ids::{PoolId, PoolIndex, StreamId};
use counters::Counters;
use flight::FlightRecorder;
use observers::Observers;

/// The names of pools in events.
pub(super) trait PoolNames {
    /// Returns whether a pool with this index exists.
    fn exists(&self, pool: PoolIndex) -> bool;

    /// Returns the stream of a pool, and the private pool to which the pool belongs.
    fn name(&self, pool: PoolIndex) -> (StreamId, PoolId);

    /// Returns the stream and the private pool of the segment in which snapshots show a pool's memory. With `shared`,
    /// the memory belongs to no single stream.
    fn segment_name(&self, pool: PoolIndex, shared: bool) -> (StreamId, PoolId);
}

/// The counters, the observers and the flight recorder of a heap.
pub(crate) struct Journal {
    counters: Counters,
    observers: Observers,
    flight: FlightRecorder,
    /// The least bytes of a block that counts as oversize.
    oversize_from: u64,
}

impl Journal {
    /// Makes a journal whose flight recorder keeps this many operations.
    pub(super) fn new(operations: usize, oversize_from: u64) -> Result<Self> {
        Ok(Self {
            counters: Counters::default(),
            observers: Observers::default(),
            flight: FlightRecorder::new(operations)?,
            oversize_from,
        })
    }

    pub(super) fn set_oversize_from(&mut self, size: u64) {
        self.oversize_from = size;
    }

    #[inline]
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the counters, for tests that break them.
    #[cfg(test)]
    pub(super) fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }
}

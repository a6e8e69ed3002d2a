//! Streams: the rules for reusing freed memory on the same stream and on other streams.
//!
//! Owns: the queues of `record_stream`, the epochs by which streams pass memory to one another, and the detection of
//! low live memory. This module calls the driver for events, waits and the numbers of streams, never for memory.

mod context;
mod epochs;
mod known;
mod low_water_mark;
mod named_at_once;
mod named_events;
mod new_waits;
mod pending;
mod record_stream;
mod recorded_waits;
mod rounds;
mod waits;

pub(crate) use context::{StreamContext, StreamState};
pub(crate) use epochs::Epochs;
use known::KnownStreams;
use low_water_mark::LowWaterMark;
pub(crate) use new_waits::NewWaits;
pub(crate) use pending::{Pending, Wanted, wait_for_events};
pub(crate) use record_stream::{RecordedStreams, destroy_events};
pub(crate) use rounds::{Rounds, Until};
pub(crate) use waits::most_of_a_range;

use crate::config::{Config, StrategyKind};
use crate::driver::Driver;

/// The state of an allocator's streams outside of the heap.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub(crate) recorded: RecordedStreams,
    pub(crate) epochs: Epochs,
    pub(crate) rounds: Rounds,
    pub(crate) known: KnownStreams,
    pub(crate) new_waits: NewWaits,
    pub(crate) low_water: LowWaterMark,
}

impl Streams {
    /// Notes that a thread begins to wait for events without the lock. No event is recorded again before
    /// [`Self::end_wait`].
    pub(crate) fn begin_wait(&mut self) {
        self.recorded.waiters += 1;
        self.epochs.waiters += 1;
    }

    pub(crate) fn end_wait(&mut self) {
        self.recorded.waiters -= 1;
        self.epochs.waiters -= 1;
    }

    /// Returns the approximate bytes of host memory that the tables take.
    pub(crate) fn host_bytes(&self) -> usize {
        self.recorded.host_bytes() + self.rounds.host_bytes() + self.new_waits.host_bytes()
    }

    /// Gives every event back to the driver, at the end of an allocator.
    pub(crate) fn destroy_events(&mut self, driver: &dyn Driver) {
        self.epochs.destroy_events(driver);
        self.recorded.destroy_events(driver);
        self.new_waits.destroy_events(driver);
    }
}

/// Returns whether blocks that several streams use follow the rules of Paddle's `StreamSafeCUDAAllocator`.
pub(crate) fn are_safe_as_in_paddle(config: &Config) -> bool {
    config.paddle.use_stream_safe_cuda_allocator && StrategyKind::PADDLE.contains(&config.strategy)
}

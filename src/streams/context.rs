//! The parts of an allocator that the code of this folder uses.
//!
//! Owns: the wait of the CPU for a stream, the check whether a handle still belongs to the same stream, and the check
//! whether an event can be recorded on a stream.

use crate::config::StreamSharing;
use crate::driver::{Driver, DriverResult};
use crate::heap::Heap;
use crate::ids::{PoolIndex, StreamId};

/// The heap, the driver, and the rule for sharing memory between streams.
pub(crate) struct StreamContext<'a> {
    pub(crate) heap: &'a mut Heap,
    pub(crate) driver: &'a dyn Driver,
    pub(crate) sharing: StreamSharing,
}

/// The state of a stream, as far as it matters for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamState {
    /// An event can mark the stream's work so far.
    Live,
    /// The stream is being captured. The allocator may not have been told of the capture.
    Captured,
    /// The stream was destroyed, and all its work is done.
    Ended,
}

impl StreamContext<'_> {
    /// Returns whether a capture may be under way. Until it ends, the allocator makes no wait, query or free that a
    /// capture forbids.
    pub(crate) fn capturing(&self) -> bool {
        self.heap.private().capturing()
    }

    /// Asks the driver for the state of a pool's stream. If the stream was destroyed without telling the allocator, its
    /// handle is invalid or belongs to another stream, and no event can be recorded. This method then makes the CPU
    /// wait for the device.
    pub(crate) fn stream_state(&mut self, large: PoolIndex) -> DriverResult<StreamState> {
        let of = self.heap.pool(large);
        let (stream, known) = (of.stream, of.number);
        if of.ended {
            return Ok(StreamState::Ended);
        }
        if stream == StreamId::DEFAULT {
            return Ok(StreamState::Live);
        }
        match self.can_record(stream) {
            // The driver returns no number for a stream that is being captured.
            Ok(false) => return Ok(StreamState::Captured),
            Err(error) if !error.status.may_name_no_stream() => return Err(error),
            _ => {}
        }
        let number = match self.driver.stream_number(stream) {
            Ok(number) if number == known => return Ok(StreamState::Live),
            Ok(number) if known.is_none() => {
                // The stream was first seen during a capture, when its number was unknown.
                self.heap.renumber_stream(large, number);
                return Ok(StreamState::Live);
            }
            Ok(number) => Some(number),
            Err(error) if error.status.may_name_no_stream() => None,
            Err(error) => return Err(error),
        };
        wait_for_destroyed(self.driver, stream)?;
        match number {
            Some(number) => self.heap.renumber_stream(large, number),
            None => self.heap.end_stream(stream),
        }
        Ok(StreamState::Ended)
    }

    /// Returns whether an event on a stream can mark the stream's work so far. In a capture of which the allocator was
    /// not told, an event marks a place in the graph instead.
    pub(crate) fn can_record(&self, stream: StreamId) -> DriverResult<bool> {
        can_record(self.driver, stream)
    }

    /// Makes the CPU wait for all work of a pool's stream.
    pub(crate) fn wait_for_stream(&mut self, pool: PoolIndex) -> DriverResult<()> {
        let large = pool.large();
        let stream = self.heap.pool(large).stream;
        if self.heap.is_external(stream) {
            return self.driver.synchronize();
        }
        if self.stream_state(large)? == StreamState::Ended {
            return Ok(());
        }
        self.driver.stream_synchronize(stream)
    }
}

/// Returns whether an event can be recorded on a stream, because it is not being captured. The default stream is never
/// captured.
pub(super) fn can_record(driver: &dyn Driver, stream: StreamId) -> DriverResult<bool> {
    Ok(stream == StreamId::DEFAULT || !driver.is_capturing(stream)?)
}

/// Returns whether the handle belongs to no stream any more; `false` if the driver does not number streams, since the
/// answer is then unknown.
pub(super) fn is_destroyed(driver: &dyn Driver, stream: StreamId) -> bool {
    driver.stream_number(stream).is_err_and(|error| error.status.may_name_no_stream())
}

/// Makes the CPU wait for the work of a destroyed stream, together with all other work.
pub(super) fn wait_for_destroyed(driver: &dyn Driver, stream: StreamId) -> DriverResult<()> {
    tracing::warn!(%stream, "a stream was destroyed that an allocator knew; forget_stream spares the wait for the GPU");
    driver.synchronize()
}

//! The parts of an allocator that a step about streams works on.
//!
//! Owns: how the CPU waits for a stream, and how a stream is told from another one with the same handle.

use crate::config::StreamSharing;
use crate::driver::{Driver, DriverResult};
use crate::heap::Heap;
use crate::ids::PoolIndex;

/// The heap, the driver, and the policy of sharing memory between streams.
pub(crate) struct StreamContext<'a> {
    pub(crate) heap: &'a mut Heap,
    pub(crate) driver: &'a dyn Driver,
    pub(crate) sharing: StreamSharing,
}

impl StreamContext<'_> {
    /// Returns whether a stream may be being captured. Until the end of the capture, no wait, query or free may be made
    /// that a capture forbids.
    pub(crate) fn capturing(&self) -> bool {
        self.heap.private().capturing()
    }

    /// Returns whether the handle of a pool's stream belongs to another stream, unknown to the program. In that case
    /// the CPU has waited for the device, since no event can be recorded on a stream that was destroyed.
    pub(crate) fn was_replaced(&mut self, large: PoolIndex) -> DriverResult<bool> {
        let of = self.heap.pool(large);
        let (stream, Some(known)) = (of.stream, of.number) else { return Ok(false) };
        let number = self.driver.stream_number(stream)?;
        if number == Some(known) {
            return Ok(false);
        }
        tracing::warn!(%stream, "a stream was destroyed that an allocator knew; forget_stream spares the wait for the GPU");
        self.driver.synchronize()?;
        self.heap.renumber_stream(large, number);
        Ok(true)
    }

    /// Lets the CPU wait for all work of a pool's stream.
    pub(crate) fn wait_for_stream(&mut self, pool: PoolIndex) -> DriverResult<()> {
        let large = pool.large();
        let of = self.heap.pool(large);
        let (stream, ended) = (of.stream, of.ended);
        if ended || self.was_replaced(large)? {
            return Ok(());
        }
        self.driver.stream_synchronize(stream)
    }
}

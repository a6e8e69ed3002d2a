//! What a step works on that concerns streams.
//!
//! Owns: how the CPU waits for a stream, and how a stream is told from another one that got its handle.

use crate::config::Sharing;
use crate::driver::{Driver, DriverResult};
use crate::heap::Heap;
use crate::ids::PoolIndex;

/// The heap, the driver, and when streams share.
pub(crate) struct StreamContext<'a> {
    pub(crate) heap: &'a mut Heap,
    pub(crate) driver: &'a dyn Driver,
    pub(crate) sharing: Sharing,
}

impl StreamContext<'_> {
    /// Whether a stream may be being captured: until that is over, nothing may be waited for, asked for or freed that a
    /// capture forbids.
    pub(crate) fn capturing(&self) -> bool {
        self.heap.private().capturing()
    }

    /// Whether the handle of a pool's stream is another stream's now, which the program did not say. The CPU has waited for
    /// the device then, since no event can be recorded on a stream that is no more.
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

    /// The CPU waits for what the stream of a pool was given.
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

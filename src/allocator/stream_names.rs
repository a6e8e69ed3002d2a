//! The streams that requests and frees name: registered at their first request, and noted as users of a block.

use super::core::Core;
use crate::error::{Error, Result};
use crate::ids::{BlockId, Class, PoolIndex, StreamId};
use crate::streams;

impl Core {
    /// Records that a stream other than the block's own uses a block. Returns whether the block had no record of the
    /// stream.
    pub(super) fn name_stream(&mut self, id: BlockId, stream: StreamId) -> Result<bool> {
        self.streams.known.add(stream)?;
        self.heap.used_now(id);
        if !streams::are_safe_as_in_paddle(&self.config) {
            return Ok(self.streams.recorded.record_use(&mut self.heap, id, stream)?);
        }
        let capturing = self.capturing();
        self.timed(|_, context| {
            let (streams, on) = context.on_streams();
            streams.recorded.record_use_now(on.heap, on.driver, id, stream, capturing)
        })
    }

    /// Registers the stream of a request: a stream without pools, or a new stream with the handle of a stream that has
    /// ended. Returns the pool that serves the request.
    #[cold]
    pub(super) fn register_stream(&mut self, stream: StreamId, size: u64) -> Result<(PoolIndex, Class)> {
        let canonical = self.driver.canonical_stream(stream)?;
        self.streams.known.add(canonical)?;
        if canonical == StreamId::DEFAULT {
            self.heap.alias_default(stream)?;
        } else {
            let number = self.number_of(canonical)?;
            self.heap.register_stream(canonical, number)?;
        }
        let found = self.heap.pool_for(canonical, size);
        found.ok_or(Error::Internal("a registered stream has no pool"))
    }

    /// Returns the number of a stream, if the driver numbers streams. Returns `None` during any capture: the driver
    /// cannot be asked for the number of a captured stream, and a capture of another stream may forbid the query.
    pub(super) fn number_of(&mut self, stream: StreamId) -> Result<Option<u64>> {
        if self.capturing() {
            return Ok(None);
        }
        Ok(self.timed(|_, context| match context.driver().is_capturing(stream)? {
            true => Ok(None),
            false => context.driver().stream_number(stream),
        })?)
    }
}

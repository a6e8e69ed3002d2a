//! The stream on which a program uses an allocation last.
//!
//! Owns: how the allocator is told of that stream, whenever the owner of an allocation frees it or gives it up.

use crate::allocator::Allocator;
use crate::error::Result;
use crate::ids::StreamId;

/// The stream of an allocation, and the stream that uses it last.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastUse {
    own: StreamId,
    /// The stream that the program named; `None` if it named no stream. The handle of the named stream may equal that
    /// of the own stream and still mean another stream, after [`Streams::forget`](crate::operations::Streams::forget).
    named: Option<StreamId>,
}

impl LastUse {
    /// Returns the last use of an allocation for which only its own stream is known.
    #[inline]
    pub(super) fn on(own: StreamId) -> Self {
        Self { own, named: None }
    }

    /// Returns the stream that the allocation was made for.
    #[inline]
    pub(super) fn own(&self) -> StreamId {
        self.own
    }

    /// Returns the stream of the last use.
    #[inline]
    pub(super) fn stream(&self) -> StreamId {
        self.named.unwrap_or(self.own)
    }

    /// Returns the stream of the last use, if it is not the own stream.
    pub(super) fn other(&self) -> Option<StreamId> {
        self.named.filter(|stream| *stream != self.own)
    }

    #[inline]
    pub(super) fn set(&mut self, stream: StreamId) {
        self.named = Some(stream);
    }

    /// Frees the allocation, on the stream of the last use if the program named one. The memory then waits for that
    /// stream too.
    #[inline]
    pub(super) fn free(&self, allocator: &Allocator, address: u64) -> Result<()> {
        match self.named {
            None => allocator.free(address),
            Some(stream) => allocator.free_on(address, stream),
        }
    }

    /// Names the stream of the last use to the allocator, so that a later free need not name it.
    pub(super) fn record(&self, allocator: &Allocator, address: u64) -> Result<()> {
        self.named.map_or(Ok(()), |stream| allocator.record_stream(address, stream))
    }

    /// Calls [`Self::record`] for callers that cannot return an error. An error is logged.
    pub(super) fn leave(&self, allocator: &Allocator, address: u64) {
        if let Err(error) = self.record(allocator, address) {
            tracing::error!(%error, address, "the last use of an allocation could not be named");
        }
    }
}

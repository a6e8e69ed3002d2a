//! On which stream a program uses an allocation last.
//!
//! Owns: how the allocator is told of it, on every way out of the types that own one.

use crate::allocator::Allocator;
use crate::error::Result;
use crate::ids::StreamId;

/// The stream of an allocation, and the one that uses it last.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastUse {
    own: StreamId,
    /// As the program named it, if it did. It may name the handle of its own stream, which belongs to another one after
    /// [`Streams::forget`](crate::operations::Streams::forget).
    named: Option<StreamId>,
}

impl LastUse {
    /// The last use of an allocation whose own stream alone is known.
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

    /// Returns the stream of the last use, if it is another one.
    pub(super) fn other(&self) -> Option<StreamId> {
        self.named.filter(|stream| *stream != self.own)
    }

    #[inline]
    pub(super) fn set(&mut self, stream: StreamId) {
        self.named = Some(stream);
    }

    /// Frees the allocation once the last use has passed.
    #[inline]
    pub(super) fn free(&self, allocator: &Allocator, address: u64) -> Result<()> {
        match self.named {
            None => allocator.free(address),
            Some(stream) => allocator.free_on(address, stream),
        }
    }

    /// Tells the allocator, so that whoever frees the allocation later need not know of it.
    pub(super) fn record(&self, allocator: &Allocator, address: u64) -> Result<()> {
        self.named.map_or(Ok(()), |stream| allocator.record_stream(address, stream))
    }

    /// Does the same as [`Self::record`] where no error can be returned: it is logged.
    pub(super) fn leave(&self, allocator: &Allocator, address: u64) {
        if let Err(error) = self.record(allocator, address) {
            tracing::error!(%error, address, "the last use of an allocation could not be named");
        }
    }
}

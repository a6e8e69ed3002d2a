//! [`RawBlock`], an allocation as a plain value.

use crate::ids::StreamId;

/// An allocation that does not free itself: its address, the bytes that were asked for, and its stream.
///
/// [`Block::into_raw`](super::Block::into_raw) returns a raw block, and the layers of `seamalloc-layers` pass raw
/// blocks to each other. A raw block of 0 bytes has address 0 and no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct RawBlock {
    /// The address of the first byte.
    pub address: u64,
    /// The bytes that were asked for.
    pub size: u64,
    /// The stream that the block was allocated for.
    pub stream: StreamId,
}

impl RawBlock {
    /// Returns the block that a request for 0 bytes gets.
    #[must_use]
    pub const fn empty(stream: StreamId) -> Self {
        Self { address: 0, size: 0, stream }
    }

    /// Returns whether the block has no memory.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.size == 0
    }
}

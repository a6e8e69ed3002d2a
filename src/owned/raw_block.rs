//! An allocation as a plain value.

use crate::ids::StreamId;

/// An allocation that nobody frees by itself: its address, the bytes that were asked for, and its stream.
///
/// It is what [`Block::into_raw`](super::Block::into_raw) leaves, and what passes between the layers of
/// [`resource`](crate::resource). One of 0 bytes has address 0 and no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct RawBlock {
    /// Where it begins.
    pub address: u64,
    /// The bytes that were asked for.
    pub size: u64,
    /// The stream that it was allocated for.
    pub stream: StreamId,
}

impl RawBlock {
    /// Returns the block that a request for 0 bytes gets.
    #[must_use]
    pub const fn empty(stream: StreamId) -> Self {
        Self { address: 0, size: 0, stream }
    }

    /// Returns whether it has no memory.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.size == 0
    }
}

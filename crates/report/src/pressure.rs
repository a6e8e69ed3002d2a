//! The information that a callback for memory pressure gets.

use seamalloc_driver::StreamId;

/// A request for which there is too little memory, as a callback sees it. All sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemoryPressure {
    /// The size that the program asked for.
    pub requested: u64,
    /// The stream of the request.
    pub stream: StreamId,
    /// The bytes that the allocator holds from the device.
    pub reserved: u64,
    /// The part of `reserved` in blocks that the program has not freed.
    pub allocated: u64,
    /// The most that the allocator may hold, if it is limited.
    pub limit: Option<u64>,
}

impl MemoryPressure {
    /// Returns the request, before an allocator fills in the bytes that it holds.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(requested: u64, stream: StreamId) -> Self {
        Self { requested, stream, reserved: 0, allocated: 0, limit: None }
    }
}

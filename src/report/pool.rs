//! The figures of a private pool for users.

/// The contents and state of a private pool. All sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PoolStats {
    /// Uses that were not released; 0 while the pool's memory waits for the device.
    pub uses: u64,
    /// Whether requests are routed to the pool at present.
    pub routed: bool,
    /// Whether a block of the pool was handed out in a stream capture, so that a graph may use its memory.
    pub captured: bool,
    /// Blocks that were handed out and that the program has not freed.
    pub allocations: u64,
    /// Bytes of these blocks, rounding included.
    pub allocated_bytes: u64,
    /// Bytes of blocks that are handed out, or freed and waiting for other streams.
    pub active_bytes: u64,
    /// Bytes held for the pool: active ones, and free ones that serve only this pool.
    pub reserved_bytes: u64,
    /// Bytes that the pool holds again when it wakes ([`Tags::sleep`](crate::operations::Tags::sleep)); 0 while it is awake.
    pub asleep_bytes: u64,
}

/// A live block of a private pool. All sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PoolBlock {
    /// The address of the first byte.
    pub address: u64,
    /// The size with rounding.
    pub size: u64,
    /// The size that the program asked for.
    pub requested: u64,
}

//! The id of a private pool, and its figures for users.

use std::fmt;

/// The id of a private pool: a pair of numbers, as PyTorch's `MempoolId_t`. PyTorch numbers the pools of graphs `(n,
/// 0)` and the pools of users `(0, n)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PoolId(pub u64, pub u64);

impl PoolId {
    /// The id of no private pool: memory that serves every request.
    pub const NONE: Self = Self(0, 0);
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.0, self.1)
    }
}

/// The contents and state of a private pool. All sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PoolStats {
    /// Uses (`Pools::create`, `open`, `retain`) that were not released; 0 while the pool's memory waits for the device.
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
    /// Bytes held for the pool: active bytes, and free bytes that serve only this pool.
    pub reserved_bytes: u64,
    /// Bytes that the pool holds again when it wakes (`Tags::sleep`); 0 while it is awake.
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

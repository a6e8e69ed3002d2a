//! The bytes of the driver's pool of stream-ordered memory, in blocks and in none.
//!
//! Owns: [`DriverPoolBytes`]. `driver_pool.rs` writes it.

use super::sorted::SortedSet;

/// The bytes of the driver's pool.
#[derive(Debug, Default)]
pub(super) struct DriverPoolBytes {
    /// Addresses and sizes of those blocks, in the order of addresses.
    pub(super) spans: SortedSet<(u64, u64)>,
    /// In blocks.
    pub(super) blocks: u64,
    /// In none: free memory, and what was lost to rounding.
    pub(super) idle: u64,
}

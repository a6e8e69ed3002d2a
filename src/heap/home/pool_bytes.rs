//! The bytes of the driver's pool of stream-ordered memory, inside and outside of blocks.
//!
//! Owns: [`DriverPoolBytes`]. `driver_pool.rs` writes it.

#[cfg(feature = "baselines")]
use crate::heap::sorted::SortedSet;

/// The bytes of the driver's pool.
#[derive(Debug, Default)]
pub(super) struct DriverPoolBytes {
    /// Addresses and sizes of the blocks, in the order of addresses.
    #[cfg(feature = "baselines")]
    pub(super) spans: SortedSet<(u64, u64)>,
    /// The bytes in blocks.
    #[cfg(feature = "baselines")]
    pub(super) blocks: u64,
    /// The bytes in no block: free memory, and bytes lost to rounding.
    pub(super) idle: u64,
}

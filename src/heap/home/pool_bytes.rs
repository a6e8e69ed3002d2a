//! The bytes of the driver's stream-ordered pool, inside and outside of blocks.
//!
//! Owns: [`DriverPoolBytes`]. `driver_pool.rs` changes these figures.

#[cfg(feature = "baselines")]
use crate::heap::sorted::SortedSet;

/// The bytes of the driver's pool.
#[derive(Debug, Default)]
pub(super) struct DriverPoolBytes {
    /// The addresses and sizes of the blocks, in the order of addresses.
    #[cfg(feature = "baselines")]
    pub(super) spans: SortedSet<(u64, u64)>,
    /// The bytes in blocks.
    #[cfg(feature = "baselines")]
    pub(super) blocks: u64,
    /// The bytes outside of blocks: free memory, and bytes lost to rounding.
    pub(super) idle: u64,
}

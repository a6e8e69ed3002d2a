//! Memory of the device that is kept free for others, strictly or as far as possible.

/// Bytes of the device that stay free for others: NCCL, cuBLAS, other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// Bytes; 0 for none.
    pub bytes: u64,
    /// Whether memory may grow into the headroom. A soft headroom refuses no request. While the device has fewer bytes
    /// free, memory that no request has needed for ten seconds is released.
    pub is_soft: bool,
}

impl Headroom {
    /// No headroom.
    pub const NONE: Self = Self::kept(0);

    /// Returns a headroom into which memory does not grow.
    #[must_use]
    pub const fn kept(bytes: u64) -> Self {
        Self { bytes, is_soft: false }
    }

    /// Returns a headroom into which memory may grow.
    #[must_use]
    pub const fn soft(bytes: u64) -> Self {
        Self { bytes, is_soft: true }
    }

    /// Returns the bytes into which memory does not grow.
    #[must_use]
    pub const fn kept_bytes(self) -> u64 {
        if self.is_soft { 0 } else { self.bytes }
    }
}

//! The memory below a runtime: who places blocks, and when a request is refused.
//!
//! ```text
//! live.rs      an allocator of seamalloc's on a simulated GPU, with any strategy
//! arena.rs     Coop's: one arena, cheap tensors at one end and dear ones at the other
//! counted.rs   bytes alone, which never lie in pieces: what simulators of the literature assume
//! ```

mod arena;
mod counted;
mod live;

pub use arena::Arena;
pub use counted::Counted;
pub use live::{Live, LiveError};

/// Sizes are rounded up to this in arenas and allocators (OneFlow's `kCudaMemAllocAlignSize`, PyTorch's `kMinBlockSize`).
pub const ALIGNMENT: u64 = 512;

/// Where an arena with two ends puts a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// What takes long to make, at the low end.
    Dear,
    /// What is made again quickly, at the high end.
    Cheap,
}

/// A range of memory: a block, or free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Neighbours in one segment touch; ranges of two segments never make one block.
    pub segment: usize,
    /// Whether it is free.
    pub is_free: bool,
}

/// Places blocks within a budget.
pub trait Memory {
    /// Places a block of `bytes`, at least one, or refuses: `None`.
    ///
    /// # Errors
    /// [`seamalloc::Error`] if it failed otherwise than by a refusal.
    fn allocate(&mut self, bytes: u64, end: End) -> Result<Option<u64>, seamalloc::Error>;

    /// Frees the block at an address.
    ///
    /// # Errors
    /// [`seamalloc::Error`] if there is none, or the driver failed.
    fn free(&mut self, address: u64) -> Result<(), seamalloc::Error>;

    /// The most bytes that may be held.
    fn budget(&self) -> u64;

    /// Bytes of the blocks, rounded as they were placed.
    fn used(&self) -> u64;

    /// What a block of so many bytes takes.
    fn rounded(&self, bytes: u64) -> u64;

    /// The most bytes held at any moment.
    fn peak_reserved(&self) -> u64;

    /// All pieces by segment and address; empty where memory has no addresses.
    fn pieces(&self) -> Vec<Piece>;

    /// Whether all of the memory is one range, so that a request fits where enough neighbours are free, and nowhere else.
    fn is_one_range(&self) -> bool {
        false
    }

    /// What joined memory is mapped in, in bytes; none where memory is not mapped.
    fn granule(&self) -> Option<u64> {
        None
    }

    /// Bytes that no block has.
    fn unused(&self) -> u64 {
        self.budget().saturating_sub(self.used())
    }
}

//! The memory below a runtime, which places blocks and refuses requests.
//!
//! ```text
//! live.rs      an allocator of seamalloc on a simulated GPU, with any strategy
//! arena.rs     Coop's arena: cheap tensors at one end, expensive tensors at the other end
//! counted.rs   bytes alone, without places, as simulators of the literature assume
//! ```

mod arena;
mod counted;
mod live;

pub use arena::Arena;
pub use counted::Counted;
pub use live::{Live, LiveError};

/// The alignment to which arenas and allocators round sizes, in bytes (OneFlow's `kCudaMemAllocAlignSize`, PyTorch's
/// `kMinBlockSize`).
pub const ALIGNMENT: u64 = 512;

/// The end of a free piece at which an arena places a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The low end, for tensors that take long to recompute.
    Dear,
    /// The high end, for tensors that are recomputed quickly.
    Cheap,
}

/// A range of memory: a block, or a free range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The address of the first byte.
    pub address: u64,
    /// The size in bytes.
    pub bytes: u64,
    /// The number of the piece's segment. Neighbours in one segment are contiguous. Ranges of two segments never form
    /// one block.
    pub segment: usize,
    /// Whether the piece is free.
    pub is_free: bool,
}

/// Places blocks within a budget.
pub trait Memory {
    /// Places a block of `bytes` bytes, at least one. Returns its address, or `None` if the memory refuses the request.
    ///
    /// # Errors
    /// [`seamalloc::Error`] if the call failed for another reason than a refusal.
    fn allocate(&mut self, bytes: u64, end: End) -> Result<Option<u64>, seamalloc::Error>;

    /// Frees the block at an address.
    ///
    /// # Errors
    /// [`seamalloc::Error`] if no block has the address, or the driver failed.
    fn free(&mut self, address: u64) -> Result<(), seamalloc::Error>;

    /// Returns the most bytes that may be held.
    fn budget(&self) -> u64;

    /// Returns the bytes of the blocks, each rounded as it was placed.
    fn used(&self) -> u64;

    /// Returns the bytes that a block of `bytes` bytes takes.
    fn rounded(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(ALIGNMENT)
    }

    /// Returns the most bytes held at any moment.
    fn peak_reserved(&self) -> u64;

    /// Returns all pieces, ordered by segment and address; no pieces if the memory has no addresses.
    fn pieces(&self) -> Vec<Piece>;

    /// Returns whether the whole memory is one range. A request then fits only where enough neighbouring bytes are
    /// free.
    fn is_one_range(&self) -> bool {
        false
    }

    /// Returns the granule in which memory is mapped, in bytes; `None` if memory is not mapped.
    fn granule(&self) -> Option<u64> {
        None
    }

    /// Returns the bytes that belong to no block.
    fn unused(&self) -> u64 {
        self.budget().saturating_sub(self.used())
    }
}

//! The names by which C refers to things: allocators, streams, private pools.

use seamalloc::PoolId;
use std::ffi::c_void;

/// An allocator: a number, not a pointer. No number is given twice, so the handle of a destroyed allocator is refused
/// (`SEAM_STATUS_INVALID_HANDLE`). 0 stands for no allocator.
pub type AllocatorId = u64;

/// A CUDA stream, `cudaStream_t` or `CUstream`. NULL and `cudaStreamLegacy` are the default stream.
/// `cudaStreamPerThread` is refused: the handle means a different stream in each thread, and the allocator orders the
/// reuse of memory by stream. Any other value must be a live stream of the allocator's device. The library cannot check
/// this. The stream must stay alive until `seam_forget_stream`, or until the allocator is destroyed. On a simulated
/// device every value is a stream.
pub type Stream = *mut c_void;

/// A private pool: two numbers, as PyTorch's `MempoolId_t`. Two zeros stand for no pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    /// The number of a pool of CUDA graphs, by PyTorch's convention.
    pub first: u64,
    /// The number of a pool that a user created, by PyTorch's convention; `seam_pool_create` sets it too.
    pub second: u64,
}

impl Pool {
    pub(crate) fn id(self) -> PoolId {
        PoolId(self.first, self.second)
    }
}

impl From<PoolId> for Pool {
    fn from(PoolId(first, second): PoolId) -> Self {
        Self { first, second }
    }
}

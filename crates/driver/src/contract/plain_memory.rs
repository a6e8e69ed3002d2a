//! Plain memory, as `cudaMalloc` returns it.
//!
//! Owns: the contract of [`PlainMemory`].

use crate::error::DriverResult;

/// Memory that has its address from the start.
///
/// pre, for both calls: no capture forbids them, according to the modes of the capture and of the thread
/// ([`CaptureMode`](super::CaptureMode)).
pub trait PlainMemory {
    /// `cuMemAlloc` (`cudaMalloc`): returns the address of `size` bytes, which the device can use immediately.
    ///
    /// pre: `size` is not 0.
    fn malloc(&self, size: u64) -> DriverResult<u64>;

    /// `cuMemFree` (`cudaFree`): waits for the device's work, then gives the memory back.
    ///
    /// pre: `address` came from `malloc`, and was not freed; or it is 0, which frees nothing.
    fn free(&self, address: u64) -> DriverResult<()>;
}

//! The names of things: numbers that say which stream, pool, block or chunk, each of a type of its own.
//!
//! Owns: the types, and the arithmetic on them that has a meaning. It knows no tables.

use std::fmt;

/// A stream as the driver knows it: the raw handle (`CUstream`, `cudaStream_t`) as an integer. Zero is the default stream.
///
/// It says nothing of whether there is such a stream. On a real GPU a handle is a pointer, which libcuda follows:
/// [`CudaDriver`](crate::driver::cuda::CudaDriver) says which ones it takes, and on whose word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

impl StreamId {
    /// The default (legacy) stream.
    pub const DEFAULT: Self = Self(0);

    /// The stream with this handle, as other bindings of CUDA have it: `stream.cu_stream()` of cudarc, `as_inner()` of
    /// cust, a `cudaStream_t` of C.
    ///
    /// ```
    /// use seamalloc::driver::StreamId;
    /// assert_eq!(StreamId::from_raw(std::ptr::null_mut::<u8>()), StreamId::DEFAULT);
    /// ```
    #[must_use]
    pub fn from_raw<T>(handle: *mut T) -> Self {
        Self(handle.expose_provenance() as u64)
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Physical memory: one `cuMemCreate` handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

/// An event of the driver's (`CUevent`) as an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId(pub u64);

/// Which private pool: a pair of numbers, as PyTorch's `MempoolId_t`. PyTorch numbers the pools of graphs `(n, 0)` and
/// those of users `(0, n)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(pub u64, pub u64);

impl PoolId {
    /// No private pool: memory that serves everyone.
    pub const NONE: Self = Self(0, 0);
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.0, self.1)
    }
}

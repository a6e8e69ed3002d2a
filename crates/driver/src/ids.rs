//! Identifiers of a driver: numbers that name a stream, an event or memory, each of a type of its own.

use std::fmt;

/// A stream as the driver knows it: the raw handle (`CUstream`, `cudaStream_t`) as an integer. Zero is the default
/// stream.
///
/// The type does not say whether the stream exists. On a real GPU a handle is a pointer, which libcuda follows:
/// [`CudaDriver`](crate::cuda::CudaDriver) documents which handles it accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct StreamId(pub u64);

impl StreamId {
    /// The default (legacy) stream.
    pub const DEFAULT: Self = Self(0);

    /// Returns the stream with this handle, as other CUDA bindings return it: `stream.cu_stream()` of cudarc,
    /// `as_inner()` of cust, a `cudaStream_t` of C.
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

/// Converts as [`StreamId::from_raw`] does.
impl<T> From<*mut T> for StreamId {
    fn from(handle: *mut T) -> Self {
        Self::from_raw(handle)
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

/// A pool of the driver's stream-ordered memory (`CUmemoryPool`) as an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryPool(pub u64);

/// Page-locked host memory, which a driver copies from and to asynchronously (`cuMemHostRegister`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostBuffer(pub u64);

/// An event of the driver's (`CUevent`) as an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId(pub u64);

//! Streams: which stream a handle names, and the wait for a stream.
//!
//! Owns: the contract of [`Streams`].

use crate::error::DriverResult;
use crate::ids::StreamId;

/// The stream that a handle names, and the wait for a stream. The program makes the streams; an allocator makes none.
///
/// pre, for the calls that reach the driver: the handle is the handle of a live stream (unchecked if the driver was
/// told to trust streams, see [`CudaDriver`](crate::cuda::CudaDriver)).
pub trait Streams {
    /// Returns the handle by which the driver knows `stream`, which may have several handles. Makes no driver call.
    /// Returns [`Status::INVALID_HANDLE`](crate::Status::INVALID_HANDLE) for a handle that names another stream in each
    /// thread (`cudaStreamPerThread`).
    fn canonical_stream(&self, stream: StreamId) -> DriverResult<StreamId>;

    /// `cuStreamGetId`: returns a number that no other stream of the process ever has, unlike handles, which are
    /// reused. Returns `None` if the driver does not number streams, and for the default stream, which is never
    /// destroyed.
    ///
    /// pre: `stream` is not being captured.
    fn stream_number(&self, stream: StreamId) -> DriverResult<Option<u64>>;

    /// `cuStreamSynchronize`: the CPU waits for all work given to `stream`.
    ///
    /// pre: `stream` is not being captured, and no capture forbids the call.
    fn stream_synchronize(&self, stream: StreamId) -> DriverResult<()>;
}

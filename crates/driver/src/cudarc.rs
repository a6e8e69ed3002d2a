//! Conversions from cudarc's streams to [`StreamId`] (feature `cudarc`).

use crate::ids::StreamId;
use cudarc::driver::CudaStream;
use std::sync::Arc;

/// Converts a stream of cudarc. The default stream of a context is [`StreamId::DEFAULT`]; the allocator refuses the
/// context's per-thread stream.
impl From<&CudaStream> for StreamId {
    fn from(stream: &CudaStream) -> Self {
        Self::from_raw(stream.cu_stream())
    }
}

/// Converts the stream that the `Arc` points to.
impl From<&Arc<CudaStream>> for StreamId {
    fn from(stream: &Arc<CudaStream>) -> Self {
        Self::from(&**stream)
    }
}

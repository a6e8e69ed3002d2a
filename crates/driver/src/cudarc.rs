//! The streams of cudarc by name (feature `cudarc`).

use crate::ids::StreamId;
use cudarc::driver::CudaStream;
use std::sync::Arc;

/// A stream of cudarc's. The default stream of a context is [`StreamId::DEFAULT`]; its stream "per thread" is refused by the
/// allocator.
impl From<&CudaStream> for StreamId {
    fn from(stream: &CudaStream) -> Self {
        Self::from_raw(stream.cu_stream())
    }
}

/// As of the stream that it points to.
impl From<&Arc<CudaStream>> for StreamId {
    fn from(stream: &Arc<CudaStream>) -> Self {
        Self::from(&**stream)
    }
}

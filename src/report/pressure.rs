//! What a callback for memory pressure is told.

use crate::ids::StreamId;

/// A request for which there is too little memory, as a callback is told of it. All sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPressure {
    /// What the program asked for.
    pub requested: u64,
    /// The stream it is for.
    pub stream: StreamId,
    /// What the allocator holds of the device.
    pub reserved: u64,
    /// Of `reserved`, in blocks that the program has not freed.
    pub allocated: u64,
    /// What the allocator may hold at most, if it is limited.
    pub limit: Option<u64>,
}

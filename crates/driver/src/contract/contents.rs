//! The bytes in memory: filling, reading, writing and copying them.
//!
//! Owns: the contract of [`Contents`]. Guard mode fills and reads; an exchange of chunks copies; sleep reads the
//! memory, and waking writes it.

use crate::error::DriverResult;
use crate::ids::StreamId;

/// The bytes in the device's memory.
pub trait Contents {
    /// `cuMemsetD8Async`: sets `size` bytes from `address` on to `value`, after all work given to `stream` so far. The
    /// CPU does not wait. In a stream that is being captured, the fill becomes a part of the graph, and runs only when
    /// the graph is launched.
    ///
    /// pre: the range is memory of this device that the device may use, and `size` is not 0.
    /// pre: the handle is the handle of a live stream (unchecked, as for [`Events`](super::Events)).
    fn fill(&self, address: u64, size: u64, value: u8, stream: StreamId) -> DriverResult<()>;

    /// `cuMemcpyDtoHAsync` on a stream of the driver's own: copies memory to the CPU, which waits for the copy, and for
    /// no other work.
    ///
    /// pre: the range is memory of this device that the device may use, and not empty.
    /// pre: no work writes the range meanwhile (unchecked).
    /// pre: no capture forbids the call.
    fn read(&self, address: u64, bytes: &mut [u8]) -> DriverResult<()>;

    /// `cuMemcpyHtoDAsync` on a stream of the driver's own: copies bytes of the CPU to memory. The CPU waits for the
    /// copy, and for no other work.
    ///
    /// pre: the range is memory of this device that the device may use, and not empty.
    /// pre: no work uses the range meanwhile (unchecked).
    /// pre: no capture forbids the call.
    fn write(&self, address: u64, bytes: &[u8]) -> DriverResult<()>;

    /// `cuMemcpyAsync` on a stream of the driver's own: copies `size` bytes to other memory of the device, or to or
    /// from host memory that is mapped for it. The CPU waits for the copy, and for no other work.
    ///
    /// pre: both ranges are memory that this device may use. The ranges are whole words of 8 bytes, not empty, and
    /// share no physical memory.
    /// pre: meanwhile no work writes the range at `from`, or uses the range at `to` (unchecked).
    /// pre: no capture forbids the call.
    fn copy(&self, from: u64, to: u64, size: u64) -> DriverResult<()>;
}

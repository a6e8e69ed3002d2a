//! A gate that holds streams while memory changes under fixed addresses.
//!
//! Owns: the contract of [`StreamGate`]. An exchange of chunks copies live bytes to other physical memory and maps that
//! memory in the place of the old one. Other threads may launch work at any time, and the gate holds that work back.

use crate::error::DriverResult;
use crate::ids::StreamId;

/// A copy of `size` bytes from one address of the device to another. The size and both addresses are multiples of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateCopy {
    /// The address of the first byte to copy.
    pub from: u64,
    /// The address to which the first byte is copied.
    pub to: u64,
    /// Bytes, not 0.
    pub size: u64,
}

/// A gate: while it is closed, named streams begin no work.
/// [`DeviceProperties::stream_gates`](super::DeviceProperties::stream_gates) says whether a device has gates.
///
/// On a GPU each stream gets a kernel of one thread, which marks that all earlier work of the stream is over, and then
/// waits for the gate to open. The mark and the wait must be one item of a stream, since another thread could launch
/// work between two items. Measured on an H200: docs/measurements/2026-11-28-gate.
pub trait StreamGate {
    /// Holds the named streams, the default stream, and thereby all streams that wait for the default stream. Then
    /// makes the copies, once all earlier work of these streams is over. The CPU waits about
    /// `patience_ns` nanoseconds until every stream has been given the gate, as long again for the earlier work of the
    /// streams, and then for the copies.
    ///
    /// Returns `true` if the gate is closed and all bytes are copied. On `false` no stream is held, and the targets
    /// have arbitrary contents. Reasons: a stream's earlier work took too long, a stream is being captured, another
    /// thread was in a call that waits for the device, there were more streams than a device can hold, or another
    /// allocator has closed the gate of the device.
    ///
    /// While the gate is closed, the thread that closed it may make only calls of
    /// [`VirtualMemory`](super::VirtualMemory): most other calls would wait for the held streams for ever.
    ///
    /// pre: the ranges are memory of this device that the device may use; no other work uses the targets.
    /// pre: the handles are handles of live streams (unchecked, as for [`Events`](super::Events)).
    /// pre: no capture forbids calls.
    fn close_gate(&self, streams: &[StreamId], copies: &[GateCopy], patience_ns: u64) -> DriverResult<bool>;

    /// Opens the gate that [`Self::close_gate`] closed. The held streams go on. The call cannot fail, because opening
    /// is a write to host memory, which the GPU watches. If the gate is open, the call does nothing.
    fn open_gate(&self);
}

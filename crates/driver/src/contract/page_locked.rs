//! Page-locked host memory, for asynchronous copies at the speed of the link between CPU and GPU.
//!
//! Owns: the contract of [`PageLocked`]. The contents of sleeping memory pass through such memory.

use crate::error::DriverResult;
use crate::ids::HostBuffer;

/// Page-locked host memory, and copies between this memory and the device's memory.
///
/// ```text
/// host_malloc -> buffer --+--> copy_out, copy_in -> host_wait --> host_bytes --+--> host_free
///                         +----------------------------------------------------+
/// ```
/// All copies run on one stream of the driver's own, in the order in which they are given. The copies wait for no other
/// work, and no other work waits for the copies.
///
/// pre, for every call but `host_bytes`: no capture forbids the call.
pub trait PageLocked {
    /// `cuMemHostRegister` of populated pages, or else `cuMemHostAlloc`: returns `size` bytes of page-locked host
    /// memory, for all contexts, with unspecified contents. The call takes 0.15 ms for each MiB with registered huge
    /// pages, and 0.36 ms by `cuMemHostAlloc`. Child processes do not inherit the memory.
    ///
    /// pre: `size` is not 0.
    fn host_malloc(&self, size: u64) -> DriverResult<HostBuffer>;

    /// `cuMemHostUnregister`, or `cuMemFreeHost`: gives a buffer back. The CPU waits for the buffer's copies first.
    ///
    /// pre: the buffer came from `host_malloc`, and was not freed.
    fn host_free(&self, buffer: HostBuffer) -> DriverResult<()>;

    /// `cuMemcpyDtoHAsync`: copies `size` bytes from address `from` into a buffer, from `offset` on. The CPU does not
    /// wait.
    ///
    /// pre: the range at `from` is memory of this device that the device may use, not empty, and its copy has room in
    /// the buffer.
    /// pre: until the wait for the buffer, no work writes the range, and the range stays mapped (unchecked).
    fn copy_out(&self, from: u64, buffer: HostBuffer, offset: u64, size: u64) -> DriverResult<()>;

    /// `cuMemcpyHtoDAsync`: copies `size` bytes of a buffer, from `offset` on, to address `to`. The CPU does not wait.
    ///
    /// pre: the range at `to` is memory of this device that the device may use, and not empty. The copied bytes lie in
    /// the buffer.
    /// pre: until the wait for the buffer, no work uses the range, and the range stays mapped (unchecked).
    fn copy_in(&self, buffer: HostBuffer, offset: u64, to: u64, size: u64) -> DriverResult<()>;

    /// `cuEventSynchronize`: the CPU waits for all copies of a buffer that were given so far.
    ///
    /// pre: the buffer came from `host_malloc`, and was not freed.
    fn host_wait(&self, buffer: HostBuffer) -> DriverResult<()>;

    /// Calls `with` on `size` bytes of a buffer, from `offset` on, so that the CPU can use them. Makes no driver call.
    ///
    /// pre: the CPU has waited for every copy of the buffer; otherwise the status is
    /// [`Status::NOT_READY`](crate::Status::NOT_READY).
    /// pre: `with` makes no call of this driver.
    fn host_bytes(
        &self,
        buffer: HostBuffer,
        offset: u64,
        size: u64,
        with: &mut dyn FnMut(&mut [u8]),
    ) -> DriverResult<()>;
}

//! A driver: the calls of all purposes, and those that concern the device as a whole.
//!
//! Owns: [`Driver`], and what a device says of itself.

use super::events::Events;
use super::peer_access::PeerAccess;
use super::plain_memory::PlainMemory;
use super::process_sharing::ProcessSharing;
use super::stream_capture::StreamCapture;
use super::streams::Streams;
use super::virtual_memory::VirtualMemory;
use crate::driver::call_stats::CallStats;
use crate::driver::error::DriverResult;

/// What the device has, in bytes (`cuMemGetInfo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that `create` and `malloc` could still hand out.
    pub free: u64,
    /// Bytes the device has in all.
    pub total: u64,
}

/// What does not change while the device is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProperties {
    /// Short name for output: `sim:h200`, `cuda:0`.
    pub name: String,
    /// The device's number among those that the process sees, 0 on a simulated one.
    pub ordinal: u32,
    /// Physical memory of the device in bytes.
    pub total_memory: u64,
    /// Every size and address of a virtual-memory call is a multiple of this, in bytes (2 MiB on all NVIDIA GPUs so far).
    pub granularity: u64,
    /// The granularity that the driver recommends for speed, in bytes: a multiple of the other.
    pub recommended_granularity: u64,
    /// Whether the virtual-memory calls work at all.
    pub virtual_memory: bool,
}

/// The driver of one GPU, real or simulated: all calls that an allocator makes of it.
///
/// Implementations are shared between threads and lock for themselves.
///
/// The methods of every trait can be called on a `dyn Driver` as they are. On a concrete type such as
/// [`SimGpu`](crate::driver::sim::SimGpu) they need their traits in scope, which
/// [`driver::prelude`](crate::driver::prelude) has all of. A type that passes most calls on to another driver is a
/// [`ForwardingDriver`](crate::driver::ForwardingDriver).
///
/// No method has a default body: a driver that cannot do something answers
/// [`Status::NOT_SUPPORTED`](crate::driver::Status::NOT_SUPPORTED), and says so itself.
pub trait Driver:
    VirtualMemory + PlainMemory + Events + Streams + StreamCapture + PeerAccess + ProcessSharing + Send + Sync
{
    /// Returns what the device is. Cheap; makes no driver call.
    fn properties(&self) -> &DeviceProperties;

    /// `cuMemGetInfo`: returns how much memory the device has, and how much of it is free.
    fn memory_info(&self) -> DriverResult<MemoryInfo>;

    /// `cuCtxSynchronize`: the CPU waits for all work of the device, whatever its stream.
    ///
    /// pre: no stream is being captured. In a capture it is refused in every mode and from every thread, and invalidates
    /// the capture.
    fn synchronize(&self) -> DriverResult<()>;

    /// Returns the calls made so far and the time spent in them. Makes no driver call.
    fn call_stats(&self) -> CallStats;

    /// Returns the total time in this driver's calls, in nanoseconds: the same as `call_stats().total_ns()`, without the
    /// copy.
    fn busy_ns(&self) -> u64;
}

//! A driver: all traits together, and the calls that concern the device as a whole.
//!
//! Owns: [`Driver`], and the properties of a device.

use super::contents::Contents;
use super::events::Events;
use super::memory_pools::MemoryPools;
use super::page_locked::PageLocked;
use super::peer_access::PeerAccess;
use super::plain_memory::PlainMemory;
use super::process_sharing::ProcessSharing;
use super::stream_capture::StreamCapture;
use super::stream_gate::StreamGate;
use super::streams::Streams;
use super::virtual_memory::VirtualMemory;
use crate::call_stats::CallStats;
use crate::error::DriverResult;

/// The memory of the device, in bytes (`cuMemGetInfo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct MemoryInfo {
    /// Bytes that `create` and `malloc` could still hand out.
    pub free: u64,
    /// Total bytes of the device.
    pub total: u64,
}

/// The properties of a device that do not change while it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProperties {
    /// Short name for output: `sim:h200`, `cuda:0`.
    pub name: String,
    /// The device's number among the devices that the process sees; 0 for a simulated device.
    pub ordinal: u32,
    /// The identity of the device on the machine, which is the same in each process: the PCI bus address of a GPU,
    /// `0000:3b:00`. Empty if no other process can have the same device, or if the driver does not report it.
    pub identity: String,
    /// Physical memory of the device in bytes.
    pub total_memory: u64,
    /// The granularity in bytes: every size and address of a virtual-memory call is a multiple of it (2 MiB on all
    /// NVIDIA GPUs so far).
    pub granularity: u64,
    /// The granularity that the driver recommends for speed, in bytes: a multiple of `granularity`.
    pub recommended_granularity: u64,
    /// Whether the virtual-memory calls work at all.
    pub virtual_memory: bool,
    /// Whether the calls of [`MemoryPools`] work at all.
    pub memory_pools: bool,
    /// Whether streams can be held at a gate ([`StreamGate`]).
    pub stream_gates: bool,
}

/// The driver of one GPU, real or simulated: all calls that an allocator makes.
///
/// Implementations are shared between threads and do their own locking.
///
/// The methods of every trait can be called on a `dyn Driver` as they are. On a concrete type such as `SimGpu` of the
/// simulator, the traits must be in scope; [`prelude`](crate::prelude) has all of the traits. A type that passes most
/// calls on to another driver is a [`ForwardingDriver`](crate::ForwardingDriver).
///
/// No method has a default body: a driver that does not support a call returns
/// [`Status::NOT_SUPPORTED`](crate::Status::NOT_SUPPORTED) explicitly.
pub trait Driver:
    VirtualMemory
    + PlainMemory
    + MemoryPools
    + Events
    + Streams
    + StreamCapture
    + StreamGate
    + Contents
    + PageLocked
    + PeerAccess
    + ProcessSharing
    + Send
    + Sync
{
    /// Returns the properties of the device. The method is cheap, and makes no driver call.
    fn properties(&self) -> &DeviceProperties;

    /// `cuMemGetInfo`: returns how much memory the device has, and how much of it is free.
    fn memory_info(&self) -> DriverResult<MemoryInfo>;

    /// `cuCtxSynchronize`: the CPU waits for all work of the device, on every stream.
    ///
    /// pre: no stream is being captured. In a capture, the call is refused in every mode and from every thread, and
    /// invalidates the capture.
    fn synchronize(&self) -> DriverResult<()>;

    /// Returns the calls made so far and the time spent in them. Makes no driver call.
    fn call_stats(&self) -> CallStats;

    /// Returns the total time in this driver's calls, in nanoseconds: the same as `call_stats().total_ns()`, without a
    /// copy of all statistics.
    fn busy_ns(&self) -> u64;

    /// Returns the time of the clock by which the device's work is timed, in nanoseconds since some moment. The clock
    /// of a simulated device may differ from real time. Makes no driver call.
    fn clock_ns(&self) -> u64;

    /// Makes the calling thread wait for `ns` nanoseconds of [`Self::clock_ns`]. Makes no driver call.
    fn rest(&self, ns: u64);
}

//! The calls of a GPU driver that an allocator makes, and nothing else.
//!
//! ```text
//! crates/driver/  the traits of a driver, the real one through libcuda, and layers over another driver
//! crates/sim/     the simulated GPU, and the machine's own memory (feature `sim`)
//! device.rs       Device: devices by name
//! ```
//!
//! Code above this module does not know CUDA, and code in this module does not know blocks, pools or strategies.

mod device;

pub use device::{Device, OpenDevice, OpenError};
pub(crate) use seamalloc_driver::internal::in_relaxed_capture_mode;
#[doc(inline)]
pub use seamalloc_driver::{
    Call, CallStat, CallStats, CaptureMode, Contents, DeviceProperties, Driver, DriverError, DriverResult, EventId,
    Events, Exported, ForwardingDriver, GateCopy, Handle, HostBuffer, IpcMemory, MemoryInfo, MemoryPool, MemoryPools,
    PageLocked, PeerAccess, PlainMemory, PoolAttribute, ProcessSharing, Status, StreamCapture, StreamGate, StreamId,
    Streams, VirtualMemory, WeakExported, cuda, prelude,
};
#[cfg(feature = "sim")]
#[doc(inline)]
pub use seamalloc_sim as sim;
#[cfg(feature = "sim")]
#[doc(inline)]
pub use seamalloc_sim::host;

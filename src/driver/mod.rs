//! The calls of a GPU driver that an allocator makes, and nothing else.
//!
//! ```text
//! contract/       the small traits of a driver, by purpose, and the duties of both sides of each call
//! device.rs       Device: devices by name
//! error.rs        the kinds of calls, the statuses, and the error of a failed call
//! call_stats.rs   how often each kind of call was made, and how long it took; call_counters.rs counts
//! forward.rs      ForwardingDriver: a layer over another driver, which writes only the calls that differ
//! prelude.rs      all traits of a driver, for their methods
//! bookkeeping/    what drivers without libcuda must note to refuse what CUDA refuses       machine.rs   how much memory the machine has
//! sim/            the simulated GPU       cuda/   a real one, through libcuda       host/   the machine's own memory
//! ```
//!
//! Code above this module does not know CUDA, and code in it does not know blocks, pools or strategies.

mod bookkeeping;
mod call_counters;
mod call_stats;
mod contract;
pub mod cuda;
mod device;
mod error;
mod forward;
#[cfg_attr(not(all(target_os = "linux", target_pointer_width = "64")), path = "no_host.rs")]
pub mod host;
mod machine;
pub mod prelude;
pub mod sim;

pub use crate::ids::{EventId, Handle, HostBuffer, MemoryPool, StreamId};
pub use call_stats::{CallStat, CallStats};
pub(crate) use contract::in_relaxed_capture_mode;
pub use contract::{
    CaptureMode, Contents, DeviceProperties, Driver, Events, Exported, IpcMemory, MemoryInfo, MemoryPools, PageLocked,
    PeerAccess, PlainMemory, PoolAttribute, ProcessSharing, StreamCapture, Streams, VirtualMemory, WeakExported,
};
pub use device::{Device, OpenDevice, OpenError};
pub use error::{Call, DriverError, DriverResult, Status};
pub use forward::ForwardingDriver;

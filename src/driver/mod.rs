//! The calls of a GPU driver that an allocator makes, and nothing else.
//!
//! ```text
//! contract/       the small traits of a driver, by purpose, and the duties of both sides of each call
//! error.rs        the kinds of calls, the statuses, and the error of a failed call
//! call_stats.rs   how often each kind of call was made, and how long it took
//! forward.rs      ForwardingDriver: a layer over another driver, which writes only the calls that differ
//! prelude.rs      all traits of a driver, for their methods
//! sim/            the simulated GPU       cuda/   a real one, through libcuda
//! ```
//!
//! Code above this module does not know CUDA, and code in it does not know blocks, pools or strategies.

mod call_stats;
mod contract;
pub mod cuda;
mod error;
mod forward;
pub mod prelude;
pub mod sim;

pub use crate::ids::{EventId, Handle, StreamId};
pub use call_stats::{CallStat, CallStats};
pub(crate) use contract::in_relaxed_capture_mode;
pub use contract::{
    CaptureMode, Contents, DeviceProperties, Driver, Events, Exported, IpcMemory, MemoryInfo, PeerAccess, PlainMemory,
    ProcessSharing, StreamCapture, Streams, VirtualMemory, WeakExported,
};
pub use error::{Call, DriverError, DriverResult, Status};
pub use forward::ForwardingDriver;

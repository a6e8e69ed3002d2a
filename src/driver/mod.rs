//! The calls an allocator makes of a GPU driver, and nothing else.
//!
//! ```text
//! contract/       the traits of a driver, small ones by purpose, and what both sides of each call see to
//! error.rs        the kinds of calls, the statuses, and the error of a call that failed
//! call_stats.rs   how often each kind of call was made, and how long it took
//! forward.rs      ForwardingDriver: a layer over another driver, which writes only the calls that differ
//! prelude.rs      all traits of a driver at once, for their methods
//! sim/            the simulated GPU       cuda/   a real one, through libcuda
//! ```
//!
//! Nothing above this module knows CUDA, and nothing in it knows blocks, pools or strategies.

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
    CaptureMode, DeviceProperties, Driver, Events, Exported, IpcMemory, MemoryInfo, PeerAccess, PlainMemory,
    ProcessSharing, StreamCapture, Streams, VirtualMemory,
};
pub use error::{Call, DriverError, DriverResult, Status};
pub use forward::ForwardingDriver;

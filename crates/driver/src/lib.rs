//! The calls of a GPU driver that an allocator makes, and nothing else. Programs use the crate as `seamalloc::driver`.
//!
//! ```text
//! contract/       the small traits of a driver, by purpose, and the duties of both sides of each call
//! cuda/           a real GPU, through libcuda
//! error.rs        the kinds of calls, the statuses, and the error of a failed call
//! ids.rs          streams, events and memory by number
//! call_stats.rs   how often each kind of call was made, and how long it took; call_counters.rs counts
//! forward.rs      ForwardingDriver: a layer over another driver, which writes only the calls that differ
//! prelude.rs      all traits of a driver, for their methods
//! machine.rs      how much memory the machine has
//! span.rs         ranges of addresses      units.rs   sizes as people write them      nearest.rs   the guess at a misspelt name
//! fallible.rs     collections whose growth may fail
//! ```
//!
//! Code above this crate does not know CUDA, and code in the crate does not know blocks, pools or strategies.

#![deny(unsafe_code)]

mod call_counters;
mod call_stats;
mod contract;
pub mod cuda;
#[cfg(feature = "cudarc")]
mod cudarc;
mod error;
#[doc(hidden)]
pub mod fallible;
mod forward;
mod ids;
mod machine;
pub mod nearest;
pub mod prelude;
#[doc(hidden)]
pub mod span;
pub mod units;

pub use call_stats::{CallStat, CallStats};
pub use contract::{
    CaptureMode, Contents, DeviceProperties, Driver, Events, Exported, GateCopy, IpcMemory, MemoryInfo, MemoryPools,
    PageLocked, PeerAccess, PlainMemory, PoolAttribute, ProcessSharing, StreamCapture, StreamGate, Streams,
    VirtualMemory, WeakExported,
};
pub use error::{Call, DriverError, DriverResult, Status};
pub use forward::ForwardingDriver;
pub use ids::{EventId, Handle, HostBuffer, MemoryPool, StreamId};

/// Parts that the crates of seamalloc share. They may change with any version.
#[doc(hidden)]
pub mod internal {
    pub use crate::call_counters::CallCounters;
    pub use crate::contract::in_relaxed_capture_mode;
    pub use crate::machine::{UNKNOWN_MEMORY, memory};
}

//! The contract between an allocator and a GPU driver: one small trait for each purpose, and [`Driver`] for all of
//! them.
//!
//! ```text
//! device.rs            Driver: every trait below, and the calls for the device as a whole
//! virtual_memory.rs    VirtualMemory: address space, physical memory, and mappings of this memory at addresses
//! plain_memory.rs      PlainMemory: memory that has its address from the start
//! memory_pools.rs      MemoryPools: memory that is allocated and freed in the order of streams
//! events.rs            Events: markers in streams, and waits for them
//! streams.rs           Streams: which stream a handle names, and the wait for a stream
//! stream_capture.rs    StreamCapture: the calls that captures forbid, and how a thread makes them nevertheless
//! stream_gate.rs       StreamGate: streams that stand still while memory changes under fixed addresses
//! contents.rs          Contents: the bytes in memory, for guard mode, exchanges and sleep
//! page_locked.rs       PageLocked: host memory that is copied from and to at the speed of the link
//! peer_access.rs       PeerAccess: other devices of the process
//! process_sharing.rs   ProcessSharing: other processes
//! ```
//!
//! The rules of all calls:
//!
//! - Sizes, offsets and addresses are bytes.
//! - Every call may fail. A call that fails has changed nothing, except that a call which a stream capture forbids
//!   invalidates that capture.
//! - Each call behaves as the CUDA call of the same name is documented and was measured. An implementation refuses the
//!   arguments that CUDA refuses, with the same [`Status`](crate::Status).
//! - A line `pre:` is a condition that the caller must keep. A driver refuses the call if it can tell that the
//!   condition is broken. A condition with "unchecked" cannot be checked: if it is broken, the context of a real GPU
//!   may be lost, or results may be wrong.

mod contents;
mod device;
mod events;
mod memory_pools;
mod page_locked;
mod peer_access;
mod plain_memory;
mod process_sharing;
mod stream_capture;
mod stream_gate;
mod streams;
mod virtual_memory;

pub use contents::Contents;
pub use device::{DeviceProperties, Driver, MemoryInfo};
pub use events::Events;
pub use memory_pools::{MemoryPools, PoolAttribute};
pub use page_locked::PageLocked;
pub use peer_access::PeerAccess;
pub use plain_memory::PlainMemory;
pub use process_sharing::{Exported, IpcMemory, ProcessSharing, WeakExported};
pub use stream_capture::in_relaxed_capture_mode;
pub use stream_capture::{CaptureMode, StreamCapture};
pub use stream_gate::{GateCopy, StreamGate};
pub use streams::Streams;
pub use virtual_memory::VirtualMemory;

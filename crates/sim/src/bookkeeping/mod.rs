//! The state by which a driver without CUDA refuses what CUDA refuses: shared by the simulated GPU and host
//! memory.
//!
//! ```text
//! memory.rs    reservations, handles, mappings: which exist, and the rules of every call about them
//! capture.rs   captures, and what they forbid          addresses.rs      which addresses of a region are free
//! faults.rs    reports beyond the driver's answers     shared_memory.rs  the name of memory in other processes
//! refusal.rs   why a call is refused
//! ```

mod addresses;
mod capture;
mod faults;
mod host_buffers;
mod memory;
mod refusal;
mod shared_memory;

pub(super) use addresses::Addresses;
pub(super) use capture::Captures;
#[cfg(test)]
pub(super) use capture::{CAPTURED_EVENT, ILLEGAL_STATE, STREAM_CAPTURE_ISOLATION, STREAM_CAPTURE_WRONG_THREAD};
pub use faults::{Fault, Leaks, Range};
pub(super) use host_buffers::HostBuffers;
pub use memory::Piece;
pub(super) use memory::{GRANULARITY, Memory};
pub(super) use refusal::{Answer, Refusal, refuse};
pub(super) use shared_memory::{SharedMemory, new_identity};

//! The state from which a driver without CUDA knows the calls that CUDA would refuse. The simulated GPU and the host
//! device share this code.
//!
//! ```text
//! memory/mod.rs    reservations, handles, mappings: which exist, and the rules of every call about them
//! capture.rs       captures, and the calls that they forbid
//! addresses.rs     the free addresses of a region
//! host_buffers.rs  page-locked buffers of the host, and the rules of calls about them
//! faults.rs        reports beyond the driver's answers
//! shared_memory.rs the name of memory in other processes
//! refusal.rs       the reason of a refusal
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

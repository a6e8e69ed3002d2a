//! `libseamalloc`: seamalloc for C, and for whatever loads C libraries. `seamalloc.h` is generated from this crate.
//!
//! ```text
//! allocator.rs   create and destroy; allocate, free, give back, limits; memory callbacks
//! pools.rs       private pools and their routes
//! sharing.rs     memory of one process in another
//! sources.rs     private pools with segments of their own
//! figures.rs     statistics and fragmentation, as structs and as JSON
//! recording.rs   snapshots and traces, to files
//! picture.rs     what an allocator holds, segment by segment
//! watching.rs    who is told of what happens: the recorder, a callback
//! pluggable.rs   seamalloc_malloc and seamalloc_free: PyTorch's pluggable signature
//! hooks.rs       its other hooks: streams, the cache, limits, pools
//! status.rs      what functions return, and a thread's last error
//! boundary.rs    what every function does first and last; what C hands over
//! registry.rs    handles: numbers that are checked, so that a stale one is an error
//! instance.rs    what is behind a handle
//! fork.rs        a child process touches nothing
//! ```
//!
//! No panic leaves a function, no pointer is followed before it is compared with NULL, and what a caller holds of an
//! allocator is a number that is never given twice.

#![allow(clippy::missing_safety_doc, reason = "the header says once what all functions ask of their callers")]

pub mod allocator;
mod boundary;
pub mod figures;
mod fork;
pub mod hooks;
mod instance;
pub mod picture;
pub mod pluggable;
pub mod pools;
pub mod recording;
mod registry;
pub mod sharing;
pub mod sources;
pub mod status;
pub mod watching;

use std::ffi::{CStr, c_char, c_void};

/// The version of the binary interface that this header describes; `seam_abi_version` answers that of the library. The
/// number is in the library's soname too. It grows with every change that would break a compiled program; what is
/// added (a function, a field at the end of a struct that begins with its size, a status) leaves it as it is.
pub const ABI_VERSION: u32 = 1;

/// The library's version, for people.
const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"unknown",
};

/// An allocator: a number, not a pointer. It is never given twice, so that one that was destroyed is refused
/// (`SEAM_STATUS_INVALID_HANDLE`). 0 is none.
pub type AllocatorId = u64;

/// A CUDA stream, `cudaStream_t` or `CUstream`. NULL and `cudaStreamLegacy` are the default stream.
/// `cudaStreamPerThread` is refused: it is a different stream in each thread, and memory is reused in the order of one.
/// Any other must be a live stream of the allocator's device, which nobody can check: alive until `seam_forget_stream`, or
/// until the allocator is destroyed. On a simulated device every value is a stream.
pub type Stream = *mut c_void;

/// `SEAM_ABI_VERSION` of the library that is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn seam_abi_version() -> u32 {
    ABI_VERSION
}

/// The version of the library that is loaded, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn seam_version() -> *const c_char {
    VERSION.as_ptr()
}

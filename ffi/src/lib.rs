//! `libseamalloc`: seamalloc for C, and for programs that load C libraries. `seamalloc.h` is generated from this crate.
//!
//! ```text
//! pluggable.rs       seamalloc_malloc and seamalloc_free: PyTorch's pluggable signature
//! hooks.rs           the other hooks of that signature: streams, the cache, limits, pools
//! allocator.rs       create and destroy; allocate, free, empty the cache, limits; memory callbacks
//! pools.rs           private pools and their routes
//! sources.rs         private pools with segments of their own
//! shared_memory.rs   memory of one process in another
//! figures.rs         statistics and fragmentation, as structs and as JSON
//! idle.rs            the thread that gives an idle program's memory back
//! lending.rs         memory that is lent between processes
//! live.rs            statistics for other processes, metrics, and the flight recorder in files
//! segments.rs        the memory of an allocator, segment by segment
//! guard.rs           guard mode: explanations, findings, a program's notes on its streams
//! recording.rs       snapshots and traces, to files
//! observing.rs       a callback that is called for each event
//! registry.rs        handles: numbers that are checked, so that a stale one is an error
//! slots.rs           a place for a value that one thread may take away while others use it
//! primitive.rs       the atomics of slots.rs, which tests replace by others
//! instance.rs        the object behind a handle
//! log.rs             the log that SEAMALLOC_LOG asks for
//! observers.rs       the observers of an allocator: the recorder, a callback
//! boundary.rs        the first and last steps of every function, and the values that C passes
//! fork.rs            a forked child process, which touches nothing
//! status.rs          the status that functions return, and a thread's last error
//! ids.rs             the numbers and handles by which C names things
//! ```
//!
//! A file imports only files below it in this list.
//!
//! No panic leaves a function, no pointer is followed before it is compared with NULL, and a caller's handle of an
//! allocator is a number that is never used twice.

#![allow(clippy::missing_safety_doc, reason = "the header says once what all functions ask of their callers")]

pub mod allocator;
mod answers;
mod boundary;
pub mod figures;
mod fork;
pub mod growing;
pub mod guard;
pub mod hooks;
mod idle;
pub mod ids;
mod instance;
#[cfg(unix)]
mod lending;
pub mod live;
mod log;
pub mod observers;
pub mod observing;
pub mod pluggable;
pub mod pools;
mod primitive;
pub mod recording;
mod registry;
pub mod segments;
pub mod shared_memory;
pub mod sleep;
mod slots;
pub mod sources;
pub mod spill;
pub mod status;

use std::ffi::{CStr, c_char};

/// The version of the binary interface that this header describes; `seam_abi_version` returns the version of the loaded
/// library. The number is in the library's soname too. It grows with every change that would break a compiled program.
/// An addition (a function, a field at the end of a struct that begins with its size, a status) does not change it.
pub const ABI_VERSION: u32 = 1;

/// The library's version, for people.
const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"unknown",
};

/// Returns `SEAM_ABI_VERSION` of the library that is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn seam_abi_version() -> u32 {
    ABI_VERSION
}

/// Returns the version of the library that is loaded, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn seam_version() -> *const c_char {
    VERSION.as_ptr()
}

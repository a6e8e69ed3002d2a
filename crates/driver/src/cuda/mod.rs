//! The real driver: libcuda, which is loaded at run time, and not needed to build or link.
//!
//! ```text
//! calls.rs            the driver's traits: which entry point serves which call
//! streams.rs          which streams are accepted, and streams made for programs that have none
//! stream_gate.rs      the calls of a gate on streams          gate.rs     the gate: a kernel in each stream (gate.ptx)
//! contents.rs         the bytes in memory: fills, and copies to the CPU
//! peer_access.rs      other devices' access to this device's memory      access.rs   the peers, and the mapped ranges
//! reopening.rs        other devices' access to memory that is mapped already
//! process_sharing.rs  memory that processes share
//! memory_pools.rs     stream-ordered memory: pools, and allocations from them
//! open.rs             opening a GPU, with the features of the GPU and its driver; closing it
//! page_locked.rs      page-locked host memory, and its copies
//! registration.rs     the sources of this memory: locked pages of the system (host_pages.rs), or the driver's memory
//! place.rs            the place of a device's memory: on the GPU, or page-locked in the machine
//! query.rs            queries of a device that need no context
//! device.rs           CudaDriver: one open GPU, its live events and handles
//! context.rs          the GPU's context, current during a call
//! api.rs              CudaApi: libcuda's entry points, each one optional
//! error.rs            errors before a device is open
//! ffi.rs              CUDA's types and constants as plain integers
//! fake_libcuda/       a libcuda for tests on machines without a GPU
//! ```
//!
//! Owns: every call of libcuda. All `unsafe` code for libcuda is in this folder. This code does not know blocks or
//! pools.

#![allow(unsafe_code)]

mod access;
mod api;
mod calls;
mod contents;
mod context;
mod device;
mod error;
#[cfg(any(test, feature = "fake_libcuda"))]
#[doc(hidden)]
pub mod fake_libcuda;
mod ffi;
mod gate;
#[cfg_attr(not(target_os = "linux"), path = "no_host_pages.rs")]
mod host_pages;
mod locked_buffer;
mod memory_pools;
mod open;
mod page_locked;
mod peer_access;
mod place;
mod process_sharing;
mod query;
mod registration;
mod reopening;
mod stream_gate;
mod streams;
#[cfg(test)]
mod tests;

pub use api::{CudaApi, CudaVersion};
pub use device::CudaDriver;
pub use error::{CudaLoadError, CudaOpenError, MissingEntryPoint};

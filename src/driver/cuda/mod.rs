//! The real driver: libcuda, loaded at run time and needed neither to build nor to link.
//!
//! ```text
//! driver.rs    the Driver trait: which entry point serves which call
//! open.rs      opening a GPU: what it and its driver can do
//! device.rs    CudaDriver: one open GPU, its live events and handles
//! access.rs    which devices may use its memory
//! streams.rs   which streams it takes, and streams made for programs that have none
//! context.rs   its context, current during a call       calls.rs   counts and times
//! api.rs       CudaApi: libcuda's entry points, each one optional
//! ffi.rs       CUDA's types and constants as plain integers
//! ```
//!
//! Owns: every call of libcuda. All `unsafe` code for it is in this folder. Knows nothing of blocks or pools.

#![allow(unsafe_code)]

mod access;
mod api;
mod calls;
mod context;
mod device;
mod driver;
mod error;
mod ffi;
mod open;
mod share;
#[cfg(test)]
mod stand_in;
mod streams;

pub use api::{CudaApi, CudaVersion};
pub use device::CudaDriver;
pub use error::{CudaLoadError, CudaOpenError, MissingEntryPoint};

//! The reports of an allocator: statistics, snapshots, events, and the report of a refused request.
//!
//! Owns: plain values that print themselves. The crate does not read an allocator: the heap and `diagnose` fill the
//! values in. Programs use the crate as `seamalloc::report`.

#![deny(unsafe_code)]

pub mod flight;
pub mod fragmentation;
pub mod guard;
pub mod lending;
pub mod observer;
pub mod out_of_memory;
mod pending_waits;
pub mod pool;
pub mod pressure;
pub mod sleep;
pub mod snapshot;
mod stalls;
pub mod stats;
mod text;
mod waits;

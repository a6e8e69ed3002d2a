//! What an allocator tells: statistics, snapshots, events, and the report of a request that could not be met.
//!
//! Owns: plain values that print themselves. Nothing here looks at an allocator: the heap fills them in, `diagnose` judges.

pub mod fragmentation;
pub mod observer;
pub mod out_of_memory;
pub mod pool;
pub mod pressure;
pub mod snapshot;
mod stalls;
pub mod stats;
mod waits;

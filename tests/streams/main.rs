//! Streams: when memory that one of them used serves another, how streams end, what threads do side by side, and what private pools
//! keep of captures.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod ended_streams;
mod epochs;
mod freed_under;
mod growing_apart;
mod low_water_mark;
mod many_threads;
mod pools;
mod recorded_streams;
mod recorded_waits;

#[path = "../common/graph.rs"]
mod graph;
#[path = "../common/log.rs"]
#[allow(dead_code, reason = "of errors and warnings, those that are asked for")]
mod log;
#[path = "../common/long_kernels.rs"]
mod long_kernels;
#[path = "../common/random.rs"]
mod random;
#[path = "../common/simulated.rs"]
mod simulated;

//! A GPU memory allocator, and the simulated GPU that judges it.
//!
//! - [`Allocator`]: a caching allocator for the memory of one device, with one of the strategies of [`StrategyKind`].
//!   `stitch` joins free memory wherever it lies; the other two are PyTorch's, to compare with.
//! - [`driver`]: what an allocator asks of a GPU. [`driver::sim::SimGpu`] simulates one, [`driver::cuda::CudaDriver`]
//!   is a real one, which [`Allocator::cuda`] opens.
//!
//! The package `seamalloc-trace` reads, writes, records, generates and replays allocation traces of real programs.
//!
//! The README shows the command `seamalloc`, which compares strategies on traces; docs/design.md says how it all works.
//!
//! The library does not print, exit or panic. Errors are values ([`Error`]), events go to `tracing`.

#![deny(unsafe_code)]

mod allocator;
mod blocks;
mod config;
mod deferred;
pub mod driver;
mod error;
pub mod fragmentation;
mod free_index;
mod heap;
mod home;
mod ids;
mod ipc;
pub mod nearest;
pub mod observer;
mod pools;
mod pressure;
pub mod rounding;
pub mod shortage;
pub mod snapshot;
mod source;
mod stats;
mod strategy;
pub mod units;
mod views;

pub use allocator::Allocator;
pub use config::{Config, ConfigError, Sharing, StrategyKind};
pub use error::{Error, Result};
pub use fragmentation::Fragmentation;
pub use ids::PoolId;
pub use ipc::{IpcError, Shared};
pub use pools::{PoolBlock, PoolStats, Route};
pub use pressure::{CallbackId, MemoryPressure};
pub use shortage::OutOfMemory;
pub use source::{SegmentSource, Segments, SourceError};
pub use stats::{STALL_BUCKETS, Stalls, Stat, StatByPool, Stats, Waits};

/// The README's examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

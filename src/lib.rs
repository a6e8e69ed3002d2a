//! A GPU memory allocator, and a simulated GPU to test it on.
//!
//! ```
//! use seamalloc::{Allocator, StreamId};
//!
//! let allocator = Allocator::open("sim:h200", "memory_limit:8GiB")?;
//! let block = allocator.block(1 << 30, StreamId::DEFAULT)?;
//! assert_eq!(block.len(), 1 << 30);
//! # Ok::<(), seamalloc::Error>(())
//! ```
//!
//! - [`Allocator`]: a caching allocator for the memory of one device, with one of the strategies of [`StrategyKind`].
//!   `stitch` joins free memory of any addresses; `caching` and `expandable` are PyTorch's two strategies. The feature
//!   `baselines` adds allocators of the literature, for comparison.
//! - [`Block`], [`Growing`], [`Pool`], [`PoolRoute`], [`Stream`]: values that a program owns. Dropping such a value
//!   frees its memory, or ends its use of the allocator.
//! - [`HostPool`]: an allocator for page-locked host memory, which the CPU uses too.
//! - [`driver`]: the driver calls that an allocator makes. [`driver::sim::SimGpu`] simulates a GPU,
//!   [`driver::cuda::CudaDriver`] calls a real GPU ([`Allocator::cuda`] opens it), and [`driver::host::HostDriver`]
//!   hands out the machine's own memory.
//!
//! The package `seamalloc-trace` reads, writes, records, generates and replays allocation traces of real programs. The
//! package `seamalloc-layers` has layers over an allocator: limits, logs, retries, one allocator for each stream, pools
//! for CUDA graphs.
//!
//! The README shows the command `seamalloc`, which compares strategies on traces. docs/rust.md is the page for
//! programs, docs/design.md explains how the allocator works, and docs/ARCHITECTURE.md is the map of the code.
//!
//! The library does not print, exit or panic. Errors are values ([`Error`]); log events go to `tracing`.

#![deny(unsafe_code)]

mod allocator;
mod backing;
mod diagnose;
pub mod driver;
mod error;
mod features;
mod heap;
mod host_pool;
mod ids;
mod limits;
mod owned;
mod strategy;
mod streams;

pub use allocator::operations;
pub use allocator::{Allocator, CallbackId, Extent, IdleRelease, Lender};
#[doc(inline)]
pub use config::{
    Advice, ClassicOptions, ColdestFirst, Config, ConfigError, GuardOptions, Headroom, PaddleFlags, SpillCandidate,
    SpillPolicy, Split, StrategyKind, StreamSharing, rounding,
};
pub use error::{Error, Result};
pub use heap::{Backup, Route, SegmentSource, Segments, SourceError};
pub use host_pool::HostPool;
#[doc(inline)]
pub use ids::{PoolId, StreamId};
#[doc(inline)]
pub use ipc::{IpcError, IpcHandle};
pub use owned::{Block, Growing, Pool, PoolRoute, RawBlock, Stream};
#[cfg(feature = "cudarc")]
pub use owned::{CudaBlock, CudaBlockError};
#[doc(inline)]
pub use report::{
    flight::{self, Flight},
    fragmentation::{self, Fragmentation},
    guard::{self as guard_report, Explanation, Finding, GuardStats},
    lending::{LendableBytes, Lending, Lent, Shortage},
    observer,
    out_of_memory::{self, OutOfMemory, OutOfMemoryReport},
    pool::{PoolBlock, PoolStats},
    pressure::MemoryPressure,
    sleep::{SleepNotice, SleepStage},
    snapshot,
    stats::{
        HeadroomStats, PendingWaits, STALL_BUCKETS, SleepStats, SpillStats, SplitStats, Stalls, Stat, StatByPool,
        Stats, Waits,
    },
};
use seamalloc_config as config;
use seamalloc_driver::{fallible, span};
#[doc(inline)]
pub use seamalloc_driver::{nearest, units};
use seamalloc_ipc as ipc;
#[doc(inline)]
pub use seamalloc_report as report;

/// The README's examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The examples of the page about sleep are tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/sleep.md")]
struct SleepPage;

/// The examples of the page about growth are tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/growing.md")]
struct GrowingPage;

/// The examples of the page for Rust are tests; one example uses cudarc.
#[cfg(all(doctest, feature = "cudarc"))]
#[doc = include_str!("../docs/rust.md")]
struct RustPage;

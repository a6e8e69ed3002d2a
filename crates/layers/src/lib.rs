//! Layers over an allocator: small types, each of which changes one operation of the resource below. Layers can be
//! stacked.
//!
//! A [`MemoryResource`] hands out blocks: an [`Allocator`](seamalloc::Allocator), or a layer over another resource.
//! Layers are generic over the resource below; an [`Arc`](std::sync::Arc) of a resource is a resource too, also as
//! `Arc<dyn MemoryResource>`. Layers hold no device memory of their own, and a call that fails leaves each layer
//! unchanged.
//!
//! | layer | changes |
//! |---|---|
//! | [`Limit`] | requests beyond a limit of live bytes are refused |
//! | [`Logging`] | a line for each request and free, which RMM's replay reads |
//! | [`Tracking`] | a table of live blocks, with stacks; unknown frees are errors |
//! | [`FailureCallback`] | the program is asked about requests that failed |
//! | [`Retry`] | a request that finds too little memory waits for frees of other threads |
//! | [`Statistics`] | counts live blocks and bytes, and their peaks |
//! | [`Capture`] | a private pool for each CUDA graph; no release during a capture |
//! | [`Facade`] | allocators by name, one for each device, stream or thread, made when first used |
//!
//! ```
//! use seamalloc::driver::{StreamId, sim::{SimConfig, SimGpu}};
//! use seamalloc_layers::{Limit, MemoryResource, Retry, Stacks, Statistics, Tracking};
//! use seamalloc::{Allocator, Config};
//! use std::sync::Arc;
//!
//! let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=1GiB")?)?);
//! let allocator = Arc::new(Allocator::new(gpu, Config::default())?);
//! let limited = Limit::new(Arc::clone(&allocator), 100 << 20);
//! let memory = Tracking::new(Statistics::new(Retry::new(limited, 10)), Stacks::Off);
//! let block = memory.allocate(60 << 20, StreamId::DEFAULT)?;
//! assert!(memory.allocate(60 << 20, StreamId::DEFAULT).is_err_and(|error| error.is_out_of_memory()));
//! assert_eq!(memory.outstanding()?.len(), 1);
//! memory.deallocate(block, StreamId::DEFAULT)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! docs/layers.md says in which order layers make sense.

#![forbid(unsafe_code)]

mod allocator;
mod capture;
mod contract;
mod error;
mod facade;
mod failure_callback;
mod limit;
mod logging;
mod places;
mod retry;
mod statistics;
mod tracking;

pub use capture::Capture;
pub use contract::{Layer, MemoryResource, PrivatePools};
pub use error::{ResourceError, Result};
pub use facade::{Facade, FacadeBuilder};
pub use failure_callback::FailureCallback;
pub use limit::{LIMIT_ALIGNMENT, Limit};
pub use logging::{LOG_HEADER, Logging};
pub use places::{SharedResource, Spread};
pub use retry::{GIVE_WAY, PADDLE_RETRY_TIME_MS, Retry, RetryFigures};
pub use seamalloc::RawBlock;
pub use statistics::{Counter, Counters, Statistics};
pub use tracking::{Outstanding, Stacks, Tracking};

/// The examples of the page about layers are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/layers.md")]
struct LayersPage;

//! memquilt: a GPU memory allocator.

#![deny(unsafe_code)]

mod allocator;
mod blocks;
mod config;
mod deferred;
pub mod driver;
mod error;
mod free_index;
mod heap;
pub mod nearest;
pub mod observer;
pub mod rounding;
pub mod snapshot;
mod stats;
mod strategy;
#[cfg(feature = "trace")]
pub mod trace;
pub mod units;

pub use allocator::Allocator;
pub use config::{Config, ConfigError, StrategyKind};
pub use error::{Error, OutOfMemory, Result};
pub use stats::{Stalls, Stat, StatByPool, Stats};

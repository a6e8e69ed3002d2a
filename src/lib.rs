//! memquilt: a GPU memory allocator.

#![deny(unsafe_code)]

pub mod driver;
pub mod observer;
pub mod snapshot;
#[cfg(feature = "trace")]
pub mod trace;
pub mod units;

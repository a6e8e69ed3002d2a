//! All traits of a driver. Import them to call every method of a concrete driver.
//!
//! ```
//! use seamalloc::driver::prelude::*;
//! use seamalloc::driver::sim::{SimConfig, SimGpu};
//!
//! let gpu = SimGpu::new(SimConfig::default())?;
//! let address = gpu.malloc(1 << 20)?;
//! gpu.free(address)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use super::contract::Driver;
pub use super::contract::{
    Contents as _, Events as _, MemoryPools as _, PageLocked as _, PeerAccess as _, PlainMemory as _,
    ProcessSharing as _, StreamCapture as _, StreamGate as _, Streams as _, VirtualMemory as _,
};

//! An allocator on a simulated GPU of its own.

use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::{Allocator, Config};
use std::sync::Arc;

/// The device, under the name that the tests that also run on another device use.
#[allow(dead_code, reason = "most tests run on no other")]
pub(crate) type Device = SimGpu;

/// A device alone.
#[allow(dead_code, reason = "as above")]
pub(crate) fn device(spec: &str) -> Device {
    SimGpu::new(SimConfig::parse(spec).unwrap()).unwrap()
}

/// The GPU as [`SimConfig::parse`] reads it, and an allocator on it.
pub(crate) fn on(device: &str, config: Config) -> (Arc<SimGpu>, Allocator) {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse(device).unwrap()).unwrap());
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), config).unwrap();
    (gpu, allocator)
}

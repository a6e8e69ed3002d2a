//! Layers over an allocator: each by itself, random stacks of them against a model, threads that wait, graphs, and facades.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod alone;
mod capture;
mod facade;
mod fake;
mod log;
mod retry;
mod stack;
mod stacks;

use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::{Allocator, Config};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId::DEFAULT;
const SIDE: StreamId = StreamId(8);

fn gpu(device: &str) -> Arc<SimGpu> {
    Arc::new(SimGpu::new(SimConfig::parse(device).unwrap()).unwrap())
}

fn on(device: &str, options: &str) -> (Arc<SimGpu>, Arc<Allocator>) {
    let gpu = gpu(device);
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::parse(options).unwrap()).unwrap();
    (gpu, Arc::new(allocator))
}

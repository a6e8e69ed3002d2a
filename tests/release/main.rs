//! Memory goes back to the driver: just enough of it, within every limit, and before any request is refused. What a refusal waits
//! for and says.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod bounds;
mod could_be_met;
mod free_memory;
mod headroom;
mod idle;
mod last_steps;
mod lending;
mod limit;
mod pending_waits;
mod refusal;
mod retry;
mod shortage;
mod split_advice;
mod trim;
mod watch;

#[path = "../common/random.rs"]
mod random;
#[path = "../common/script.rs"]
mod script;
#[path = "../common/simulated.rs"]
mod simulated;
#[path = "../common/step.rs"]
mod step;

use seamalloc::driver::sim::SimConfig;
use seamalloc::driver::{Driver, StreamId};
use seamalloc::{Allocator, Config, StrategyKind};
use std::sync::Arc;
use watch::Watch;

const MIB: u64 = 1 << 20;
/// Stitching's requests of this size are met by two chunks.
const CHUNK: u64 = 16 * MIB;
const MAIN: StreamId = StreamId::DEFAULT;
const SIDE: StreamId = StreamId(7);

/// An allocator on a simulated device that is watched.
fn on(kind: StrategyKind, device: &str, options: &str) -> (Arc<Watch>, Allocator) {
    let gpu = Arc::new(Watch::new(SimConfig::parse(device).unwrap()));
    let config = Config { strategy: kind, ..Config::parse(&format!("chunk_size_mb:8,{options}")).unwrap() };
    let allocator = Allocator::new(Arc::<Watch>::clone(&gpu), config).unwrap();
    (gpu, allocator)
}

fn reserved(allocator: &Allocator) -> u64 {
    allocator.stats().reserved_bytes.all.current
}

/// Bytes that the device says are held, against what the allocator says; and the allocator's own rules.
fn balanced(gpu: &Watch, allocator: &Allocator) {
    let info = gpu.memory_info().unwrap();
    assert_eq!(info.total - info.free, reserved(allocator));
    allocator.reports().check().unwrap();
    assert!(gpu.sim.faults().is_empty(), "{:?}", gpu.sim.faults());
}

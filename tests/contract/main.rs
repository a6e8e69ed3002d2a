//! What every strategy promises: one suite, and a short file for each strategy that runs it.
//!
//! A new strategy gets all of it by a file of its own with the line `contract!(Subject::of(…))`, and a `mod` line below. What
//! each strategy does in its own way is in `strategies.rs`, `gmlake.rs` and `stitching.rs`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

#[macro_use]
mod suite;

mod caching;
mod expandable;
mod gmlake;
mod stitch;

mod blocks;
mod captures;
mod ended_streams;
mod failures;
mod figures;
mod graphs;
mod hostile;
mod limits;
mod peers;
mod pool_segments;
mod pool_sources;
mod pools;
mod pressure;
mod release;
mod released_pools;
#[cfg(target_os = "linux")]
mod sharing;
mod shortage;
mod streams;
mod threads;
mod trim;
mod unreliable_sources;

#[path = "../graph/mod.rs"]
mod graph;
#[path = "../hostile/liar.rs"]
mod liar;
#[path = "../long_kernels/mod.rs"]
mod long_kernels;
#[path = "../physical/mod.rs"]
mod physical;
#[path = "../random/mod.rs"]
mod random;
#[path = "../shortage/script.rs"]
mod script;
#[cfg(target_os = "linux")]
#[path = "../sharing/blocks.rs"]
mod shared_blocks;
#[path = "../simulated/mod.rs"]
mod simulated;
mod source;
#[path = "../release/step.rs"]
mod step;

use seamalloc::driver::sim::SimGpu;
use seamalloc::driver::{Call, Driver, StreamId};
use seamalloc::{Allocator, Config, StrategyKind};
use std::path::Path;
use std::sync::Arc;
use suite::Subject;

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId::DEFAULT;
const SIDE: StreamId = StreamId(8);
/// Chunks of 8 MiB, with the strategy that has any: requests of [`CHUNK`] bytes are met by two of them.
const SMALL_CHUNKS: &str = "chunk_size_mb:8";
const CHUNK: u64 = 16 * MIB;

/// Long programs are shorter by this factor where each operation checks all tables.
const SHORTER: u64 = if cfg!(feature = "paranoid") { 3 } else { 1 };

fn on(kind: StrategyKind, device: &str) -> (Arc<SimGpu>, Allocator) {
    simulated::on(device, Config::with_strategy(kind))
}

fn with_options(kind: StrategyKind, device: &str, options: &str) -> (Arc<SimGpu>, Allocator) {
    simulated::on(device, Config { strategy: kind, ..Config::parse(options).unwrap() })
}

fn in_small_chunks(kind: StrategyKind, device: &str, options: &str) -> (Arc<SimGpu>, Allocator) {
    with_options(kind, device, &format!("{SMALL_CHUNKS},{options}"))
}

fn reserved(allocator: &Allocator) -> u64 {
    allocator.stats().reserved_bytes.all.current
}

fn calls(gpu: &SimGpu, call: Call) -> u64 {
    gpu.call_stats().get(call).count
}

/// Bytes that the device says are held, against what the allocator says; the allocator's own rules; and no kernel has met
/// memory that was not there.
fn balanced(gpu: &SimGpu, allocator: &Allocator) {
    let info = gpu.memory_info().unwrap();
    assert_eq!(info.total - info.free, reserved(allocator));
    allocator.check().unwrap();
    let memory = allocator.fragmentation();
    assert_eq!(memory.reserved, memory.allocated + memory.pending + memory.free + memory.unsettled, "{memory:?}");
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
}

#[test]
fn every_strategy_has_its_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contract");
    for kind in StrategyKind::ALL {
        assert!(folder.join(format!("{kind}.rs")).exists(), "{kind} has no file: nothing holds it to the contract");
        assert!(include_str!("main.rs").contains(&format!("\nmod {kind};\n")), "{kind}.rs is not part of the tests");
    }
}

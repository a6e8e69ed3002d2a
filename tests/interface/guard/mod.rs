//! Guard mode: planted mistakes are all found, correct programs are not blamed, and nothing is lost.

mod accounting;
mod failures;
mod memory_bugs;
mod pools;
mod quiet;
mod stream_bugs;

use crate::simulated;
use seamalloc::driver::sim::{Fault, Range, SimGpu};
use seamalloc::driver::{Call, Driver, Status, StreamId};
use seamalloc::{Allocator, Config, Finding, StrategyKind};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// The stream of an allocation, and others.
const S: StreamId = StreamId(1);
const T: StreamId = StreamId(2);
const U: StreamId = StreamId(3);

fn guarded(options: &str) -> (Arc<SimGpu>, Allocator) {
    simulated::on("sim:h200", Config::parse(options).unwrap())
}

fn range(address: u64, size: u64) -> Range {
    Range { address, size }
}

/// Launches a kernel that a GPU would stop with an illegal address. Returns what the allocator says of that address.
fn illegal(gpu: &SimGpu, allocator: &Allocator, stream: StreamId, used: Range) -> String {
    let before = gpu.faults().len();
    let error = gpu.launch(stream, &[used], 10).unwrap_err();
    assert_eq!(error.status, Status::ILLEGAL_ADDRESS);
    let faults = gpu.faults();
    let Some(Fault::UnmappedUse { range, .. }) = faults.get(before) else { panic!("{faults:?}") };
    allocator.guard().explain(range.address).unwrap().to_string()
}

/// The names of all findings so far.
fn names(allocator: &Allocator) -> Vec<&'static str> {
    let found = allocator.guard().findings();
    assert_eq!(allocator.stats().guard.findings, found.len() as u64);
    found.iter().map(Finding::name).collect()
}

/// Checks every rule, and that all memory is accounted to the byte.
fn balanced(gpu: &SimGpu, allocator: &Allocator) {
    allocator.reports().check().unwrap();
    assert_eq!(gpu.leaks().bytes, allocator.stats().reserved_bytes.all.current);
}

/// Ends an allocator of which nothing is live: it leaves nothing behind.
fn ends_clean(gpu: &SimGpu, allocator: Allocator) {
    balanced(gpu, &allocator);
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
}

/// Runs the same test under every strategy.
fn each_strategy(guard: &str, test: impl Fn(&Arc<SimGpu>, Allocator)) {
    for kind in StrategyKind::ALL {
        let (gpu, allocator) = guarded(&format!("strategy:{kind},{guard}"));
        test(&gpu, allocator);
    }
}

fn made(gpu: &SimGpu, call: Call) -> u64 {
    gpu.call_stats().get(call).count
}

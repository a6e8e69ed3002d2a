//! Bugs that other allocators had, as tests of this one, on every strategy where they make sense. The documentation
//! lists all of them, with the tests elsewhere that were there before.

mod addresses;
mod errors;
mod mappings;
mod pools;
mod streams;
mod used_of_reserved;

use crate::simulated;
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::SimGpu;
use seamalloc::{Allocator, Config, StrategyKind};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId::DEFAULT;
const SIDE: StreamId = StreamId(7);

fn on(kind: StrategyKind, device: &str) -> (Arc<SimGpu>, Allocator) {
    simulated::on(device, Config::with_strategy(kind))
}

/// Every byte that the device says is held is reserved, every rule holds, and no kernel met memory that was not there.
fn sound(gpu: &SimGpu, allocator: &Allocator) {
    allocator.reports().check().unwrap();
    assert_eq!(gpu.leaks().bytes, allocator.reports().reserved());
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
}

//! Private pools and graph capture: what is kept apart, what stays where it is, what is legal meanwhile, and what comes
//! back when.

mod apart;
mod capturing;
mod inputs;
mod pinned;
mod released;
mod restored;

use crate::graph::{GRAPH, Graph, capture, graph_of};
use crate::simulated;
use seamalloc::driver::sim::SimGpu;
use seamalloc::driver::{Call, Driver, StreamId};
use seamalloc::{Allocator, Config, StrategyKind, StreamSharing};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId::DEFAULT;
const SIDE: StreamId = StreamId(8);

/// A strategy under which streams share what they have.
fn on(kind: StrategyKind, device: &str) -> (Arc<SimGpu>, Allocator) {
    simulated::on(device, Config { sharing: StreamSharing::Wait, ..Config::with_strategy(kind) })
}

fn reserved(allocator: &Allocator) -> u64 {
    allocator.stats().reserved_bytes.all.current
}

fn calls(gpu: &SimGpu, call: Call) -> u64 {
    gpu.call_stats().get(call).count
}

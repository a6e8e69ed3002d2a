//! Private pools and graph capture: what is kept apart, what stays where it is, what is legal meanwhile, and what comes
//! back when.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod apart;
mod capturing;
mod pinned;
mod released;
mod restored;
mod segmented;
#[path = "../simulated/mod.rs"]
mod simulated;
mod source;
mod sources;

use seamalloc::driver::sim::{CaptureMode, Piece, Range, SimGpu};
use seamalloc::driver::{Call, Driver, StreamId};
use seamalloc::{Allocator, Config, PoolId, Route, StrategyKind};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId::DEFAULT;
/// Captured in these tests.
const GRAPH: StreamId = StreamId(7);
const SIDE: StreamId = StreamId(8);
const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];

fn on(kind: StrategyKind, device: &str) -> (Arc<SimGpu>, Allocator) {
    simulated::on(device, Config::with_strategy(kind))
}

fn reserved(allocator: &Allocator) -> u64 {
    allocator.stats().reserved_bytes.all.current
}

fn calls(gpu: &SimGpu, call: Call) -> u64 {
    gpu.call_stats().get(call).count
}

/// What a graph uses: addresses, and the memory behind them when it was captured.
#[derive(Default)]
struct Graph(Vec<(Range, Vec<Piece>)>);

impl Graph {
    fn uses(&mut self, gpu: &SimGpu, allocator: &Allocator, address: u64) {
        let range = Range { address, size: allocator.size_of(address).unwrap() };
        gpu.launch(GRAPH, &[range], 1000).unwrap();
        self.0.push((range, gpu.physical(range)));
    }

    /// Every address leads where it led, and a kernel may use it.
    fn replay(&self, gpu: &SimGpu, stream: StreamId) {
        for (range, pieces) in &self.0 {
            assert_eq!(gpu.physical(*range), *pieces, "{range}");
            gpu.launch(stream, &[*range], 50_000).unwrap();
        }
        assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
    }

    /// None of its memory is behind that address.
    fn is_apart_from(&self, gpu: &SimGpu, allocator: &Allocator, address: u64) {
        let range = Range { address, size: allocator.size_of(address).unwrap() };
        for piece in gpu.physical(range) {
            let meets = |own: &Piece| {
                own.memory == piece.memory
                    && own.offset < piece.offset + piece.size
                    && piece.offset < own.offset + own.size
            };
            assert!(!self.0.iter().flat_map(|(_, pieces)| pieces).any(meets), "{range} is the graph's memory");
        }
    }
}

/// Runs `inside` in a capture of [`GRAPH`] whose requests go to `pool`; the capture must come out valid.
fn capture<T>(gpu: &SimGpu, allocator: &Allocator, pool: PoolId, inside: impl FnOnce() -> T) -> T {
    allocator.begin_allocate_to_pool(pool, Route::stream(GRAPH).capturing()).unwrap();
    gpu.begin_capture(GRAPH, CaptureMode::Global).unwrap();
    let result = inside();
    gpu.end_capture(GRAPH).unwrap();
    allocator.end_allocate_to_pool(pool).unwrap();
    allocator.check().unwrap();
    result
}

/// A graph that uses blocks of these sizes, all freed again in the capture.
fn graph_of(gpu: &SimGpu, allocator: &Allocator, pool: PoolId, sizes: &[u64]) -> Graph {
    let mut graph = Graph::default();
    capture(gpu, allocator, pool, || {
        let blocks: Vec<u64> = sizes.iter().map(|size| allocator.allocate(*size, GRAPH).unwrap()).collect();
        for address in blocks {
            graph.uses(gpu, allocator, address);
            allocator.free(address).unwrap();
        }
    });
    graph
}

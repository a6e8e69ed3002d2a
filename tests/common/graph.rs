//! A graph as the tests of captures have it: what it uses, and how it is captured and replayed.

use crate::simulated::Device;
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{CaptureMode, Piece, Range};
use seamalloc::{Allocator, PoolId, Route};

/// The stream that is captured.
pub(crate) const GRAPH: StreamId = StreamId(7);

/// The memory that a graph uses: addresses, and the memory behind them when it was captured.
#[derive(Default)]
pub(crate) struct Graph(pub(crate) Vec<(Range, Vec<Piece>)>);

/// Whether two pieces have a byte in common.
pub(crate) fn meet(one: &Piece, other: &Piece) -> bool {
    one.memory == other.memory && one.offset < other.offset + other.size && other.offset < one.offset + one.size
}

impl Graph {
    pub(crate) fn uses(&mut self, gpu: &Device, allocator: &Allocator, address: u64) {
        let range = Range { address, size: allocator.reports().size_of(address).unwrap() };
        gpu.launch(GRAPH, &[range], 1000).unwrap();
        self.0.push((range, gpu.physical(range)));
    }

    /// Notes that other memory may be behind its addresses, if all of them have some.
    #[allow(dead_code, reason = "only what also runs with split chunks needs it")]
    pub(crate) fn follow(&mut self, gpu: &Device) {
        for (range, pieces) in &mut self.0 {
            *pieces = gpu.physical(*range);
            assert_eq!(pieces.iter().map(|piece| piece.size).sum::<u64>(), range.size, "{range}");
        }
    }

    /// Every address leads where it led, and a kernel may use it.
    pub(crate) fn replay(&self, gpu: &Device, stream: StreamId) {
        for (range, pieces) in &self.0 {
            assert_eq!(gpu.physical(*range), *pieces, "{range}");
            gpu.launch(stream, &[*range], 50_000).unwrap();
        }
        assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
    }

    /// None of its memory is behind that address.
    pub(crate) fn is_apart_from(&self, gpu: &Device, allocator: &Allocator, address: u64) {
        let range = Range { address, size: allocator.reports().size_of(address).unwrap() };
        for piece in gpu.physical(range) {
            let mut own = self.0.iter().flat_map(|(_, pieces)| pieces);
            assert!(!own.any(|own| meet(own, &piece)), "{range} is the graph's memory");
        }
    }
}

/// Runs `inside` in a capture of [`GRAPH`] whose requests go to `pool`; the capture must come out valid.
pub(crate) fn capture<T>(gpu: &Device, allocator: &Allocator, pool: PoolId, inside: impl FnOnce() -> T) -> T {
    allocator.pools().begin(pool, Route::stream(GRAPH).capturing()).unwrap();
    gpu.begin_capture(GRAPH, CaptureMode::Global).unwrap();
    let result = inside();
    gpu.end_capture(GRAPH).unwrap();
    allocator.pools().end(pool).unwrap();
    allocator.reports().check().unwrap();
    result
}

/// A graph that uses blocks of these sizes, all freed again in the capture.
pub(crate) fn graph_of(gpu: &Device, allocator: &Allocator, pool: PoolId, sizes: &[u64]) -> Graph {
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

//! The calls that are legal while a stream is being captured, and the memory that a captured request may get.

use super::{GRAPH, MAIN, MIB, SIDE, capture, on, reserved};
use crate::simulated;
use seamalloc::{Config, StrategyKind};

/// PyTorch's `test_graph_two_successive`: a chain of graphs in one pool takes no more than one of them.
#[test]
fn graphs_that_share_a_pool_share_its_slabs() {
    for shared in [false, true] {
        let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200");
        let pools = [0, 1].map(|_| allocator.pools().create());
        let mut last = None;
        for pool in [pools[0], pools[usize::from(!shared)]] {
            capture(&gpu, &allocator, pool, || {
                for _ in 0..5 {
                    let parts = [0; 4].map(|_| allocator.allocate(4000, GRAPH).unwrap());
                    let next = allocator.allocate(4000, GRAPH).unwrap();
                    parts.into_iter().chain(last.replace(next)).for_each(|part| allocator.free(part).unwrap());
                }
            });
        }
        assert_eq!(reserved(&allocator), if shared { 2 } else { 4 } * MIB, "shared: {shared}");
    }
}

#[test]
fn in_a_capture_stitching_still_finds_what_the_gpu_has_passed() {
    let config = Config::parse("strategy:stitch,sharing:completed").unwrap();
    let (gpu, allocator) = simulated::on("sim:h200,capacity=100MiB", config);
    let [first, second] = [(); 2].map(|()| allocator.allocate(40 * MIB, MAIN).unwrap());
    allocator.free(first).unwrap();
    gpu.hold(MAIN);
    // Ends the epoch: its event completes in the capture.
    let side = allocator.allocate(20 * MIB, SIDE).unwrap();
    gpu.finish(MAIN);
    let pool = allocator.pools().create();
    capture(&gpu, &allocator, pool, || {
        let found = allocator.allocate(40 * MIB, SIDE).unwrap();
        assert_eq!(found, first);
    });
    [second, side].iter().for_each(|address| allocator.free(*address).unwrap());
    allocator.reports().check().unwrap();
}

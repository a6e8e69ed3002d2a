//! The four cases of captures: a block is allocated in one or outside, and freed in one or outside.

use super::{MAIN, MIB, balanced, calls, held, on};
use seamalloc::driver::sim::{CaptureMode, Range, SimGpu};
use seamalloc::driver::{Call, StreamId};
use seamalloc::{Allocator, PoolId, Route};

const GRAPH: StreamId = StreamId(3);

fn capture<T>(gpu: &SimGpu, allocator: &Allocator, pool: PoolId, run: impl FnOnce() -> T) -> T {
    allocator.pools().begin(pool, Route::stream(GRAPH).capturing()).unwrap();
    gpu.begin_capture(GRAPH, CaptureMode::Global).unwrap();
    let out = run();
    gpu.end_capture(GRAPH).unwrap();
    allocator.pools().end(pool).unwrap();
    out
}

#[test]
fn in_a_capture_what_is_freed_serves_it_again() {
    let (gpu, allocator) = on("sim:h200", "");
    let pool = allocator.pools().create();
    capture(&gpu, &allocator, pool, || {
        let address = allocator.allocate(10 * MIB, GRAPH).unwrap();
        allocator.free(address).unwrap();
        let taken = calls(&gpu, Call::PoolMalloc);
        assert_eq!(allocator.allocate(10 * MIB, GRAPH), Ok(address));
        assert_eq!(calls(&gpu, Call::PoolMalloc), taken);
        allocator.free(address).unwrap();
    });
    assert_eq!(calls(&gpu, Call::PoolFree), 0, "the graph may use it");
    balanced(&gpu, &allocator);
}

#[test]
fn what_a_capture_has_goes_with_its_graph() {
    let (gpu, allocator) = on("sim:h200", "");
    let pool = allocator.pools().create();
    let address = capture(&gpu, &allocator, pool, || allocator.allocate(10 * MIB, GRAPH).unwrap());
    allocator.free(address).unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(calls(&gpu, Call::PoolFree), 0, "the graph can be launched");
    allocator.pools().release(pool).unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!((calls(&gpu, Call::PoolFree), held(&allocator)), (1, 0));
    balanced(&gpu, &allocator);
}

#[test]
fn a_request_for_a_graphs_pool_leaves_the_graph_its_memory() {
    let (gpu, allocator) = on("sim:h200", "");
    let pool = allocator.pools().create();
    let address = capture(&gpu, &allocator, pool, || {
        let address = allocator.allocate(10 * MIB, GRAPH).unwrap();
        allocator.free(address).unwrap();
        address
    });
    let other = allocator.pools().allocate(pool, 20 * MIB, GRAPH).unwrap();
    assert!(other.abs_diff(address) >= 10 * MIB);
    gpu.launch(GRAPH, &[Range { address, size: 10 * MIB }], 1000).unwrap();
    assert_eq!(calls(&gpu, Call::PoolFree), 0);
    balanced(&gpu, &allocator);
}

#[test]
fn what_is_freed_in_a_capture_goes_back_after_it() {
    for used_by_another in [false, true] {
        let (gpu, allocator) = on("sim:h200", "");
        let pool = allocator.pools().create();
        let address = allocator.allocate(10 * MIB, MAIN).unwrap();
        if used_by_another {
            allocator.record_stream(address, StreamId(9)).unwrap();
        }
        capture(&gpu, &allocator, pool, || {
            allocator.free(address).unwrap();
            assert_eq!(calls(&gpu, Call::PoolFree), 0);
        });
        // Others' events are recorded with the next request.
        allocator.allocate(MIB, MAIN).unwrap();
        assert_eq!(calls(&gpu, Call::PoolFree), 1, "{used_by_another}");
        balanced(&gpu, &allocator);
    }
}

#[test]
fn outside_of_captures_a_free_is_one_at_once() {
    let (gpu, allocator) = on("sim:h200", "");
    allocator.free(allocator.allocate(10 * MIB, MAIN).unwrap()).unwrap();
    assert_eq!(calls(&gpu, Call::PoolFree), 1);
    balanced(&gpu, &allocator);
}

#[test]
fn a_capture_that_nobody_told_of_stays_valid() {
    let (gpu, allocator) = on("sim:h200", "");
    let before = allocator.allocate(10 * MIB, GRAPH).unwrap();
    gpu.begin_capture(GRAPH, CaptureMode::Global).unwrap();
    allocator.free(before).unwrap();
    allocator.allocate(20 * MIB, GRAPH).unwrap();
    gpu.end_capture(GRAPH).unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(calls(&gpu, Call::PoolFree), 1);
    balanced(&gpu, &allocator);
}

/// The memory that was freed meanwhile goes back with the next request of any stream. Until then it is free memory of
/// its size.
#[test]
fn what_is_freed_in_a_capture_goes_back_whoever_asks_next() {
    let (gpu, allocator) = on("sim:h200", "");
    let pool = allocator.pools().create();
    let address = allocator.allocate(10 * MIB, MAIN).unwrap();
    allocator.record_stream(address, StreamId(9)).unwrap();
    let unused = allocator.allocate(6 * MIB, MAIN).unwrap();
    capture(&gpu, &allocator, pool, || {
        allocator.free(address).unwrap();
        allocator.free(unused).unwrap();
        assert_eq!(allocator.reports().fragmentation().largest_reachable(), 6 * MIB);
    });
    gpu.advance(1_000_000_000);
    allocator.allocate(MIB, StreamId(5)).unwrap();
    assert_eq!(calls(&gpu, Call::PoolFree), 2);
    balanced(&gpu, &allocator);
}

//! The memory of a private pool serves the pool alone: requests, routes, statistics, and wrong uses.

use super::{GRAPH, MAIN, MIB, SIDE, calls, graph_of, on, reserved};
use crate::simulated;
use seamalloc::driver::{Call, Driver, Status};
use seamalloc::{Config, Error, StrategyKind};

#[test]
fn a_pool_takes_what_is_idle_before_it_grows_and_nothing_in_stream_order() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200");
    let held: Vec<u64> = (0..4).map(|_| allocator.allocate(16 * MIB, GRAPH).unwrap()).collect();
    gpu.hold(GRAPH);
    held.iter().for_each(|address| allocator.free(*address).unwrap());
    let pool = allocator.pools().create();
    let graph = graph_of(&gpu, &allocator, pool, &[16 * MIB]);
    assert_eq!(reserved(&allocator), 80 * MIB, "a graph may be replayed on another stream");
    gpu.finish(GRAPH);
    // Once another stream has asked, what the GPU has passed is known to be idle.
    let other = allocator.allocate(16 * MIB, SIDE).unwrap();
    assert_eq!(reserved(&allocator), 80 * MIB);
    let idle = graph_of(&gpu, &allocator, pool, &[48 * MIB]);
    assert_eq!(reserved(&allocator), 80 * MIB);
    allocator.reports().check().unwrap();
    // And keeps it.
    let more = allocator.allocate(48 * MIB, SIDE).unwrap();
    assert_eq!(reserved(&allocator), 128 * MIB);
    idle.is_apart_from(&gpu, &allocator, more);
    graph.is_apart_from(&gpu, &allocator, other);
}

#[test]
fn a_free_beside_idle_memory_draws_none_of_it_into_the_pool() {
    let (_, allocator) = on(StrategyKind::Stitch, "sim:h200");
    let idle = allocator.allocate(64 * MIB, MAIN).unwrap();
    allocator.free(idle).unwrap();
    let pool = allocator.pools().create();
    let part = allocator.pools().allocate(pool, 8 * MIB, SIDE).unwrap();
    assert_eq!((part, reserved(&allocator)), (idle, 64 * MIB), "the GPU has passed it");
    allocator.free(part).unwrap();
    assert_eq!(allocator.pools().stats(pool).unwrap().reserved_bytes, 8 * MIB);
    allocator.allocate(56 * MIB, SIDE).unwrap();
    assert_eq!(reserved(&allocator), 64 * MIB);
}

/// A pool takes what streams have passed before it grows, since it never gives back what it grows by.
#[test]
fn a_pool_takes_what_streams_have_passed_also_in_a_capture() {
    let (gpu, allocator) = simulated::on("sim:h200", Config::default());
    let [of_main, of_side] = [MAIN, SIDE].map(|stream| allocator.allocate(64 * MIB, stream).unwrap());
    gpu.hold(SIDE);
    [of_main, of_side].into_iter().for_each(|address| allocator.free(address).unwrap());
    let pool = allocator.pools().create();
    let warm = allocator.pools().allocate(pool, 64 * MIB, GRAPH).unwrap();
    assert_eq!((warm, reserved(&allocator), calls(&gpu, Call::StreamWait)), (of_main, 128 * MIB, 0));
    gpu.finish(SIDE);
    // At the begin of a capture, which can ask for nothing, what is passed by then becomes idle.
    let graph = graph_of(&gpu, &allocator, pool, &[64 * MIB]);
    assert_eq!(reserved(&allocator), 128 * MIB);
    allocator.free(warm).unwrap();
    graph.replay(&gpu, GRAPH);
    allocator.reports().check().unwrap();
}

/// `sharing:never` holds for private pools too.
#[test]
fn under_never_a_private_pool_takes_nothing_of_other_streams() {
    for (sharing, taken) in [("never", 60 * MIB), ("completed", 0), ("wait", 0)] {
        let (gpu, allocator) = simulated::on("sim:h200", Config::parse(&format!("sharing:{sharing}")).unwrap());
        for size in [60 * MIB, 2 * MIB] {
            let address = allocator.allocate(size, SIDE).unwrap();
            gpu.launch(SIDE, &[], 1_000_000_000).unwrap();
            allocator.free(address).unwrap();
        }
        gpu.synchronize().unwrap();
        let before = reserved(&allocator);
        let pool = allocator.pools().create();
        allocator.pools().allocate(pool, 60 * MIB, MAIN).unwrap();
        assert_eq!(reserved(&allocator) - before, taken, "{sharing}");
    }
}

#[test]
fn a_pool_never_waits_on_the_gpu_for_others() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200");
    let busy = allocator.allocate(64 * MIB, MAIN).unwrap();
    gpu.hold(MAIN);
    allocator.free(busy).unwrap();
    let pool = allocator.pools().create();
    allocator.pools().allocate(pool, 64 * MIB, SIDE).unwrap();
    assert_eq!((reserved(&allocator), calls(&gpu, Call::StreamWait)), (128 * MIB, 0));
    // Anyone else does, where memory cannot grow.
    allocator.limits().set_bytes(Some(128 * MIB)).unwrap();
    allocator.allocate(64 * MIB, SIDE).unwrap();
    assert_eq!((reserved(&allocator), calls(&gpu, Call::StreamWait)), (128 * MIB, 1));
}

#[test]
fn a_pools_request_that_fails_leaves_it_no_larger() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200");
    let pool = allocator.pools().create();
    let blocks: Vec<u64> = (0..3).map(|_| allocator.pools().allocate(pool, 16 * MIB, MAIN).unwrap()).collect();
    allocator.free(blocks[0]).unwrap();
    // The hole and as much again, joined by a view that cannot be made.
    gpu.fail_nth(Call::Reserve, 1, Status::UNKNOWN);
    assert!(matches!(allocator.pools().allocate(pool, 32 * MIB, MAIN), Err(Error::Driver(_))));
    assert_eq!(allocator.pools().stats(pool).unwrap().reserved_bytes, 48 * MIB);
    allocator.reports().check().unwrap();
    allocator.pools().allocate(pool, 32 * MIB, MAIN).unwrap();
    assert_eq!(allocator.pools().stats(pool).unwrap().reserved_bytes, 64 * MIB);
}

/// Before a capture, the memory of a pool that the GPU has passed serves it, of one stream and that pool alone.
#[test]
fn what_has_passed_stays_with_its_pool_and_its_stream() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200");
    let pools = [(); 2].map(|()| allocator.pools().create());
    let used = pools.map(|pool| {
        [GRAPH, SIDE].map(|stream| {
            let address = allocator.pools().allocate(pool, 16 * MIB, stream).unwrap();
            allocator.free(address).unwrap();
            address
        })
    });
    let held = |pool| allocator.pools().stats(pool).unwrap().reserved_bytes;
    for pool in pools {
        let graph = graph_of(&gpu, &allocator, pool, &[16 * MIB]);
        assert_eq!(graph.0.len(), 1);
        assert_eq!(pools.map(held), [32 * MIB; 2]);
    }
    for (pool, [of_graph, of_side]) in pools.into_iter().zip(used) {
        for (stream, address) in [(SIDE, of_side), (GRAPH, of_graph)] {
            assert_eq!(allocator.pools().allocate(pool, 16 * MIB, stream).unwrap(), address);
        }
    }
    assert_eq!(reserved(&allocator), 64 * MIB);
    allocator.reports().check().unwrap();
}

//! The memory that a graph may use stays where it is, whatever others want.

use crate::graph::{GRAPH, capture, graph_of};
use crate::{MAIN, MIB, SIDE, Subject, on, reserved};
use seamalloc::driver::sim::CaptureMode;
use seamalloc::{PoolId, Route};

pub(crate) fn a_graphs_memory_stays_where_it_is(Subject { kind, exchanges, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200,capacity=600MiB");
    // Holes of 16 MiB between live blocks: of what is idle a stitched block is made, in the capture too.
    let held: Vec<u64> = (0..10).map(|_| allocator.allocate(16 * MIB, MAIN).unwrap()).collect();
    held.iter().step_by(2).for_each(|address| allocator.free(*address).unwrap());
    let pass = allocator.allocate(32 * MIB, SIDE).unwrap();
    allocator.free(pass).unwrap();
    let pool = allocator.pools().create();
    let mut graph = graph_of(&gpu, &allocator, pool, &[40 * MIB, 3 * MIB, 5000, 60 * MIB]);
    graph.replay(&gpu, SIDE);
    let mut again = graph_of(&gpu, &allocator, pool, &[70 * MIB, 900]);
    let pinned = allocator.pools().stats(pool).unwrap().reserved_bytes;

    // Everything is asked for until nothing is left, several times over.
    for round in 0..4u64 {
        let mut live = Vec::new();
        for size in [90, 45, 33, 17, 9, 2].map(|size| size * MIB + round * 4096) {
            while let Ok(address) = allocator.allocate(size, [MAIN, SIDE, GRAPH][live.len() % 3]) {
                if exchanges {
                    graph.follow(&gpu);
                    again.follow(&gpu);
                }
                graph.is_apart_from(&gpu, &allocator, address);
                again.is_apart_from(&gpu, &allocator, address);
                live.push(address);
            }
        }
        assert!(live.len() > 3, "{kind}");
        graph.replay(&gpu, [MAIN, SIDE, GRAPH][round as usize % 3]);
        again.replay(&gpu, SIDE);
        live.into_iter().for_each(|address| allocator.free(address).unwrap());
        allocator.reports().check().unwrap();
        if round % 2 == 1 {
            allocator.empty_cache().unwrap();
        }
        assert_eq!(allocator.pools().stats(pool).unwrap().reserved_bytes, pinned, "{kind}");
    }
    held.iter().skip(1).step_by(2).for_each(|address| allocator.free(*address).unwrap());
    allocator.empty_cache().unwrap();
    assert!(reserved(&allocator) >= pinned, "{kind}");
    graph.replay(&gpu, MAIN);

    allocator.pools().release(pool).unwrap();
    assert!(reserved(&allocator) >= pinned, "{kind}: the last launches may be running");
    allocator.empty_cache().unwrap();
    assert_eq!(reserved(&allocator), 0, "{kind}");
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{kind}: {}", gpu.leaks());
    assert!(gpu.faults().is_empty(), "{kind}: {:?}", gpu.faults());
}

pub(crate) fn trim_leaves_private_pools_what_they_have(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    let pool = allocator.pools().create();
    let graph = graph_of(&gpu, &allocator, pool, &[30 * MIB, 50 * MIB, 900]);
    let pinned = allocator.pools().stats(pool).unwrap().reserved_bytes;
    let cached = allocator.allocate(40 * MIB, MAIN).unwrap();
    allocator.free(cached).unwrap();
    capture(&gpu, &allocator, pool, || {
        assert_eq!(allocator.trim(10 * MIB), Ok(0), "{kind}: nothing may be waited for or freed");
        allocator.limits().set_bytes(Some(pinned)).unwrap();
        assert!(allocator.allocate(60 * MIB, SIDE).is_err());
        allocator.limits().set_bytes(None).unwrap();
    });
    assert_eq!(allocator.trim(u64::MAX), Ok(40 * MIB), "{kind}");
    assert_eq!(reserved(&allocator), pinned);
    graph.replay(&gpu, SIDE);
    allocator.pools().release(pool).unwrap();
    allocator.trim(u64::MAX).unwrap();
    assert_eq!(reserved(&allocator), 0, "{kind}");
    assert!(gpu.faults().is_empty(), "{kind}: {:?}", gpu.faults());
}

pub(crate) fn a_pool_opened_again_has_its_memory_again(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    let id = PoolId(3, 0);
    allocator.pools().open(id).unwrap();
    let graph = graph_of(&gpu, &allocator, id, &[30 * MIB]);
    allocator.pools().release(id).unwrap();
    allocator.pools().open(id).unwrap();
    allocator.empty_cache().unwrap();
    graph.replay(&gpu, MAIN);
    assert_eq!(allocator.pools().allocate(id, 30 * MIB, GRAPH).unwrap(), graph.0[0].0.address, "{kind}");
}

pub(crate) fn an_allocator_dropped_first_leaves_graphs_their_memory(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    let pool = allocator.pools().create();
    let graph = graph_of(&gpu, &allocator, pool, &[30 * MIB, 600]);
    let unused = allocator.pools().create();
    let address = allocator.pools().allocate(unused, 30 * MIB, MAIN).unwrap();
    allocator.free(address).unwrap();
    let pinned = allocator.pools().stats(pool).unwrap().reserved_bytes;
    drop(allocator);
    assert_eq!(gpu.leaks().bytes, pinned, "{kind}: and nothing else");
    graph.replay(&gpu, MAIN);
}

pub(crate) fn an_allocator_may_be_dropped_in_a_capture(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    let pool = allocator.pools().create();
    allocator.pools().begin(pool, Route::stream(GRAPH).capturing()).unwrap();
    gpu.begin_capture(GRAPH, CaptureMode::Global).unwrap();
    allocator.allocate(MIB, GRAPH).unwrap();
    drop(allocator);
    gpu.end_capture(GRAPH).unwrap();
}

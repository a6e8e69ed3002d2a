//! The fate of a pool's memory, and of its live blocks, once nobody uses the pool.

use crate::graph::{GRAPH, Graph, capture, graph_of};
use crate::{MAIN, MIB, SIDE, Subject, calls, on, reserved};
use seamalloc::driver::sim::Range;
use seamalloc::driver::{Call, StreamId};
use seamalloc::{Error, Route};

pub(crate) fn a_released_pools_memory_waits_for_the_device(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200,capacity=200MiB");
    let pool = allocator.pools().create();
    let graph = graph_of(&gpu, &allocator, pool, &[120 * MIB]);
    // Launched on a stream that the allocator never heard of.
    let unseen = StreamId(4242);
    gpu.hold(unseen);
    graph.replay(&gpu, unseen);
    allocator.pools().release(pool).unwrap();
    assert_eq!(allocator.pools().stats(pool).unwrap().uses, 0);
    let apart = allocator.allocate(60 * MIB, GRAPH).unwrap();
    graph.is_apart_from(&gpu, &allocator, apart);
    assert_eq!(calls(&gpu, Call::Synchronize), 0);
    // Only before a request would fail is the device waited for.
    let taken = allocator.allocate(130 * MIB, MAIN).unwrap();
    assert!(calls(&gpu, Call::Synchronize) >= 1, "{kind}");
    assert!(gpu.done_at(unseen).unwrap() <= gpu.now_ns(), "{kind}: the graph has ended");
    assert_eq!(allocator.pools().stats(pool), Err(Error::UnknownPool { pool }));
    allocator.reports().check().unwrap();
    [apart, taken].iter().for_each(|address| allocator.free(*address).unwrap());
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{kind}: {}", gpu.leaks());
    assert!(gpu.faults().is_empty(), "{kind}: {:?}", gpu.faults());
}

pub(crate) fn what_no_capture_used_goes_back_in_stream_order(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    let pool = allocator.pools().create();
    allocator.pools().begin(pool, Route::this_thread()).unwrap();
    let [freed, live] = [(); 2].map(|()| allocator.allocate(30 * MIB, SIDE).unwrap());
    allocator.free(freed).unwrap();
    // Released while routed: it lives on until the end.
    allocator.pools().release(pool).unwrap();
    assert_eq!(allocator.allocate(30 * MIB, SIDE).unwrap(), freed);
    allocator.free(freed).unwrap();
    allocator.pools().end(pool).unwrap();
    assert!(allocator.pools().ids().is_empty(), "{kind}");
    gpu.hold(SIDE);
    let growth = || [Call::Malloc, Call::Create, Call::Map].map(|call| calls(&gpu, call));
    let before = growth();
    assert_eq!(allocator.allocate(30 * MIB, SIDE).unwrap(), freed, "{kind}: the same stream");
    assert_eq!(growth(), before);
    allocator.free(freed).unwrap();
    allocator.free(live).unwrap();
    let again = [(); 2].map(|()| allocator.allocate(30 * MIB, SIDE).unwrap());
    assert!([[freed, live], [live, freed]].contains(&again), "{kind}: freed after the release");
    assert_eq!(growth(), before);
    allocator.reports().check().unwrap();
}

pub(crate) fn live_blocks_outlive_their_pool(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    let pool = allocator.pools().create();
    let mut graph = Graph::default();
    let [small, large, freed] = capture(&gpu, &allocator, pool, || {
        let blocks = [800, 26 * MIB, 26 * MIB].map(|size| allocator.allocate(size, GRAPH).unwrap());
        blocks.iter().for_each(|address| graph.uses(&gpu, &allocator, *address));
        blocks
    });
    allocator.free(freed).unwrap();
    allocator.pools().release(pool).unwrap();
    allocator.record_stream(large, SIDE).unwrap();
    graph.replay(&gpu, StreamId(4242));
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.reports().size_of(large).unwrap(), 26 * MIB);
    assert_eq!(allocator.stats().allocation.all.current, 2, "{kind}");
    gpu.launch(GRAPH, &[Range { address: large, size: 26 * MIB }], 10).unwrap();
    assert!(allocator.pools().ids().is_empty());
    // Freed they are memory like any other, and wait for the streams that use them.
    gpu.hold(SIDE);
    allocator.free(large).unwrap();
    assert_eq!(allocator.stats().active_bytes.all.current, 26 * MIB + 1024);
    gpu.finish(SIDE);
    assert_eq!(allocator.allocate(26 * MIB, GRAPH).unwrap(), large, "{kind}");
    allocator.free(large).unwrap();
    allocator.free(small).unwrap();
    assert_eq!(allocator.allocate(800, GRAPH).unwrap(), small, "{kind}");
    allocator.free(small).unwrap();
    allocator.reports().check().unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(reserved(&allocator), 0, "{kind}");
    assert!(gpu.faults().is_empty(), "{kind}: {:?}", gpu.faults());
}

pub(crate) fn pools_that_come_and_go_leave_nothing_behind(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    let mut host_bytes = 0;
    for round in 0..300 {
        let pool = allocator.pools().create();
        let sizes: &[u64] = if round % 2 == 0 { &[12 * MIB, 900] } else { &[] };
        graph_of(&gpu, &allocator, pool, sizes);
        allocator.pools().allocate(pool, 5000, SIDE).and_then(|address| allocator.free(address)).unwrap();
        allocator.pools().release(pool).unwrap();
        allocator.empty_cache().unwrap();
        match round {
            20 => host_bytes = allocator.stats().host_bytes,
            21.. => assert_eq!(allocator.stats().host_bytes, host_bytes, "{kind}"),
            _ => {}
        }
    }
    assert_eq!(reserved(&allocator), 0);
}

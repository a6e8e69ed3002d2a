//! The memory of a private pool serves the pool alone: requests, routes, statistics, snapshots, and wrong uses.

use crate::graph::GRAPH;
use crate::{MAIN, MIB, SIDE, Subject, on, reserved};
use seamalloc::driver::Driver;
use seamalloc::driver::sim::Range;
use seamalloc::{Error, PoolId, Route};
use std::sync::Arc;

pub(crate) fn wrong_uses_are_typed_errors_and_change_nothing(Subject { kind, .. }: Subject) {
    let (_, allocator) = on(kind, "sim:h200");
    let unknown = PoolId(0, 77);
    let is_unknown = |error: Error| assert_eq!(error, Error::UnknownPool { pool: unknown });
    is_unknown(allocator.pools().retain(unknown).unwrap_err());
    is_unknown(allocator.pools().release(unknown).unwrap_err());
    is_unknown(allocator.pools().allocate(unknown, 1, MAIN).unwrap_err());
    is_unknown(allocator.pools().allocate(unknown, 0, MAIN).unwrap_err());
    is_unknown(allocator.pools().begin(unknown, Route::this_thread()).unwrap_err());
    is_unknown(allocator.pools().end(unknown).unwrap_err());
    is_unknown(allocator.pools().stats(unknown).unwrap_err());
    assert_eq!(allocator.pools().open(PoolId::NONE), Err(Error::UnknownPool { pool: PoolId::NONE }));

    let pool = allocator.pools().create();
    assert_eq!(allocator.pools().end(pool), Err(Error::PoolNotRouted { pool }));
    allocator.pools().begin(pool, Route::stream(MAIN)).unwrap();
    let twice = allocator.pools().begin(pool, Route::stream(SIDE).capturing());
    assert_eq!(twice, Err(Error::PoolRouted { pool }));
    allocator.pools().end(pool).unwrap();
    assert_eq!(allocator.pools().end(pool), Err(Error::PoolNotRouted { pool }));

    allocator.pools().retain(pool).unwrap();
    allocator.pools().release(pool).unwrap();
    assert_eq!(allocator.pools().stats(pool).unwrap().uses, 1);
    allocator.pools().release(pool).unwrap();
    assert_eq!(allocator.pools().release(pool), Err(Error::UnknownPool { pool }), "released twice");
    assert!(allocator.pools().ids().is_empty());
    assert!(allocator.pools().allocate(pool, u64::MAX, MAIN).is_err());
    let other = allocator.pools().create();
    assert_eq!(
        allocator.pools().allocate(other, u64::MAX, MAIN),
        Err(Error::RequestTooLarge { size: u64::MAX }),
        "as of any request"
    );
    assert_eq!(allocator.pools().allocate(other, 0, MAIN), Ok(0));
}

pub(crate) fn a_private_pools_memory_serves_it_alone(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    let pool = allocator.pools().create();
    gpu.hold(MAIN);
    for size in [700, 30 * MIB] {
        let address = allocator.pools().allocate(pool, size, MAIN).unwrap();
        allocator.free(address).unwrap();
        let other = allocator.allocate(size, MAIN).unwrap();
        let range = Range { address, size: 512 };
        assert!(gpu.physical(range) != gpu.physical(Range { address: other, size: 512 }), "{kind}");
        let before = gpu.call_stats();
        assert_eq!(allocator.pools().allocate(pool, size, MAIN).unwrap(), address, "{kind}");
        assert_eq!(gpu.call_stats(), before, "{kind}: a hit calls nobody");
        // And the other way round.
        allocator.free(other).unwrap();
        let more = allocator.pools().allocate(pool, size, MAIN).unwrap();
        assert!(more != other, "{kind}: free in stream order only");
        allocator.reports().check().unwrap();
    }
    let stats = allocator.pools().stats(pool).unwrap();
    assert_eq!((stats.allocations, stats.uses, stats.routed, stats.captured), (4, 1, false, false));
    assert_eq!(stats.allocated_bytes, 2 * (1024 + 30 * MIB));
    assert_eq!(stats.active_bytes, stats.allocated_bytes);
    assert!(stats.reserved_bytes >= stats.allocated_bytes && stats.reserved_bytes < reserved(&allocator));
}

pub(crate) fn requests_follow_the_routes(Subject { kind, .. }: Subject) {
    let (_, allocator) = on(kind, "sim:h200");
    let [streams, thread] = [(); 2].map(|()| allocator.pools().create());
    let allocations = |pool| allocator.pools().stats(pool).unwrap().allocations;
    allocator.pools().begin(streams, Route::when(|stream| stream == GRAPH || stream == SIDE)).unwrap();
    for stream in [GRAPH, SIDE, MAIN] {
        allocator.allocate(MIB, stream).unwrap();
    }
    assert_eq!(allocations(streams), 2);
    allocator.pools().begin(thread, Route::this_thread()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| [GRAPH, MAIN].map(|stream| allocator.allocate(MIB, stream).unwrap()));
    });
    assert_eq!((allocations(streams), allocations(thread)), (3, 0), "another thread's requests");
    for stream in [GRAPH, SIDE, MAIN] {
        allocator.allocate(MIB, stream).unwrap();
    }
    assert_eq!((allocations(streams), allocations(thread)), (3, 3), "begun last");
    allocator.pools().end(streams).unwrap();
    allocator.allocate(MIB, GRAPH).unwrap();
    allocator.pools().allocate(streams, MIB, GRAPH).unwrap();
    assert_eq!((allocations(streams), allocations(thread)), (4, 4), "named, whatever the routes");
    allocator.pools().end(thread).unwrap();
    allocator.allocate(MIB, GRAPH).unwrap();
    assert_eq!((allocations(streams), allocations(thread)), (4, 4));
    allocator.reports().check().unwrap();
}

pub(crate) fn snapshots_show_whose_memory_it_is(Subject { kind, .. }: Subject) {
    let (_, allocator) = on(kind, "sim:h200");
    allocator.pools().open(PoolId(5, 0)).unwrap();
    let private = allocator.pools().allocate(PoolId(5, 0), 30 * MIB, MAIN).unwrap();
    let small = allocator.pools().allocate(PoolId(5, 0), 3000, MAIN).unwrap();
    let shared = allocator.allocate(30 * MIB, MAIN).unwrap();
    let snapshot = allocator.reports().snapshot();
    let pool_of = |address: u64| {
        let holds = |s: &&seamalloc::snapshot::SegmentInfo| (s.address..s.address + s.total_size).contains(&address);
        snapshot.segments.iter().find(holds).unwrap().pool
    };
    assert_eq!(
        [private, small, shared].map(pool_of),
        [PoolId(5, 0), PoolId(5, 0), PoolId::NONE],
        "{kind}: {:?}",
        snapshot.segments
    );
    let shown: u64 = snapshot.segments.iter().map(|segment| segment.total_size).sum();
    assert_eq!(shown, reserved(&allocator));
    let of_pool = snapshot.segments.iter().filter(|segment| segment.pool == PoolId(5, 0));
    let stats = allocator.pools().stats(PoolId(5, 0)).unwrap();
    assert_eq!(of_pool.map(|segment| segment.total_size).sum::<u64>(), stats.reserved_bytes, "{kind}");
    assert_eq!(allocator.pools().ids(), [PoolId(5, 0)]);
}

/// PyTorch's `test_additional_free_following_checkpoint`, and `test_cuda_graph_allocator_propagates_stream`.
pub(crate) fn segments_of_a_pools_stream_stay_when_another_comes(Subject { kind, .. }: Subject) {
    let (_, allocator) = on(kind, "sim:h200");
    let pool = allocator.pools().create();
    let starts = || {
        let segments = allocator.reports().snapshot().segments.into_iter();
        segments.filter(|segment| segment.pool == pool).map(|segment| segment.address).collect::<Vec<_>>()
    };
    for size in [3000, 30 * MIB] {
        allocator.pools().allocate(pool, size, MAIN).unwrap();
        let before = starts();
        allocator.pools().allocate(pool, size, SIDE).unwrap();
        let after = starts();
        assert_eq!(after.len(), before.len() + 1, "{kind}");
        assert!(before.iter().all(|address| after.contains(address)), "{kind}: {before:x?}, then {after:x?}");
    }
}

pub(crate) fn callbacks_are_asked_for_a_pool_too_and_may_do_anything_to_it(Subject { kind, .. }: Subject) {
    let (_, allocator) = on(kind, "sim:h200,capacity=100MiB");
    let allocator = Arc::new(allocator);
    let pool = allocator.pools().create();
    let kept = allocator.pools().allocate(pool, 60 * MIB, MAIN).unwrap();
    let weak = Arc::downgrade(&allocator);
    let callback = allocator.limits().on_pressure(move |pressure| {
        assert_eq!((pressure.requested, pressure.stream), (60 * MIB, MAIN));
        weak.upgrade().unwrap().free(kept).is_ok()
    });
    let again = allocator.pools().allocate(pool, 60 * MIB, MAIN).unwrap();
    assert_eq!(again, kept, "{kind}");
    allocator.limits().remove_callback(callback);

    let weak = Arc::downgrade(&allocator);
    allocator.limits().on_pressure(move |_| weak.upgrade().unwrap().pools().release(pool).is_ok());
    assert_eq!(allocator.pools().allocate(pool, 90 * MIB, MAIN), Err(Error::UnknownPool { pool }), "{kind}");
    allocator.reports().check().unwrap();
    allocator.free(again).unwrap();
    allocator.allocate(90 * MIB, MAIN).unwrap();
    allocator.reports().check().unwrap();
}

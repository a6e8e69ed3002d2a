//! Private pools with segments of their own: where these come from, whom they serve, when and where they go back.

use crate::graph::{capture, graph_of};
use crate::source::{POOL, Source, opened};
use crate::{MAIN, MIB, SIDE, Subject, balanced, calls, on, reserved};
use seamalloc::driver::sim::Range;
use seamalloc::driver::{Call, StreamId};
use seamalloc::{Error, PoolId, Route, Segments};

pub(crate) fn segments_are_pytorchs_and_are_cached_and_split(Subject { kind, .. }: Subject) {
    let (gpu, allocator, source) = opened(kind, "sim:h200");
    allocator.pools().begin(POOL, Route::this_thread()).unwrap();
    let small = allocator.allocate(700, MAIN).unwrap();
    let [first, second] = [(); 2].map(|()| allocator.allocate(3 * MIB, MAIN).unwrap());
    let large = allocator.allocate(31 * MIB, MAIN).unwrap();
    allocator.pools().end(POOL).unwrap();
    assert_eq!(source.book().sizes, [2 * MIB, 20 * MIB, 32 * MIB], "{kind}");
    assert_eq!(second, first + 3 * MIB);
    let stats = allocator.pools().stats(POOL).unwrap();
    assert_eq!((stats.allocations, stats.allocated_bytes), (4, 1024 + 38 * MIB), "{kind}");
    assert_eq!((stats.reserved_bytes, source.bytes(), reserved(&allocator)), (54 * MIB, 54 * MIB, 54 * MIB));
    balanced(&gpu, &allocator);
    // Cached, and nobody else's.
    for address in [small, first, second, large] {
        allocator.free(address).unwrap();
    }
    let apart = allocator.allocate(20 * MIB, MAIN).unwrap();
    assert!(!(large..large + 32 * MIB).contains(&apart) && !(first..first + 20 * MIB).contains(&apart));
    assert_eq!(allocator.pools().allocate(POOL, 32 * MIB, MAIN).unwrap(), large);
    assert_eq!(source.book().sizes.len(), 3);
    // While it is used, a pool keeps what it has.
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.pools().empty(POOL), Ok(0));
    assert_eq!(allocator.trim(u64::MAX).unwrap(), 0);
    assert_eq!(source.book().frees, 0);
    let shown: Vec<_> =
        allocator.reports().snapshot().segments.into_iter().filter(|segment| segment.pool == POOL).collect();
    assert_eq!(shown.len(), 3);
    assert!(shown.iter().all(|segment| !segment.expandable));
    balanced(&gpu, &allocator);
}

pub(crate) fn an_ended_pool_gives_its_segments_back_once_they_are_free_and_passed(Subject { kind, .. }: Subject) {
    for how in 0..4 {
        let (gpu, allocator, source) = opened(kind, "sim:h200,capacity=300MiB");
        let [freed, live] = [100 * MIB, 50 * MIB].map(|size| allocator.pools().allocate(POOL, size, SIDE).unwrap());
        gpu.launch(SIDE, &[Range { address: freed, size: 100 * MIB }], 1_000_000).unwrap();
        source.book().users = vec![SIDE];
        allocator.free(freed).unwrap();
        allocator.pools().release(POOL).unwrap();
        assert_eq!(allocator.pools().stats(POOL).unwrap().uses, 0);
        let refused = Err(Error::UnknownPool { pool: POOL });
        assert_eq!(allocator.pools().allocate(POOL, MIB, SIDE), refused, "{kind}");
        let mut live_too = vec![live];
        let given = match how {
            0 => allocator.pools().empty(POOL).unwrap(),
            1 => allocator.empty_cache().unwrap(),
            2 => allocator.trim(10 * MIB).unwrap(),
            _ => {
                // It serves nobody, but makes room on the device.
                live_too.push(allocator.allocate(240 * MIB, SIDE).unwrap());
                100 * MIB
            }
        };
        assert_eq!((given, source.book().frees), (100 * MIB, 1), "{kind}, {how}");
        assert!(!source.book().dropped, "memory of it is live");
        balanced(&gpu, &allocator);
        live_too.iter().for_each(|address| allocator.free(*address).unwrap());
        assert_eq!(source.book().frees, 1);
        allocator.empty_cache().unwrap();
        assert!(source.book().dropped && source.bytes() == 0, "{kind}, {how}");
        assert_eq!(allocator.pools().stats(POOL), Err(Error::UnknownPool { pool: POOL }));
        assert!(allocator.pools().ids().is_empty());
        balanced(&gpu, &allocator);
        assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
    }
}

pub(crate) fn a_pool_that_never_had_memory_ends_at_once(Subject { kind, .. }: Subject) {
    let (_, allocator, source) = opened(kind, "sim:h200");
    assert_eq!(allocator.pools().open_with(POOL, source.segments()), Err(Error::PoolInUse { pool: POOL }));
    // The second one.
    assert!(std::mem::take(&mut source.book().dropped));
    allocator.pools().open(POOL).unwrap();
    allocator.pools().release(POOL).unwrap();
    assert!(!source.book().dropped, "{kind}: used still");
    allocator.pools().release(POOL).unwrap();
    assert!(source.book().dropped, "{kind}");
    assert_eq!(allocator.pools().empty(POOL), Ok(0));
    let none = allocator.pools().open_with(PoolId::NONE, Segments::by_malloc());
    assert_eq!(none, Err(Error::UnknownPool { pool: PoolId::NONE }));
}

pub(crate) fn an_ended_pool_that_is_opened_again_has_its_source_still(Subject { kind, .. }: Subject) {
    let (gpu, allocator, source) = opened(kind, "sim:h200");
    let address = allocator.pools().allocate(POOL, 30 * MIB, MAIN).unwrap();
    allocator.free(address).unwrap();
    allocator.pools().release(POOL).unwrap();
    allocator.pools().open(POOL).unwrap();
    assert_eq!(allocator.pools().empty(POOL), Ok(0), "{kind}: it is used");
    assert_eq!(allocator.pools().allocate(POOL, 30 * MIB, MAIN), Ok(address));
    allocator.pools().allocate(POOL, 30 * MIB, MAIN).unwrap();
    assert_eq!(source.bytes(), 60 * MIB);
    balanced(&gpu, &allocator);
}

pub(crate) fn a_capture_may_take_from_it_and_its_memory_waits_for_the_device(Subject { kind, .. }: Subject) {
    let (gpu, allocator, source) = opened(kind, "sim:h200");
    let graph = graph_of(&gpu, &allocator, POOL, &[30 * MIB, 700]);
    assert_eq!(source.book().sizes, [30 * MIB, 2 * MIB], "{kind}");
    // In the capture of another pool nothing goes back.
    allocator.pools().release(POOL).unwrap();
    let other = allocator.pools().create();
    capture(&gpu, &allocator, other, || {
        assert_eq!(allocator.pools().empty(POOL), Ok(0));
        assert_eq!(allocator.empty_cache(), Ok(0));
    });
    let unseen = StreamId(4242);
    gpu.hold(unseen);
    graph.replay(&gpu, unseen);
    source.book().users = vec![unseen];
    assert_eq!(allocator.pools().empty(POOL), Ok(32 * MIB), "{kind}");
    assert!(source.book().dropped);
    balanced(&gpu, &allocator);
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
}

pub(crate) fn a_graphs_released_pool_can_be_emptied_alone(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    let pool = allocator.pools().create();
    let graph = graph_of(&gpu, &allocator, pool, &[40 * MIB]);
    let kept = allocator.allocate(80 * MIB, MAIN).unwrap();
    allocator.free(kept).unwrap();
    assert_eq!(allocator.pools().empty(pool), Ok(0), "{kind}: it is used");
    graph.replay(&gpu, SIDE);
    allocator.pools().release(pool).unwrap();
    let (before, given) = (reserved(&allocator), allocator.pools().empty(pool).unwrap());
    assert!((40 * MIB..80 * MIB).contains(&given), "{kind}: {given}");
    assert_eq!(reserved(&allocator), before - given);
    balanced(&gpu, &allocator);
}

pub(crate) fn unsplit_segments_are_one_block_each(Subject { kind, .. }: Subject) {
    for own in [false, true] {
        let (gpu, allocator) = on(kind, "sim:h200");
        let source = Source::of(&gpu);
        if own {
            allocator.pools().open_with(POOL, source.segments()).unwrap();
            allocator.pools().set_unsplit(POOL).unwrap();
        } else {
            allocator.pools().open(POOL).unwrap();
            allocator.pools().set_unsplit(POOL).unwrap();
        }
        let mallocs = calls(&gpu, Call::Malloc);
        let blocks: Vec<u64> =
            [3 * MIB, 5 * MIB, 700].map(|size| allocator.pools().allocate(POOL, size, MAIN).unwrap()).into();
        assert_eq!(allocator.reports().size_of(blocks[1]), Ok(20 * MIB));
        assert_eq!(allocator.pools().stats(POOL).unwrap().allocated_bytes, 42 * MIB, "{kind}");
        assert_eq!(calls(&gpu, Call::Malloc) - mallocs, 3);
        let shown = allocator.reports().snapshot().segments.into_iter().filter(|segment| segment.pool == POOL);
        assert!(shown.map(|segment| segment.blocks.len()).eq([1, 1, 1]));
        allocator.free(blocks[0]).unwrap();
        assert_eq!(allocator.pools().allocate(POOL, 9 * MIB, MAIN), Ok(blocks[0]), "{kind}: reused whole");
        balanced(&gpu, &allocator);
        blocks.iter().for_each(|address| allocator.free(*address).unwrap());
        allocator.pools().release(POOL).unwrap();
        assert_eq!(allocator.pools().empty(POOL), Ok(42 * MIB), "{kind}");
        balanced(&gpu, &allocator);
    }
}

pub(crate) fn segments_are_chosen_before_there_is_memory(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    let pool = allocator.pools().create();
    let source = Source::of(&gpu);
    allocator.pools().open_with(pool, source.segments()).unwrap();
    assert_eq!((allocator.pools().stats(pool).unwrap().uses, source.book().dropped), (2, false), "used before");
    let pool = allocator.pools().create();
    assert_eq!(allocator.pools().set_unsplit(POOL), Err(Error::UnknownPool { pool: POOL }));
    allocator.pools().allocate(pool, MIB, MAIN).unwrap();
    assert_eq!(allocator.pools().set_unsplit(pool), Err(Error::PoolInUse { pool }));
    assert_eq!(allocator.pools().open_with(pool, source.segments()), Err(Error::PoolInUse { pool }));
    assert!(source.book().dropped, "the second one");
    let plain = PoolId(0, 9);
    allocator.pools().open_with(plain, Segments::by_malloc()).unwrap();
    let [a, b] = [(); 2].map(|()| allocator.pools().allocate(plain, 3 * MIB, MAIN).unwrap());
    assert_eq!(b, a + 3 * MIB, "split");
    // From then on.
    allocator.pools().set_unsplit(plain).unwrap();
    let rest = allocator.pools().allocate(plain, 3 * MIB, MAIN).unwrap();
    assert_eq!((rest, allocator.reports().size_of(rest)), (b + 3 * MIB, Ok(14 * MIB)));
    allocator.reports().check().unwrap();
}

pub(crate) fn only_what_it_holds_free(Subject { kind, .. }: Subject) {
    let (_, allocator, source) = opened(kind, "sim:h200");
    assert_eq!(allocator.pools().allocate_held(POOL, 3 * MIB, MAIN), Ok(None));
    assert!(source.book().sizes.is_empty(), "{kind}");
    let address = allocator.pools().allocate(POOL, 30 * MIB, MAIN).unwrap();
    allocator.free(address).unwrap();
    assert_eq!(allocator.pools().allocate_held(POOL, 31 * MIB, MAIN), Ok(None));
    assert_eq!(allocator.pools().allocate_held(POOL, 30 * MIB, SIDE), Ok(None), "{kind}: another stream's");
    assert_eq!(allocator.pools().allocate_held(POOL, 29 * MIB, MAIN), Ok(Some(address)));
    assert_eq!(allocator.pools().allocate_held(POOL, 0, MAIN), Ok(Some(0)));
    allocator.free(address).unwrap();
    allocator.reports().check().unwrap();
    // What every stream has passed is everyone's, not the pool's.
    let everyones = allocator.allocate(30 * MIB, SIDE).unwrap();
    allocator.free(everyones).unwrap();
    allocator.streams().forget(SIDE).unwrap();
    let pool = allocator.pools().create();
    assert_eq!(allocator.pools().allocate_held(pool, 30 * MIB, MAIN), Ok(None), "{kind}");
}

pub(crate) fn its_blocks_are_not_restored(Subject { kind, .. }: Subject) {
    let (_, allocator, _source) = opened(kind, "sim:h200");
    let address = allocator.pools().allocate(POOL, 30 * MIB, MAIN).unwrap();
    let blocks = allocator.pools().blocks(POOL).unwrap();
    assert_eq!(allocator.pools().restore(POOL, &blocks), Err(Error::NotRestorable { address }));
    assert_eq!(allocator.pools().blocks(POOL).unwrap(), blocks, "nothing has changed");
}

//! Sources of segments that are short of memory, or fail, and who is told of what they do.

use crate::graph::GRAPH;
use crate::source::{Mishap, POOL, Source, opened};
use crate::{MAIN, MIB, SIDE, Subject, balanced, reserved, with_options};
use seamalloc::driver::sim::Range;
use seamalloc::observer::{Action, Event, Observer};
use seamalloc::out_of_memory::Cause;
use seamalloc::{Error, PoolId, Route};
use std::sync::{Arc, Mutex};

pub(crate) fn short_of_memory_it_gets_what_others_can_give_back(
    Subject { kind, releases_no_more_than_needed, .. }: Subject,
) {
    let (gpu, allocator, source) = opened(kind, "sim:h200,capacity=300MiB");
    let [cached, live] = [200 * MIB, 60 * MIB].map(|size| allocator.allocate(size, MAIN).unwrap());
    allocator.free(cached).unwrap();
    let address = allocator.pools().allocate(POOL, 150 * MIB, MAIN).unwrap();
    assert_eq!(source.bytes(), 150 * MIB, "{kind}");
    if releases_no_more_than_needed {
        assert!(reserved(&allocator) > 240 * MIB, "no more went than was needed: {}", reserved(&allocator));
    }
    assert!(allocator.stats().num_alloc_retries >= 1);
    // There is no more, whoever asks.
    let before = allocator.stats().allocated_bytes;
    let Err(Error::OutOfMemory(report)) = allocator.pools().allocate(POOL, 150 * MIB, MAIN) else { panic!("{kind}") };
    assert_eq!((report.cause, report.advice.len()), (Cause::OwnSegments, 0), "{kind}");
    assert!(report.to_string().contains("segments of its own"), "{report}");
    let stats = allocator.stats();
    assert_eq!((stats.num_ooms, stats.allocated_bytes), (1, before), "{kind}");
    balanced(&gpu, &allocator);
    [address, live].iter().for_each(|address| allocator.free(*address).unwrap());
}

pub(crate) fn short_of_memory_the_pools_own_that_waits_is_waited_for(Subject { kind, .. }: Subject) {
    let (gpu, allocator, source) = opened(kind, "sim:h200,capacity=300MiB");
    let address = allocator.pools().allocate(POOL, 200 * MIB, MAIN).unwrap();
    allocator.record_stream(address, SIDE).unwrap();
    gpu.launch(SIDE, &[Range { address, size: 200 * MIB }], 1_000_000).unwrap();
    allocator.free(address).unwrap();
    assert_eq!(allocator.pools().allocate(POOL, 190 * MIB, MAIN), Ok(address), "{kind}");
    assert!(gpu.done_at(SIDE).unwrap() <= gpu.now_ns());
    assert_eq!(source.bytes(), 200 * MIB);
    balanced(&gpu, &allocator);
}

pub(crate) fn limits_count_its_segments(Subject { kind, .. }: Subject) {
    for option in ["memory_limit:100MiB", "per_process_memory_fraction:0.5"] {
        let (gpu, allocator) = with_options(kind, "sim:h200,capacity=200MiB", option);
        let source = Source::of(&gpu);
        allocator.pools().open_with(POOL, source.segments()).unwrap();
        allocator.pools().allocate(POOL, 60 * MIB, MAIN).unwrap();
        let asked = source.book().sizes.len();
        for result in [allocator.pools().allocate(POOL, 50 * MIB, MAIN), allocator.allocate(50 * MIB, MAIN)] {
            let Err(Error::OutOfMemory(report)) = result else { panic!("{kind}, {option}") };
            assert_eq!(report.cause, Cause::TooLittle, "{kind}, {option}");
        }
        assert_eq!(source.book().sizes.len(), asked, "{kind}: the source is not even asked");
        balanced(&gpu, &allocator);
    }
}

pub(crate) fn what_a_source_does_wrong_is_an_error_and_changes_nothing(Subject { kind, .. }: Subject) {
    let (gpu, allocator, source) = opened(kind, "sim:h200,capacity=2GiB");
    // Views, with the strategies that have some.
    let blocks: Vec<u64> = (0..8).map(|_| allocator.allocate(40 * MIB, MAIN).unwrap()).collect();
    blocks.iter().step_by(2).for_each(|address| allocator.free(*address).unwrap());
    let view = allocator.allocate(120 * MIB, MAIN).unwrap();
    let own = allocator.pools().allocate(POOL, 10 * MIB, MAIN).unwrap();
    let before = allocator.stats();
    let wrong = [
        ("nowhere", 0),
        ("between blocks", own + 100 * MIB + 8),
        ("the end of all", u64::MAX - 511),
        ("twice", own),
        ("inside its own", own + 2 * MIB),
        ("around its own", own - 2 * MIB),
        ("a live block", blocks[1]),
        ("a free block", blocks[2]),
        ("inside of the last", view + 60 * MIB),
    ];
    for (what, address) in wrong {
        source.book().mishaps.push(Mishap::Gives(address));
        let Err(Error::Source { pool, detail }) = allocator.pools().allocate(POOL, 50 * MIB, MAIN) else {
            panic!("{kind}: {what} at {address:#x}")
        };
        assert!(pool == POOL && detail.contains("cannot be"), "{detail}");
        assert_eq!(allocator.stats(), before, "{kind}: {what}");
        allocator.reports().check().unwrap();
    }
    for (mishap, said) in [(Mishap::Fails, "no luck"), (Mishap::Panics, "panicked")] {
        source.book().mishaps.push(mishap);
        let failed = allocator.pools().allocate(POOL, 50 * MIB, MAIN).unwrap_err();
        assert!(matches!(&failed, Error::Source { detail, .. } if detail.contains(said)), "{failed}");
        assert_eq!(allocator.stats(), before, "{kind}");
    }
    // All that is given back in need came before the second answer.
    source.book().mishaps.extend([Mishap::Short]);
    let address = allocator.pools().allocate(POOL, 50 * MIB, MAIN).unwrap();
    assert_eq!(source.bytes(), 60 * MIB);
    balanced(&gpu, &allocator);
    allocator.free(address).unwrap();
}

pub(crate) fn what_a_source_does_not_take_back_stays_and_hinders_nobody(Subject { kind, .. }: Subject) {
    let (gpu, allocator, source) = opened(kind, "sim:h200,capacity=300MiB");
    let own = [50 * MIB, 30 * MIB].map(|size| allocator.pools().allocate(POOL, size, MAIN).unwrap());
    let other = allocator.allocate(100 * MIB, MAIN).unwrap();
    own.iter().chain([&other]).for_each(|address| allocator.free(*address).unwrap());
    allocator.pools().release(POOL).unwrap();
    source.book().mishaps.push(Mishap::Fails);
    let failed = allocator.pools().empty(POOL).unwrap_err();
    assert!(matches!(&failed, Error::Source { detail, .. } if detail.contains("it stays")), "{failed}");
    assert_eq!(source.book().frees, 1, "{kind}: the other segment went");
    source.book().mishaps.push(Mishap::Panics);
    allocator.empty_cache().unwrap_err();
    assert_eq!(reserved(&allocator), source.bytes(), "{kind}: what is everyone's went");
    balanced(&gpu, &allocator);
    // A request that has room without it does not fail for it.
    source.book().mishaps.extend([Mishap::Fails, Mishap::Fails]);
    let address = allocator.allocate(200 * MIB, MAIN).unwrap();
    allocator.free(address).unwrap();
    assert!(!source.book().dropped);
    source.book().mishaps.clear();
    allocator.empty_cache().unwrap();
    assert!(source.book().dropped && reserved(&allocator) == 0, "{kind}");
}

pub(crate) fn at_the_allocators_end_a_source_with_memory_in_use_is_not_dropped(Subject { kind, .. }: Subject) {
    for (live, capturing) in [(false, false), (true, false), (false, true)] {
        let (gpu, allocator, source) = opened(kind, "sim:h200");
        let [kept, freed] = [30 * MIB, 40 * MIB].map(|size| allocator.pools().allocate(POOL, size, MAIN).unwrap());
        allocator.free(freed).unwrap();
        if !live {
            allocator.free(kept).unwrap();
        }
        if capturing {
            let pool = allocator.pools().create();
            allocator.pools().begin(pool, Route::stream(GRAPH).capturing()).unwrap();
        }
        drop(allocator);
        let left = if capturing { 70 } else { 30 * u64::from(live) };
        assert_eq!(source.bytes(), left * MIB, "{kind}");
        assert_eq!(source.book().dropped, left == 0, "{kind}");
        assert!(gpu.faults().is_empty());
    }
}

pub(crate) fn a_segment_is_said_to_go_before_it_goes(Subject { kind, .. }: Subject) {
    struct Registered(Source, Arc<Mutex<Vec<(Action, u64)>>>);
    impl Observer for Registered {
        fn event(&mut self, event: &Event) {
            if matches!(event.action, Action::SegmentAlloc | Action::SegmentFree) {
                assert_eq!(self.0.book().given.get(&event.address), Some(&event.size), "{:?}", event.action);
                self.1.lock().unwrap().push((event.action, event.size));
            }
        }
    }
    let (_, allocator, source) = opened(kind, "sim:h200");
    let told = Arc::new(Mutex::new(Vec::new()));
    allocator.reports().set_observer(Some(Box::new(Registered(source.clone(), Arc::clone(&told)))));
    let address = allocator.pools().allocate(POOL, 30 * MIB, MAIN).unwrap();
    allocator.free(address).unwrap();
    allocator.pools().release(POOL).unwrap();
    source.book().mishaps.push(Mishap::Fails);
    allocator.pools().empty(POOL).unwrap_err();
    allocator.pools().empty(POOL).unwrap();
    let (came, goes) = ((Action::SegmentAlloc, 30 * MIB), (Action::SegmentFree, 30 * MIB));
    assert_eq!(*told.lock().unwrap(), [came, goes, came, goes], "{kind}: it stayed in between");
}

pub(crate) fn events_say_which_pool_they_are_of(Subject { kind, .. }: Subject) {
    struct Told(Arc<Mutex<Vec<(Action, PoolId)>>>);
    impl Observer for Told {
        fn event(&mut self, event: &Event) {
            self.0.lock().unwrap().push((event.action, event.pool));
        }
    }
    let (_, allocator, _source) = opened(kind, "sim:h200");
    let told = Arc::new(Mutex::new(Vec::new()));
    allocator.reports().set_observer(Some(Box::new(Told(Arc::clone(&told)))));
    let other = allocator.allocate(3 * MIB, MAIN).unwrap();
    allocator.free(other).unwrap();
    assert!(told.lock().unwrap().drain(..).all(|(_, pool)| pool == PoolId::NONE), "{kind}");
    let address = allocator.pools().allocate(POOL, 3 * MIB, MAIN).unwrap();
    allocator.free(address).unwrap();
    allocator.pools().release(POOL).unwrap();
    allocator.pools().empty(POOL).unwrap();
    let actions =
        [Action::SegmentAlloc, Action::Alloc, Action::FreeRequested, Action::FreeCompleted, Action::SegmentFree];
    assert_eq!(*told.lock().unwrap(), actions.map(|action| (action, POOL)), "{kind}");
}

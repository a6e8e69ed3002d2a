//! Private pools with segments of their own: where these come from, whom they serve, when and where they go back.

use crate::{GRAPH, MAIN, MIB, SIDE, calls, capture, graph_of, on, reserved, with};
use memquilt::driver::sim::{Range, SimGpu};
use memquilt::driver::{Call, Driver, StreamId};
use memquilt::observer::{Action, Event, Observer};
use memquilt::shortage::Cause;
use memquilt::{Allocator, Config, Error, PoolId, Route, SegmentSource, Segments, SourceError, StrategyKind};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

pub(crate) const POOL: PoolId = PoolId(0, 77);

/// What the next call of a source does, instead of what it should.
pub(crate) enum Mishap {
    Short,
    Fails,
    Panics,
    Gives(u64),
}

#[derive(Default)]
pub(crate) struct Book {
    /// Segments that were given: address and size.
    pub(crate) given: BTreeMap<u64, u64>,
    pub(crate) sizes: Vec<u64>,
    pub(crate) frees: u64,
    pub(crate) dropped: bool,
    pub(crate) mishaps: Vec<Mishap>,
    /// Streams that must have passed before anything comes back.
    pub(crate) users: Vec<StreamId>,
}

/// Memory of the device, as `cudaMalloc` gives it, and a book of it.
#[derive(Clone)]
pub(crate) struct Source(Arc<SimGpu>, Arc<Mutex<Book>>);

impl Source {
    pub(crate) fn of(gpu: &Arc<SimGpu>) -> Self {
        Self(Arc::clone(gpu), Arc::default())
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.1.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn segments(&self) -> Segments {
        Segments::from_source(Given(self.clone()))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.book().given.values().sum()
    }
}

/// The one that is dropped.
struct Given(Source);

impl SegmentSource for Given {
    fn malloc(&mut self, size: u64) -> Result<u64, SourceError> {
        let mut book = self.0.book();
        book.sizes.push(size);
        match book.mishaps.pop() {
            None => {}
            Some(Mishap::Short) => return Err(SourceError::OutOfMemory),
            Some(Mishap::Fails) => return Err(SourceError::Failed("no luck".into())),
            Some(Mishap::Panics) => std::panic::resume_unwind(Box::new(7)),
            Some(Mishap::Gives(address)) => return Ok(address),
        }
        let address = self.0.0.malloc(size).map_err(|error| match error.is_out_of_memory() {
            true => SourceError::OutOfMemory,
            false => SourceError::Failed(error.to_string()),
        })?;
        assert!(book.given.insert(address, size).is_none());
        Ok(address)
    }

    fn free(&mut self, address: u64, size: u64) -> Result<(), SourceError> {
        let mut book = self.0.book();
        match book.mishaps.pop() {
            Some(Mishap::Panics) => std::panic::resume_unwind(Box::new(7)),
            Some(_) => return Err(SourceError::Failed("it stays".into())),
            None => {}
        }
        for stream in &book.users {
            assert!(self.0.0.done_at(*stream).is_some_and(|done| done <= self.0.0.now_ns()), "stream {stream} runs");
        }
        self.0.0.free(address).map_err(|error| SourceError::Failed(error.to_string()))?;
        assert_eq!(book.given.remove(&address), Some(size), "what came is what goes back");
        book.frees += 1;
        Ok(())
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        self.0.book().dropped = true;
    }
}

fn opened(kind: StrategyKind, device: &str) -> (Arc<SimGpu>, Allocator, Source) {
    let (gpu, allocator) = on(kind, device);
    let source = Source::of(&gpu);
    allocator.open_pool_with(POOL, source.segments()).unwrap();
    (gpu, allocator, source)
}

/// What the device says is held, against what the allocator and the source do.
fn balanced(gpu: &SimGpu, allocator: &Allocator) {
    allocator.check().unwrap();
    let info = gpu.memory_info().unwrap();
    assert_eq!(info.total - info.free, reserved(allocator));
}

#[test]
fn segments_are_pytorchs_and_are_cached_and_split() {
    for kind in StrategyKind::ALL {
        let (gpu, allocator, source) = opened(kind, "sim:h200");
        allocator.begin_allocate_to_pool(POOL, Route::this_thread()).unwrap();
        let small = allocator.allocate(700, MAIN).unwrap();
        let [first, second] = [(); 2].map(|()| allocator.allocate(3 * MIB, MAIN).unwrap());
        let large = allocator.allocate(31 * MIB, MAIN).unwrap();
        allocator.end_allocate_to_pool(POOL).unwrap();
        assert_eq!(source.book().sizes, [2 * MIB, 20 * MIB, 32 * MIB], "{kind}");
        assert_eq!(second, first + 3 * MIB);
        let stats = allocator.pool_stats(POOL).unwrap();
        assert_eq!((stats.allocations, stats.allocated_bytes), (4, 1024 + 38 * MIB), "{kind}");
        assert_eq!((stats.reserved_bytes, source.bytes(), reserved(&allocator)), (54 * MIB, 54 * MIB, 54 * MIB));
        balanced(&gpu, &allocator);
        // Cached, and nobody else's.
        for address in [small, first, second, large] {
            allocator.free(address).unwrap();
        }
        let apart = allocator.allocate(20 * MIB, MAIN).unwrap();
        assert!(!(large..large + 32 * MIB).contains(&apart) && !(first..first + 20 * MIB).contains(&apart));
        assert_eq!(allocator.allocate_in(POOL, 32 * MIB, MAIN).unwrap(), large);
        assert_eq!(source.book().sizes.len(), 3);
        // While it is used, a pool keeps what it has.
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.empty_pool(POOL), Ok(0));
        assert_eq!(allocator.trim(u64::MAX).unwrap(), 0);
        assert_eq!(source.book().frees, 0);
        let shown: Vec<_> = allocator.snapshot().segments.into_iter().filter(|segment| segment.pool == POOL).collect();
        assert_eq!(shown.len(), 3);
        assert!(shown.iter().all(|segment| !segment.expandable));
        balanced(&gpu, &allocator);
    }
}

#[test]
fn an_ended_pool_gives_its_segments_back_once_they_are_free_and_passed() {
    for kind in StrategyKind::ALL {
        for how in 0..4 {
            let (gpu, allocator, source) = opened(kind, "sim:h200,capacity=300MiB");
            let [freed, live] = [100 * MIB, 50 * MIB].map(|size| allocator.allocate_in(POOL, size, SIDE).unwrap());
            gpu.launch(SIDE, &[Range { address: freed, size: 100 * MIB }], 1_000_000).unwrap();
            source.book().users = vec![SIDE];
            allocator.free(freed).unwrap();
            allocator.release_pool(POOL).unwrap();
            assert_eq!(allocator.pool_stats(POOL).unwrap().uses, 0);
            let refused = Err(Error::UnknownPool { pool: POOL });
            assert_eq!(allocator.allocate_in(POOL, MIB, SIDE), refused, "{kind}");
            let mut live_too = vec![live];
            let given = match how {
                0 => allocator.empty_pool(POOL).unwrap(),
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
            assert_eq!(allocator.pool_stats(POOL), Err(Error::UnknownPool { pool: POOL }));
            assert!(allocator.private_pools().is_empty());
            balanced(&gpu, &allocator);
            assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
        }
    }
}

#[test]
fn a_pool_that_never_had_memory_ends_at_once() {
    for kind in StrategyKind::ALL {
        let (_, allocator, source) = opened(kind, "sim:h200");
        assert_eq!(allocator.open_pool_with(POOL, source.segments()), Err(Error::PoolInUse { pool: POOL }));
        // The second one.
        assert!(std::mem::take(&mut source.book().dropped));
        allocator.open_pool(POOL).unwrap();
        allocator.release_pool(POOL).unwrap();
        assert!(!source.book().dropped, "{kind}: used still");
        allocator.release_pool(POOL).unwrap();
        assert!(source.book().dropped, "{kind}");
        assert_eq!(allocator.empty_pool(POOL), Ok(0));
        let none = allocator.open_pool_with(PoolId::NONE, Segments::by_malloc());
        assert_eq!(none, Err(Error::UnknownPool { pool: PoolId::NONE }));
    }
}

#[test]
fn an_ended_pool_that_is_opened_again_has_its_source_still() {
    for kind in StrategyKind::ALL {
        let (gpu, allocator, source) = opened(kind, "sim:h200");
        let address = allocator.allocate_in(POOL, 30 * MIB, MAIN).unwrap();
        allocator.free(address).unwrap();
        allocator.release_pool(POOL).unwrap();
        allocator.open_pool(POOL).unwrap();
        assert_eq!(allocator.empty_pool(POOL), Ok(0), "{kind}: it is used");
        assert_eq!(allocator.allocate_in(POOL, 30 * MIB, MAIN), Ok(address));
        allocator.allocate_in(POOL, 30 * MIB, MAIN).unwrap();
        assert_eq!(source.bytes(), 60 * MIB);
        balanced(&gpu, &allocator);
    }
}

#[test]
fn short_of_memory_it_gets_what_others_can_give_back() {
    for kind in StrategyKind::ALL {
        let (gpu, allocator, source) = opened(kind, "sim:h200,capacity=300MiB");
        let [cached, live] = [200 * MIB, 60 * MIB].map(|size| allocator.allocate(size, MAIN).unwrap());
        allocator.free(cached).unwrap();
        let address = allocator.allocate_in(POOL, 150 * MIB, MAIN).unwrap();
        assert_eq!(source.bytes(), 150 * MIB, "{kind}");
        if kind == StrategyKind::Stitch {
            assert!(reserved(&allocator) > 240 * MIB, "no more went than was needed: {}", reserved(&allocator));
        }
        assert!(allocator.stats().num_alloc_retries >= 1);
        // There is no more, whoever asks.
        let before = allocator.stats().allocated_bytes;
        let Err(Error::OutOfMemory(report)) = allocator.allocate_in(POOL, 150 * MIB, MAIN) else { panic!("{kind}") };
        assert_eq!((report.cause, report.advice.len()), (Cause::OwnSegments, 0), "{kind}");
        assert!(report.to_string().contains("segments of its own"), "{report}");
        let stats = allocator.stats();
        assert_eq!((stats.num_ooms, stats.allocated_bytes), (1, before), "{kind}");
        balanced(&gpu, &allocator);
        [address, live].iter().for_each(|address| allocator.free(*address).unwrap());
    }
}

#[test]
fn short_of_memory_the_pools_own_that_waits_is_waited_for() {
    for kind in StrategyKind::ALL {
        let (gpu, allocator, source) = opened(kind, "sim:h200,capacity=300MiB");
        let address = allocator.allocate_in(POOL, 200 * MIB, MAIN).unwrap();
        allocator.record_stream(address, SIDE).unwrap();
        gpu.launch(SIDE, &[Range { address, size: 200 * MIB }], 1_000_000).unwrap();
        allocator.free(address).unwrap();
        assert_eq!(allocator.allocate_in(POOL, 190 * MIB, MAIN), Ok(address), "{kind}");
        assert!(gpu.done_at(SIDE).unwrap() <= gpu.now_ns());
        assert_eq!(source.bytes(), 200 * MIB);
        balanced(&gpu, &allocator);
    }
}

#[test]
fn limits_count_its_segments() {
    for kind in StrategyKind::ALL {
        for option in ["memory_limit:100MiB", "memory_fraction:0.5"] {
            let config = Config { strategy: kind, ..Config::parse(option).unwrap() };
            let (gpu, allocator) = with("sim:h200,capacity=200MiB", config);
            let source = Source::of(&gpu);
            allocator.open_pool_with(POOL, source.segments()).unwrap();
            allocator.allocate_in(POOL, 60 * MIB, MAIN).unwrap();
            let asked = source.book().sizes.len();
            for result in [allocator.allocate_in(POOL, 50 * MIB, MAIN), allocator.allocate(50 * MIB, MAIN)] {
                let Err(Error::OutOfMemory(report)) = result else { panic!("{kind}, {option}") };
                assert_eq!(report.cause, Cause::TooLittle, "{kind}, {option}");
            }
            assert_eq!(source.book().sizes.len(), asked, "{kind}: the source is not even asked");
            balanced(&gpu, &allocator);
        }
    }
}

#[test]
fn what_a_source_does_wrong_is_an_error_and_changes_nothing() {
    for kind in StrategyKind::ALL {
        let (gpu, allocator, source) = opened(kind, "sim:h200,capacity=2GiB");
        // Views, with the strategies that have some.
        let blocks: Vec<u64> = (0..8).map(|_| allocator.allocate(40 * MIB, MAIN).unwrap()).collect();
        blocks.iter().step_by(2).for_each(|address| allocator.free(*address).unwrap());
        let view = allocator.allocate(120 * MIB, MAIN).unwrap();
        let own = allocator.allocate_in(POOL, 10 * MIB, MAIN).unwrap();
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
            let Err(Error::Source { pool, detail }) = allocator.allocate_in(POOL, 50 * MIB, MAIN) else {
                panic!("{kind}: {what} at {address:#x}")
            };
            assert!(pool == POOL && detail.contains("cannot be"), "{detail}");
            assert_eq!(allocator.stats(), before, "{kind}: {what}");
            allocator.check().unwrap();
        }
        for (mishap, said) in [(Mishap::Fails, "no luck"), (Mishap::Panics, "panicked")] {
            source.book().mishaps.push(mishap);
            let failed = allocator.allocate_in(POOL, 50 * MIB, MAIN).unwrap_err();
            assert!(matches!(&failed, Error::Source { detail, .. } if detail.contains(said)), "{failed}");
            assert_eq!(allocator.stats(), before, "{kind}");
        }
        // All that is given back in need came before the second answer.
        source.book().mishaps.extend([Mishap::Short]);
        let address = allocator.allocate_in(POOL, 50 * MIB, MAIN).unwrap();
        assert_eq!(source.bytes(), 60 * MIB);
        balanced(&gpu, &allocator);
        allocator.free(address).unwrap();
    }
}

#[test]
fn what_a_source_does_not_take_back_stays_and_hinders_nobody() {
    for kind in StrategyKind::ALL {
        let (gpu, allocator, source) = opened(kind, "sim:h200,capacity=300MiB");
        let own = [50 * MIB, 30 * MIB].map(|size| allocator.allocate_in(POOL, size, MAIN).unwrap());
        let other = allocator.allocate(100 * MIB, MAIN).unwrap();
        own.iter().chain([&other]).for_each(|address| allocator.free(*address).unwrap());
        allocator.release_pool(POOL).unwrap();
        source.book().mishaps.push(Mishap::Fails);
        let failed = allocator.empty_pool(POOL).unwrap_err();
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
}

#[test]
fn a_capture_may_take_from_it_and_its_memory_waits_for_the_device() {
    for kind in StrategyKind::ALL {
        let (gpu, allocator, source) = opened(kind, "sim:h200");
        let graph = graph_of(&gpu, &allocator, POOL, &[30 * MIB, 700]);
        assert_eq!(source.book().sizes, [30 * MIB, 2 * MIB], "{kind}");
        // In the capture of another pool nothing goes back.
        allocator.release_pool(POOL).unwrap();
        let other = allocator.create_pool();
        capture(&gpu, &allocator, other, || {
            assert_eq!(allocator.empty_pool(POOL), Ok(0));
            assert_eq!(allocator.empty_cache(), Ok(0));
        });
        let unseen = StreamId(4242);
        gpu.hold(unseen);
        graph.replay(&gpu, unseen);
        source.book().users = vec![unseen];
        assert_eq!(allocator.empty_pool(POOL), Ok(32 * MIB), "{kind}");
        assert!(source.book().dropped);
        balanced(&gpu, &allocator);
        assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
    }
}

#[test]
fn a_graphs_released_pool_can_be_emptied_alone() {
    for kind in StrategyKind::ALL {
        let (gpu, allocator) = on(kind, "sim:h200");
        let pool = allocator.create_pool();
        let graph = graph_of(&gpu, &allocator, pool, &[40 * MIB]);
        let kept = allocator.allocate(80 * MIB, MAIN).unwrap();
        allocator.free(kept).unwrap();
        assert_eq!(allocator.empty_pool(pool), Ok(0), "{kind}: it is used");
        graph.replay(&gpu, SIDE);
        allocator.release_pool(pool).unwrap();
        let (before, given) = (reserved(&allocator), allocator.empty_pool(pool).unwrap());
        assert!((40 * MIB..80 * MIB).contains(&given), "{kind}: {given}");
        assert_eq!(reserved(&allocator), before - given);
        balanced(&gpu, &allocator);
    }
}

#[test]
fn unsplit_segments_are_one_block_each() {
    for kind in StrategyKind::ALL {
        for own in [false, true] {
            let (gpu, allocator) = on(kind, "sim:h200");
            let source = Source::of(&gpu);
            if own {
                allocator.open_pool_with(POOL, source.segments()).unwrap();
                allocator.set_pool_unsplit(POOL).unwrap();
            } else {
                allocator.open_pool(POOL).unwrap();
                allocator.set_pool_unsplit(POOL).unwrap();
            }
            let mallocs = calls(&gpu, Call::Malloc);
            let blocks: Vec<u64> =
                [3 * MIB, 5 * MIB, 700].map(|size| allocator.allocate_in(POOL, size, MAIN).unwrap()).into();
            assert_eq!(allocator.size_of(blocks[1]), Ok(20 * MIB));
            assert_eq!(allocator.pool_stats(POOL).unwrap().allocated_bytes, 42 * MIB, "{kind}");
            assert_eq!(calls(&gpu, Call::Malloc) - mallocs, 3);
            let shown = allocator.snapshot().segments.into_iter().filter(|segment| segment.pool == POOL);
            assert!(shown.map(|segment| segment.blocks.len()).eq([1, 1, 1]));
            allocator.free(blocks[0]).unwrap();
            assert_eq!(allocator.allocate_in(POOL, 9 * MIB, MAIN), Ok(blocks[0]), "{kind}: reused whole");
            balanced(&gpu, &allocator);
            blocks.iter().for_each(|address| allocator.free(*address).unwrap());
            allocator.release_pool(POOL).unwrap();
            assert_eq!(allocator.empty_pool(POOL), Ok(42 * MIB), "{kind}");
            balanced(&gpu, &allocator);
        }
    }
}

#[test]
fn segments_are_chosen_before_there_is_memory() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200");
    let pool = allocator.create_pool();
    let source = Source::of(&gpu);
    allocator.open_pool_with(pool, source.segments()).unwrap();
    assert_eq!((allocator.pool_stats(pool).unwrap().uses, source.book().dropped), (2, false), "used before");
    let pool = allocator.create_pool();
    assert_eq!(allocator.set_pool_unsplit(POOL), Err(Error::UnknownPool { pool: POOL }));
    allocator.allocate_in(pool, MIB, MAIN).unwrap();
    assert_eq!(allocator.set_pool_unsplit(pool), Err(Error::PoolInUse { pool }));
    assert_eq!(allocator.open_pool_with(pool, source.segments()), Err(Error::PoolInUse { pool }));
    assert!(source.book().dropped, "the second one");
    let plain = PoolId(0, 9);
    allocator.open_pool_with(plain, Segments::by_malloc()).unwrap();
    let [a, b] = [(); 2].map(|()| allocator.allocate_in(plain, 3 * MIB, MAIN).unwrap());
    assert_eq!(b, a + 3 * MIB, "split");
    // From then on.
    allocator.set_pool_unsplit(plain).unwrap();
    let rest = allocator.allocate_in(plain, 3 * MIB, MAIN).unwrap();
    assert_eq!((rest, allocator.size_of(rest)), (b + 3 * MIB, Ok(14 * MIB)));
    allocator.check().unwrap();
}

#[test]
fn at_the_allocators_end_a_source_with_memory_in_use_is_not_dropped() {
    for kind in StrategyKind::ALL {
        for (live, capturing) in [(false, false), (true, false), (false, true)] {
            let (gpu, allocator, source) = opened(kind, "sim:h200");
            let [kept, freed] = [30 * MIB, 40 * MIB].map(|size| allocator.allocate_in(POOL, size, MAIN).unwrap());
            allocator.free(freed).unwrap();
            if !live {
                allocator.free(kept).unwrap();
            }
            if capturing {
                let pool = allocator.create_pool();
                allocator.begin_allocate_to_pool(pool, Route::stream(GRAPH).capturing()).unwrap();
            }
            drop(allocator);
            let left = if capturing { 70 } else { 30 * u64::from(live) };
            assert_eq!(source.bytes(), left * MIB, "{kind}");
            assert_eq!(source.book().dropped, left == 0, "{kind}");
            assert!(gpu.faults().is_empty());
        }
    }
}

#[test]
fn only_what_it_holds_free() {
    for kind in StrategyKind::ALL {
        let (_, allocator, source) = opened(kind, "sim:h200");
        assert_eq!(allocator.allocate_held_in(POOL, 3 * MIB, MAIN), Ok(None));
        assert!(source.book().sizes.is_empty(), "{kind}");
        let address = allocator.allocate_in(POOL, 30 * MIB, MAIN).unwrap();
        allocator.free(address).unwrap();
        assert_eq!(allocator.allocate_held_in(POOL, 31 * MIB, MAIN), Ok(None));
        assert_eq!(allocator.allocate_held_in(POOL, 30 * MIB, SIDE), Ok(None), "{kind}: another stream's");
        assert_eq!(allocator.allocate_held_in(POOL, 29 * MIB, MAIN), Ok(Some(address)));
        assert_eq!(allocator.allocate_held_in(POOL, 0, MAIN), Ok(Some(0)));
        allocator.free(address).unwrap();
        allocator.check().unwrap();
    }
}

#[test]
fn its_blocks_are_not_restored() {
    let (_, allocator, _source) = opened(StrategyKind::Stitch, "sim:h200");
    let address = allocator.allocate_in(POOL, 30 * MIB, MAIN).unwrap();
    let blocks = allocator.pool_blocks(POOL).unwrap();
    assert_eq!(allocator.restore_pool(POOL, &blocks), Err(Error::NotRestorable { address }));
    assert_eq!(allocator.pool_blocks(POOL).unwrap(), blocks, "nothing has changed");
}

#[test]
fn a_segment_is_said_to_go_before_it_goes() {
    struct Registered(Source, Arc<Mutex<Vec<(Action, u64)>>>);
    impl Observer for Registered {
        fn event(&mut self, event: &Event) {
            if matches!(event.action, Action::SegmentAlloc | Action::SegmentFree) {
                assert_eq!(self.0.book().given.get(&event.address), Some(&event.size), "{:?}", event.action);
                self.1.lock().unwrap().push((event.action, event.size));
            }
        }
    }
    for kind in StrategyKind::ALL {
        let (_, allocator, source) = opened(kind, "sim:h200");
        let told = Arc::new(Mutex::new(Vec::new()));
        allocator.observe(Some(Box::new(Registered(source.clone(), Arc::clone(&told)))));
        let address = allocator.allocate_in(POOL, 30 * MIB, MAIN).unwrap();
        allocator.free(address).unwrap();
        allocator.release_pool(POOL).unwrap();
        source.book().mishaps.push(Mishap::Fails);
        allocator.empty_pool(POOL).unwrap_err();
        allocator.empty_pool(POOL).unwrap();
        let (came, goes) = ((Action::SegmentAlloc, 30 * MIB), (Action::SegmentFree, 30 * MIB));
        assert_eq!(*told.lock().unwrap(), [came, goes, came, goes], "{kind}: it stayed in between");
    }
}

#[test]
fn events_say_which_pool_they_are_of() {
    struct Told(Arc<Mutex<Vec<(Action, PoolId)>>>);
    impl Observer for Told {
        fn event(&mut self, event: &Event) {
            self.0.lock().unwrap().push((event.action, event.pool));
        }
    }
    for kind in StrategyKind::ALL {
        let (_, allocator, _source) = opened(kind, "sim:h200");
        let told = Arc::new(Mutex::new(Vec::new()));
        allocator.observe(Some(Box::new(Told(Arc::clone(&told)))));
        let other = allocator.allocate(3 * MIB, MAIN).unwrap();
        allocator.free(other).unwrap();
        assert!(told.lock().unwrap().drain(..).all(|(_, pool)| pool == PoolId::NONE), "{kind}");
        let address = allocator.allocate_in(POOL, 3 * MIB, MAIN).unwrap();
        allocator.free(address).unwrap();
        allocator.release_pool(POOL).unwrap();
        allocator.empty_pool(POOL).unwrap();
        let actions =
            [Action::SegmentAlloc, Action::Alloc, Action::FreeRequested, Action::FreeCompleted, Action::SegmentFree];
        assert_eq!(*told.lock().unwrap(), actions.map(|action| (action, POOL)), "{kind}");
    }
}

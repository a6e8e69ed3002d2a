//! The calls that are refused, and the sizes that the types report.

use crate::device::{MAIN, MIB, SIDE};
use crate::random::Random;
use crate::world::{CAPACITY, OPTIONS, World};
use seamalloc::driver::sim::{CaptureMode, SimConfig, SimGpu};
use seamalloc::{Allocator, Block, Config, Error, Growing, Pool, Route, StreamId};
use std::sync::Arc;

fn refused(error: &Error) -> bool {
    matches!(error, Error::NotGrowable { .. })
}

#[test]
fn other_strategies_and_guard_mode_refuse() {
    for options in [
        "strategy:caching",
        "strategy:expandable",
        "strategy:gmlake",
        "strategy:malloc-async",
        "strategy:buddy",
        "strategy:paddle-vmm",
        "guard:on",
    ] {
        let allocator = Allocator::open("sim:h200", options).unwrap();
        let error = allocator.growing().reserve(MIB, MAIN).unwrap_err();
        assert!(refused(&error), "{options}: {error}");
    }
    for options in ["strategy:stitch", "sharing:never", "split:last_resort"] {
        let allocator = Allocator::open("sim:h200", options).unwrap();
        let mut cache = Growing::new(&allocator, 64 * MIB, MAIN).unwrap();
        let block = allocator.allocate(30 * MIB, MAIN).unwrap();
        for size in [1, 3 * MIB, 64 * MIB] {
            cache.grow(size).unwrap();
        }
        allocator.free(block).unwrap();
        cache.shrink(5).unwrap();
        allocator.reports().check().unwrap();
        drop(cache);
        assert_eq!(allocator.stats().allocated_bytes.all.current, 0, "{options}");
    }
}

#[test]
fn addresses_that_are_none_are_refused() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let block = world.allocate(10 * MIB, MAIN).unwrap();
    for address in [block, 0, 512, block + 512] {
        for answer in [
            world.allocator.growing().grow(address, MIB),
            world.allocator.growing().shrink(address, MIB),
            world.allocator.growing().resize(address, MIB),
            world.allocator.growing().extent(address).map(drop),
        ] {
            assert_eq!(answer, Err(Error::InvalidAddress { address }));
        }
    }
    let cache = world.reserve(64 * MIB, MAIN).unwrap();
    world.grow(cache, 8 * MIB).unwrap();
    world.grow(cache, 24 * MIB).unwrap();
    // The second part begins there, and belongs to the first.
    let inner = cache + 8 * MIB;
    for answer in [
        world.allocator.free(inner),
        world.allocator.free_on(inner, SIDE),
        world.allocator.free_with_current_stream(inner, MAIN),
        world.allocator.free_with_current_stream(inner, SIDE),
        world.allocator.record_stream(inner, SIDE),
        world.allocator.streams().unrecord(inner, SIDE),
        world.allocator.sharing().export(inner).map(drop),
        world.allocator.sharing().pin_physical(inner),
        world.allocator.sharing().handle_len(inner).map(drop),
        world.allocator.growing().grow(inner, 30 * MIB),
    ] {
        assert_eq!(answer, Err(Error::InvalidAddress { address: inner }));
        world.check_all();
    }
    let capacity = 64 * MIB;
    let beyond = world.allocator.growing().grow(cache, capacity + 1);
    assert_eq!(beyond, Err(Error::BeyondCapacity { address: cache, size: capacity + 1, capacity }));
    assert!(refused(&world.allocator.sharing().export(cache).unwrap_err()));
    assert!(refused(&world.allocator.sharing().pin_physical(cache).unwrap_err()));
    assert!(refused(&world.allocator.sharing().handle_len(cache).unwrap_err()));
    assert_eq!(world.allocator.growing().reserve(u64::MAX, MAIN), Err(Error::RequestTooLarge { size: u64::MAX }));
    world.check_all();
    world.free(cache);
    assert_eq!(world.allocator.growing().grow(cache, 1), Err(Error::InvalidAddress { address: cache }));
    assert_eq!(world.allocator.free(cache), Err(Error::InvalidAddress { address: cache }));
    world.end(&[]);
}

#[test]
fn what_has_no_memory_is_freed_like_any_other() {
    let mut world = World::new(CAPACITY, OPTIONS);
    for capacity in [0, 1, 64 * MIB] {
        let cache = world.reserve(capacity, MAIN).unwrap();
        world.grow(cache, 0).unwrap();
        world.shrink(cache, 0).unwrap();
        world.check_all();
        world.free(cache);
        assert_eq!(
            (world.device.used(), world.allocator.reports().fragmentation().views),
            (0, 0),
            "its addresses are back"
        );
    }
    let left = world.allocator.growing().reserve(64 * MIB, MAIN).unwrap();
    assert_eq!(world.allocator.growing().extent(left).unwrap().capacity, 64 * MIB);
    // The end of the allocator gives the addresses back, though nobody freed them.
    world.end(&[]);
}

#[test]
fn capacity_that_is_no_multiple_of_a_granule_is_kept_to_the_byte() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let capacity = 7 * MIB + 8;
    let cache = world.reserve(capacity, MAIN).unwrap();
    assert!(matches!(world.grow(cache, capacity + 1), Err(Error::BeyondCapacity { .. })));
    world.grow(cache, capacity).unwrap();
    assert_eq!((world.mapped(cache), world.device.used()), (8 * MIB, 8 * MIB));
    world.check_all();
    world.end(&[]);
}

#[test]
fn the_bounds_on_views_hold_for_addresses_and_mappings() {
    let mut world =
        World::new(CAPACITY, "strategy:stitch,chunk_size_mb:2,max_view_mappings:8,max_view_address_space:1GiB");
    let refused = world.reserve(2 << 30, MAIN).unwrap_err();
    assert!(refused.is_out_of_memory(), "{refused}");
    let cache = world.reserve(512 * MIB, MAIN).unwrap();
    world.grow(cache, 16 * MIB).unwrap();
    let refused = world.grow(cache, 18 * MIB).unwrap_err();
    assert!(refused.is_out_of_memory(), "{refused}");
    assert_eq!((world.mapped(cache), world.device.used()), (16 * MIB, 16 * MIB));
    world.check_all();
    world.shrink(cache, 0).unwrap();
    world.grow(cache, 4 * MIB).unwrap();
    world.check_all();
    world.end(&[]);
}

#[test]
fn a_limit_counts_what_is_mapped() {
    let mut world = World::new(CAPACITY, "strategy:stitch,chunk_size_mb:4,memory_limit:32MiB");
    let cache = world.reserve(200 * MIB, MAIN).unwrap();
    world.grow(cache, 32 * MIB).unwrap();
    assert!(world.grow(cache, 33 * MIB).unwrap_err().is_out_of_memory());
    world.allocator.limits().set_bytes(Some(64 * MIB)).unwrap();
    world.grow(cache, 64 * MIB).unwrap();
    world.shrink(cache, 8).unwrap();
    world.allocator.limits().set_bytes(Some(32 * MIB)).unwrap();
    assert!(world.device.used() <= 32 * MIB);
    world.check_all();
    world.end(&[]);
}

#[test]
fn a_program_that_is_asked_for_memory_frees_it_for_a_growth() {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=256MiB").unwrap()).unwrap());
    let allocator = Arc::new(Allocator::new(gpu, Config::parse("").unwrap()).unwrap());
    let hoard = parking_lot::Mutex::new(Some(Block::new(Arc::clone(&allocator), 200 * MIB, MAIN).unwrap()));
    allocator.limits().on_pressure(move |_| hoard.lock().take().is_some());
    let mut cache = Growing::new(Arc::clone(&allocator), 512 * MIB, MAIN).unwrap();
    cache.grow(100 * MIB).unwrap();
    assert!(cache.grow(300 * MIB).unwrap_err().is_out_of_memory());
    assert_eq!(cache.len(), 100 * MIB);
    allocator.reports().check().unwrap();
}

#[test]
fn one_grows_in_a_capture_but_is_not_waited_for() {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap());
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::parse("sharing:wait").unwrap()).unwrap();
    let stream = StreamId(3);
    let mut cache = Growing::new(&allocator, 512 * MIB, MAIN).unwrap();
    cache.grow(100 * MIB).unwrap();
    cache.shrink(10 * MIB).unwrap();
    let taken = allocator.allocate(80 * MIB, MAIN).unwrap();
    gpu.launch(MAIN, &[], 1_000_000_000).unwrap();
    let pool = Pool::create(&allocator).unwrap();
    allocator.pools().begin(pool.id(), Route::stream(stream).capturing()).unwrap();
    gpu.begin_capture(stream, CaptureMode::Global).unwrap();
    let mut other = Growing::new(&allocator, 512 * MIB, MAIN).unwrap();
    other.grow(50 * MIB).unwrap();
    let mapped = cache.mapped();
    let waits = cache.grow(100 * MIB).unwrap_err();
    let named = matches!(&waits, Error::NotGrowable { address, .. } if *address == cache.address());
    assert!(named, "a wait would end the capture: {waits}");
    assert_eq!(cache.mapped(), mapped);
    other.shrink(0).unwrap();
    gpu.end_capture(stream).unwrap();
    allocator.pools().end(pool.id()).unwrap();
    cache.grow(100 * MIB).unwrap();
    assert_eq!(gpu.faults(), []);
    allocator.reports().check().unwrap();
    allocator.free(taken).unwrap();
}

#[test]
fn the_owner_frees_what_it_owns_and_says_how_much_that_is() {
    let allocator = Arc::new(Allocator::open("sim:h200", "").unwrap());
    let mut cache = Growing::new(Arc::clone(&allocator), 64 * MIB, SIDE).unwrap();
    assert!(cache.is_empty() && cache.capacity() == 64 * MIB && cache.stream() == SIDE);
    cache.grow(5 * MIB).unwrap();
    cache.grow(MIB).unwrap();
    assert_eq!((cache.len(), cache.mapped()), (5 * MIB, 6 * MIB));
    assert_eq!(cache.as_ptr::<u8>() as u64, cache.address());
    assert!(format!("{cache:?}").contains("mapped: 6291456"), "{cache:?}");
    assert!(matches!(cache.grow(65 * MIB), Err(Error::BeyondCapacity { .. })));
    cache.set_last_use(MAIN);
    cache.free().unwrap();
    cache.free().unwrap();
    assert!(cache.grow(1).is_err());
    let raw = Growing::new(&*allocator, 64 * MIB, MAIN).unwrap().into_address();
    allocator.growing().resize(raw, 10 * MIB).unwrap();
    allocator.growing().resize(raw, 3 * MIB).unwrap();
    assert_eq!(allocator.growing().extent(raw).unwrap().len, 3 * MIB);
    allocator.free(raw).unwrap();
    drop(cache);
    assert_eq!(allocator.stats().allocation.all.current, 0);
}

#[test]
fn observers_and_snapshots_see_parts() {
    use seamalloc::observer::{Action, Event, Observer};
    struct Watch(Arc<parking_lot::Mutex<std::collections::BTreeMap<u64, u64>>>);
    impl Observer for Watch {
        fn event(&mut self, event: &Event) {
            let mut live = self.0.lock();
            match event.action {
                Action::Alloc => assert!(live.insert(event.address, event.size).is_none()),
                Action::FreeCompleted => assert_eq!(live.remove(&event.address), Some(event.size)),
                _ => {}
            }
        }
    }
    let allocator = Allocator::open("sim:h200", "chunk_size_mb:4").unwrap();
    let live = Arc::new(parking_lot::Mutex::new(std::collections::BTreeMap::new()));
    allocator.reports().add_observer(Box::new(Watch(Arc::clone(&live)))).unwrap();
    let mut cache = Growing::new(&allocator, 256 * MIB, MAIN).unwrap();
    for size in [MIB, 64 * MIB, 100 * MIB] {
        cache.grow(size).unwrap();
    }
    for size in [90 * MIB, 33 * MIB, 31 * MIB, 0] {
        cache.shrink(size).unwrap();
        assert_eq!(live.lock().values().sum::<u64>(), cache.mapped());
        let snapshot = allocator.reports().snapshot();
        let seen: u64 = snapshot.segments.iter().map(|segment| segment.total_size).sum();
        assert_eq!(seen, allocator.stats().reserved_bytes.all.current);
    }
    drop(cache);
    assert!(live.lock().is_empty());
}

#[test]
fn threads_grow_their_own_and_one_in_turns() {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=2GiB").unwrap()).unwrap());
    let allocator = Allocator::new(gpu, Config::parse("").unwrap()).unwrap();
    let shared = allocator.growing().reserve(256 * MIB, MAIN).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let allocator = &allocator;
            scope.spawn(move || {
                let mut own = Growing::new(allocator, 256 * MIB, StreamId(10 + thread)).unwrap();
                for step in 1..200 {
                    own.grow(step * MIB).unwrap();
                    if step % 50 == 0 {
                        own.shrink(step / 2 * MIB).unwrap();
                    }
                    match allocator.growing().grow(shared, step * MIB) {
                        Ok(()) => assert!(allocator.growing().extent(shared).unwrap().len >= step * MIB),
                        Err(error) => assert!(refused(&error), "{error}"),
                    }
                }
            });
        }
    });
    allocator.reports().check().unwrap();
    assert_eq!(allocator.growing().extent(shared).unwrap().len, 199 * MIB);
    allocator.free(shared).unwrap();
    assert_eq!(allocator.stats().allocation.all.current, 0);
}

/// Memory comes in whole chunks: some may lie behind the capacity, and is not the program's.
#[test]
fn the_capacity_is_the_most_though_more_is_mapped() {
    let allocator = Allocator::open("sim:h200", OPTIONS).unwrap();
    let mut cache = Growing::new(&allocator, MIB, MAIN).unwrap();
    cache.grow(MIB).unwrap();
    assert!(cache.mapped() > MIB);
    assert!(matches!(cache.grow(MIB + 1), Err(Error::BeyondCapacity { .. })));
    assert_eq!(cache.len(), MIB);
}

/// Whoever grows or shrinks it, the owner or somebody by its address: both say how much is in use, to the byte.
#[test]
fn the_owner_and_the_allocator_agree_on_lengths() {
    let (capacity, granule) = (100 * MIB, 2 * MIB);
    for seed in 0..20 {
        let allocator = Allocator::open("sim:h200", OPTIONS).unwrap();
        let mut random = Random(seed);
        let mut cache = Growing::new(&allocator, capacity, MAIN).unwrap();
        let address = cache.address();
        let mut len = 0;
        for step in 0..60 {
            let size = match random.below(3) {
                0 => random.below(capacity),
                1 => cache.mapped().min(capacity),
                _ => (cache.mapped() - random.below(cache.mapped().min(granule))).min(capacity),
            };
            let (grows, by_owner) = (random.below(2) == 0, random.below(4) > 0);
            match (grows, by_owner) {
                (true, true) => cache.grow(size),
                (true, false) => allocator.growing().grow(address, size),
                (false, true) => cache.shrink(size),
                (false, false) => allocator.growing().shrink(address, size),
            }
            .unwrap();
            len = if grows { size.max(len) } else { size.min(len) };
            let extent = allocator.growing().extent(address).unwrap();
            let context = format!("seed {seed}, step {step}: to {size}, grows {grows}, by the owner {by_owner}");
            assert_eq!((cache.len(), extent.len), (len, len), "{context}");
            assert_eq!((cache.mapped(), cache.capacity()), (extent.mapped, extent.capacity), "{context}");
            assert!(extent.mapped >= len && cache.is_empty() == (len == 0), "{context}");
        }
        drop(cache);
        assert_eq!(allocator.stats().allocation.all.current, 0);
    }
}

/// A size above 2^60 is refused as such, and one of 2^60 for want of addresses.
#[test]
fn a_capacity_that_no_device_has_is_refused_by_name() {
    let allocator = Allocator::open("sim:h200", OPTIONS).unwrap();
    let most = 1 << 60;
    assert_eq!(allocator.growing().reserve(most + 1, MAIN), Err(Error::RequestTooLarge { size: most + 1 }));
    assert!(!matches!(allocator.growing().reserve(most, MAIN).unwrap_err(), Error::RequestTooLarge { .. }));
}

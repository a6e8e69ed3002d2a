//! The rules of tags: which may sleep, what is refused meanwhile, and how a tag ends that sleeps.

use super::{backups, file, furnished};
use crate::device::{MAIN, MIB, SIDE};
use crate::world::{CAPACITY, OPTIONS, World};
use seamalloc::driver::host::{HostWork, Range};
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Call, CaptureMode, Contents, Driver, Status, StreamId};
use seamalloc::{Allocator, Backup, Config, Error, Pool, PoolId, Route};
use std::sync::Arc;

#[test]
fn a_tag_that_sleeps_gives_nothing() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let tag = furnished(&mut world);
    let blocks = world.allocator.pools().blocks(tag).unwrap();
    let (first, _) = world.live.first_key_value().unwrap();
    let first = *first;
    let held = world.allocator.tags().sleep(tag, &Backup::Host).unwrap();
    let asleep = Error::PoolAsleep { pool: tag };
    assert_eq!(world.allocator.pools().allocate(tag, 512, MAIN), Err(asleep.clone()));
    assert_eq!(world.allocator.pools().allocate_held(tag, 512, MAIN), Err(asleep.clone()));
    assert_eq!(world.allocator.pools().restore(tag, &blocks), Err(asleep.clone()));
    assert_eq!(world.allocator.sharing().export(first).map(drop), Err(asleep.clone()));
    assert_eq!(world.allocator.sharing().pin_physical(first), Err(asleep.clone()));
    world.allocator.pools().begin(tag, Route::stream(SIDE)).unwrap();
    assert_eq!(world.allocator.allocate(512, SIDE), Err(asleep));
    world.allocator.pools().end(tag).unwrap();
    assert_eq!(world.allocator.tags().sleep(tag, &Backup::Discard), Ok(0), "it sleeps, and what was kept is kept");
    // Nothing of it goes back a second time.
    assert_eq!((world.allocator.empty_cache(), world.allocator.trim(u64::MAX)), (Ok(0), Ok(0)));
    world.check_books();
    assert_eq!((world.allocator.tags().wake(tag), world.allocator.tags().wake(tag)), (Ok(held), Ok(0)));
    world.check_all();
    world.end(&[tag]);
}

#[test]
fn what_cannot_sleep_says_why() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let tag = furnished(&mut world);
    let why = |answer: Result<u64, Error>| match answer {
        Err(Error::NotSleepable { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    let plain = world.allocator.pools().create();
    assert!(why(world.allocator.tags().sleep(plain, &Backup::Host)).contains("shares chunks"));
    assert!(why(world.allocator.tags().wake(plain)).contains("shares chunks"));
    let unknown = PoolId(9, 9);
    assert_eq!(world.allocator.tags().sleep(unknown, &Backup::Host), Err(Error::UnknownPool { pool: unknown }));
    world.allocator.pools().begin(plain, Route::stream(SIDE).capturing()).unwrap();
    assert!(why(world.allocator.tags().sleep(tag, &Backup::Host)).contains("captured"));
    world.allocator.pools().end(plain).unwrap();
    let block = *world.live.first_key_value().unwrap().0;
    world.allocator.sharing().pin_physical(block).unwrap();
    assert!(why(world.allocator.tags().sleep(tag, &Backup::Host)).contains("registered"));
    world.check_all();
    world.allocator.pools().release(plain).unwrap();
    world.end(&[tag]);

    let other = Allocator::open("sim:h200", "strategy:caching").unwrap();
    assert!(why(other.tags().create().map(|_| 0)).contains("stitch"));
    let guarded = Allocator::open("sim:h200", "guard:on").unwrap();
    let tag = guarded.tags().create().unwrap();
    assert!(why(guarded.tags().sleep(tag, &Backup::Host)).contains("guard"));
}

#[test]
fn a_tag_has_chunks_of_its_own() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let [public, large] = [4 * MIB, 16 * MIB].map(|size| world.allocate(size, MAIN).unwrap());
    world.free(public);
    world.allocator.empty_cache().unwrap();
    world.free(large);
    let before = world.device.used();
    let tag = world.allocator.tags().create().unwrap();
    for size in [512, 900 << 10, 3 * MIB, 10 * MIB] {
        world.allocate_in(tag, size, MAIN).unwrap();
    }
    let own = world.allocator.pools().stats(tag).unwrap().reserved_bytes;
    assert_eq!(world.device.used(), before + own, "nothing that was free served the tag");
    let in_tag: Vec<u64> = world.live.keys().copied().collect();
    in_tag.into_iter().for_each(|address| world.free(address));
    world.allocate(24 * MIB, MAIN).unwrap();
    assert_eq!(world.device.used(), before + own + 8 * MIB, "nothing of the tag serves others");
    assert_eq!(world.allocator.tags().sleep(tag, &Backup::Host), Ok(own));
    world.check_all();
    assert_eq!(world.allocator.tags().open(world.allocator.pools().create()), Ok(()));
    let used = world.allocator.pools().create();
    let block = world.allocate_in(used, 512, MAIN).unwrap();
    assert_eq!(world.allocator.tags().open(used), Err(Error::PoolInUse { pool: used }));
    world.free(block);
    drop(world.allocator);
    assert_eq!(world.device.used(), 24 * MIB, "only what is live is left");
}

#[test]
fn an_allocator_that_is_dropped_leaves_nothing_of_a_tag_that_sleeps() {
    for backup in backups("dropped") {
        let mut world = World::new(CAPACITY, OPTIONS);
        let tag = furnished(&mut world);
        world.allocator.tags().sleep(tag, &backup).unwrap();
        let live: Vec<u64> = world.live.keys().copied().collect();
        live.into_iter().for_each(|address| world.free(address));
        let device = Arc::clone(&world.device);
        drop(world);
        assert_eq!(device.host.leaks(), Default::default());

        let mut world = World::new(CAPACITY, OPTIONS);
        let tag = furnished(&mut world);
        world.allocator.tags().sleep(tag, &backup).unwrap();
        let device = Arc::clone(&world.device);
        drop(world);
        let leaks = device.host.leaks();
        assert_eq!((leaks.bytes, leaks.handles, leaks.mappings), (0, 0, 0), "live blocks keep their addresses alone");
        if let Backup::File(path) = &backup {
            assert!(!path.exists());
        }
    }
}

#[test]
fn a_released_tag_sleeps_until_its_blocks_are_freed() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let tag = furnished(&mut world);
    let held = world.allocator.tags().sleep(tag, &Backup::Host).unwrap();
    world.allocator.pools().release(tag).unwrap();
    assert_eq!(world.allocator.tags().wake(tag), Err(Error::UnknownPool { pool: tag }));
    world.allocator.empty_cache().unwrap();
    world.check_books();
    // It can be taken up again, with what it holds.
    world.allocator.tags().open(tag).unwrap();
    assert_eq!(world.allocator.tags().wake(tag), Ok(held));
    world.check_all();
    world.allocator.tags().sleep(tag, &Backup::Host).unwrap();
    world.allocator.pools().release(tag).unwrap();
    let live: Vec<u64> = world.live.keys().copied().collect();
    live.into_iter().for_each(|address| world.free(address));
    world.allocator.empty_cache().unwrap();
    world.check_books();
    assert_eq!(world.allocator.pools().ids(), []);
    assert_eq!(world.allocator.reports().fragmentation().asleep, 0);
    // Its addresses serve again.
    let again = world.allocate(30 * MIB, MAIN).unwrap();
    world.check(again);
    world.end(&[]);
}

#[test]
fn a_limit_holds_while_waking() {
    let mut world = World::new(CAPACITY, "memory_limit:48MiB");
    let tag = world.allocator.tags().create().unwrap();
    world.allocate_in(tag, 30 * MIB, MAIN).unwrap();
    world.allocator.tags().sleep(tag, &Backup::Host).unwrap();
    let public = world.allocate(30 * MIB, SIDE).unwrap();
    assert!(world.allocator.tags().wake(tag).unwrap_err().is_out_of_memory());
    world.free(public);
    assert_eq!(world.allocator.tags().wake(tag), Ok(30 * MIB));
    world.check_all();
    world.end(&[tag]);
}

#[test]
fn a_pool_of_rust_sleeps() {
    let allocator = Allocator::open("host:256MiB", "").unwrap();
    let weights = Pool::create_tag(&allocator).unwrap();
    let route = weights.route(Route::this_thread()).unwrap();
    let block = allocator.block(8 * MIB, MAIN).unwrap();
    route.end().unwrap();
    let other = allocator.block(2 * MIB, MAIN).unwrap();
    assert_eq!(weights.sleep(&Backup::File(file("of-rust"))).unwrap(), 8 * MIB);
    assert!(weights.is_asleep());
    assert_eq!(allocator.stats().reserved_bytes.all.current, 2 * MIB);
    assert_eq!(weights.wake().unwrap(), 8 * MIB);
    drop((block, other));
}

#[test]
fn a_graph_over_a_tag_runs_as_before_once_the_tag_is_awake() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let tag = furnished(&mut world);
    let captured = StreamId(9);
    world.allocator.pools().begin(tag, Route::stream(captured).capturing()).unwrap();
    world.device.host.begin_capture(captured, CaptureMode::Global).unwrap();
    // The stitched block: the graph knows its addresses in the view.
    let (from, live) =
        world.live.iter().find(|(_, live)| live.size == 7 * MIB / 2).map(|(at, live)| (*at, *live)).unwrap();
    let to = world.allocator.allocate(live.size, captured).unwrap();
    let copy = HostWork::Copy { from: Range { address: from, size: live.size }, to };
    world.device.host.launch(captured, copy).unwrap();
    let graph = world.device.host.end_capture(captured).unwrap();
    world.allocator.pools().end(tag).unwrap();
    for _ in 0..2 {
        world.allocator.tags().sleep(tag, &Backup::Host).unwrap();
        world.allocator.tags().wake(tag).unwrap();
        world.device.host.launch(MAIN, HostWork::Set { to: Range { address: to, size: live.size }, value: 0 }).unwrap();
        world.device.settle();
        world.device.host.replay(&graph, captured).unwrap();
        world.device.settle();
        world.check_as(to, live);
    }
    world.allocator.free(to).unwrap();
    world.check_all();
    world.end(&[tag]);
}

#[test]
fn the_simulated_gpu_keeps_the_bytes_that_it_knows() {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=1GiB").unwrap()).unwrap());
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::default()).unwrap();
    let tag = allocator.tags().create().unwrap();
    let address = allocator.pools().allocate(tag, 30 * MIB, MAIN).unwrap();
    let bytes: Vec<u8> = (0..5000_u32).map(|at| (at / 7) as u8).collect();
    gpu.write(address + 12345, &bytes).unwrap();
    for backup in [Backup::Host, Backup::File(file("simulated"))] {
        allocator.tags().sleep(tag, &backup).unwrap();
        assert_eq!((allocator.reports().reserved(), gpu.memory_info().unwrap().free), (0, 1 << 30));
        assert!(gpu.read(address, &mut [0]).is_err(), "there is no memory");
        allocator.tags().wake(tag).unwrap();
        let mut found = vec![1; bytes.len() + 2];
        gpu.read(address + 12344, &mut found).unwrap();
        assert_eq!((&found[1..=bytes.len()], found[0], found[bytes.len() + 1]), (&bytes[..], 0, 0));
    }
    allocator.free(address).unwrap();
    drop(allocator);
    assert!(gpu.leaks().is_empty());
}

#[test]
fn a_refusal_counts_nothing_of_what_sleeps_as_free() {
    let mut world = World::new(64 * MIB, OPTIONS);
    let tag = world.allocator.tags().create().unwrap();
    let blocks: Vec<u64> = (0..10).map(|_| world.allocate_in(tag, 4 * MIB, MAIN).unwrap()).collect();
    blocks.into_iter().step_by(2).for_each(|address| world.free(address));
    world.allocator.tags().sleep(tag, &Backup::Host).unwrap();
    let parts = world.allocator.reports().fragmentation();
    assert_eq!((parts.free, parts.asleep, parts.chunks), (0, 20 * MIB, 0), "{parts:?}");
    let public = world.allocate(40 * MIB, MAIN).unwrap();
    for refused in [world.allocator.tags().wake(tag), world.allocator.allocate(30 * MIB, MAIN)] {
        let Err(Error::OutOfMemory(report)) = refused else { panic!("{refused:?}") };
        let held = (report.reserved, report.allocated, report.free_in_private_pools);
        assert_eq!(held, (40 * MIB, 40 * MIB, 0), "{report}");
        assert!(!report.to_string().contains("Enough is free"), "{report}");
    }
    world.free(public);
    world.allocator.tags().wake(tag).unwrap();
    world.check_all();
    world.end(&[tag]);
}

/// Of the memory of a tag that sleeps, what is live is live elsewhere, and what is free is nowhere.
#[test]
fn what_sleeps_is_no_part_of_what_is_held() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let tags = [(); 2].map(|()| world.allocator.tags().create().unwrap());
    for (tag, freed) in tags.into_iter().zip([2, 1]) {
        let blocks = [(); 4].map(|()| world.allocate_in(tag, 4 * MIB, MAIN).unwrap());
        blocks.into_iter().step_by(2).take(freed).for_each(|block| world.free(block));
    }
    let public = [8, 4].map(|mib| world.allocate(mib * MIB, MAIN).unwrap());
    world.free(public[1]);
    let spare = |world: &World| {
        let seamalloc::LendableBytes { held, live, free } = world.allocator.lending().lendable();
        [held, live, free, world.allocator.reports().fragmentation().asleep].map(|bytes| bytes / MIB)
    };
    assert_eq!(spare(&world), [44, 28, 16, 0]);
    world.allocator.tags().sleep(tags[0], &Backup::Discard).unwrap();
    assert_eq!(spare(&world), [28, 20, 8, 8]);
    world.allocator.tags().sleep(tags[1], &Backup::Discard).unwrap();
    assert_eq!(spare(&world), [12, 8, 4, 20]);
    let asleep = tags.map(|tag| world.allocator.pools().stats(tag).unwrap().asleep_bytes);
    assert_eq!(asleep, [16 * MIB; 2], "each has its own");
    world.check_books();
    world.allocator.tags().wake(tags[0]).unwrap();
    assert_eq!(spare(&world), [28, 16, 12, 12]);
    world.end(&tags);
}

/// Nobody has got to know the memory.
#[test]
fn a_tag_sleeps_after_sharing_of_it_has_failed() {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap());
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::parse(OPTIONS).unwrap()).unwrap();
    let tag = allocator.tags().create().unwrap();
    let block = allocator.pools().allocate(tag, 10 * MIB, MAIN).unwrap();
    for nth in [1, 2] {
        gpu.fail_nth(Call::Export, nth, Status::UNKNOWN);
        assert!(matches!(allocator.sharing().export(block), Err(Error::Driver(_))));
        assert_eq!(allocator.tags().sleep(tag, &Backup::Host).unwrap(), 10 * MIB);
        allocator.tags().wake(tag).unwrap();
    }
    allocator.sharing().export(block).unwrap();
    assert!(matches!(allocator.tags().sleep(tag, &Backup::Host), Err(Error::NotSleepable { .. })));
    allocator.free(block).unwrap();
}

//! Allocations of private pools and tags grow too: tags sleep and wake with them.

use crate::device::{MAIN, MIB, SIDE};
use crate::world::{CAPACITY, OPTIONS, World};
use seamalloc::driver::CaptureMode;
use seamalloc::{Backup, Error, PoolId, Route};

#[test]
fn a_tag_sleeps_and_wakes_with_what_has_grown() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let tag = world.allocator.tags().create().unwrap();
    let free = world.allocate(20 * MIB, MAIN).unwrap();
    world.free(free);
    let cache = world.reserve_in(tag, 100 * MIB, MAIN).unwrap();
    world.grow(cache, 30 * MIB).unwrap();
    assert_eq!(world.device.used(), 50 * MIB, "a tag takes no memory of others");
    world.shrink(cache, 21 * MIB).unwrap();
    world.check_all();
    for backup in [Backup::Host, Backup::Host] {
        let slept = world.allocator.tags().sleep(tag, &backup).unwrap();
        assert_eq!((slept, world.device.used()), (30 * MIB, 20 * MIB));
        world.allocator.reports().check().unwrap();
        assert_eq!(world.allocator.growing().grow(cache, 40 * MIB), Err(Error::PoolAsleep { pool: tag }));
        world.shrink(cache, 13 * MIB).unwrap();
        world.allocator.reports().check().unwrap();
        world.allocator.tags().wake(tag).unwrap();
        world.check_all();
        world.grow(cache, 30 * MIB).unwrap();
        assert_eq!(world.device.used(), 50 * MIB);
        world.check_all();
    }
    // Its own tail serves another request of the tag, and is unmapped then.
    world.shrink(cache, 4 * MIB).unwrap();
    let other = world.allocator.pools().allocate(tag, 24 * MIB, MAIN).unwrap();
    world.allocator.growing().grow(cache, 20 * MIB).unwrap();
    world.allocator.growing().shrink(cache, 4 * MIB).unwrap();
    world.allocator.free(other).unwrap();
    world.check_all();
    world.allocator.tags().sleep(tag, &Backup::Host).unwrap();
    world.free(cache);
    world.allocator.reports().check().unwrap();
    world.allocator.tags().wake(tag).unwrap();
    world.check_all();
    world.end(&[tag]);
}

/// Their chunks lie by turns at home, where nothing is mapped, and one behind the other in two views.
#[test]
fn two_that_have_grown_by_turns_sleep_and_wake_with_their_words() {
    for backup in [Backup::Host, Backup::Pinned] {
        let mut world = World::new(CAPACITY, OPTIONS);
        let tag = world.allocator.tags().create().unwrap();
        let caches = [(); 2].map(|()| world.reserve_in(tag, 32 * MIB, MAIN).unwrap());
        for size in [4, 8, 12] {
            caches.into_iter().for_each(|cache| world.grow(cache, size * MIB).unwrap());
        }
        assert_eq!(world.allocator.tags().sleep(tag, &backup), Ok(24 * MIB));
        assert_eq!(world.allocator.tags().wake(tag), Ok(24 * MIB));
        world.check_all();
        world.end(&[tag]);
    }
}

/// Memory that every stream has passed serves everybody but tags.
#[test]
fn a_tag_takes_no_idle_memory() {
    let mut world = World::new(CAPACITY, "chunk_size_mb:4,sharing:completed");
    let free = world.allocate(32 * MIB, SIDE).unwrap();
    world.free(free);
    world.device.settle();
    let mut public = Vec::new();
    // The event of the stream's work may be seen late.
    while public.len() < 100 && !public.iter().any(|block| (free..free + 32 * MIB).contains(block)) {
        public.push(world.allocate(4 * MIB, MAIN).unwrap());
    }
    let held = world.used().0;
    let tag = world.allocator.tags().create().unwrap();
    let cache = world.reserve_in(tag, 32 * MIB, MAIN).unwrap();
    world.grow(cache, 8 * MIB).unwrap();
    assert_eq!(world.used().0, held + 8 * MIB);
    world.allocate_in(tag, 8 * MIB, MAIN).unwrap();
    assert_eq!(world.used().0, held + 16 * MIB);
    world.check_all();
    world.end(&[tag]);
}

#[test]
fn what_is_freed_in_a_tag_serves_the_next_one_of_it_and_no_other() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let [a, b] = [(); 2].map(|()| world.allocator.tags().create().unwrap());
    let cache = world.reserve_in(a, 100 * MIB, MAIN).unwrap();
    world.grow(cache, 30 * MIB).unwrap();
    world.free(cache);
    let other = world.reserve_in(b, 100 * MIB, MAIN).unwrap();
    let public = world.reserve(100 * MIB, MAIN).unwrap();
    assert!(other != cache && public != cache);
    let again = world.reserve_in(a, 100 * MIB, MAIN).unwrap();
    assert_eq!(again, cache);
    world.grow(again, 30 * MIB).unwrap();
    assert_eq!(world.device.used(), 30 * MIB);
    world.check_all();
    world.end(&[a, b]);
}

#[test]
fn one_that_outlives_its_pool_grows_by_public_memory() {
    for tag in [false, true] {
        let mut world = World::new(CAPACITY, OPTIONS);
        let pool = if tag { world.allocator.tags().create().unwrap() } else { world.allocator.pools().create() };
        let cache = world.reserve_in(pool, 100 * MIB, MAIN).unwrap();
        world.grow(cache, 10 * MIB).unwrap();
        assert_eq!(world.allocator.pools().stats(pool).unwrap().allocated_bytes, 10 * MIB);
        world.allocator.pools().release(pool).unwrap();
        world.check_all();
        world.grow(cache, 50 * MIB).unwrap();
        world.check_all();
        world.shrink(cache, 8).unwrap();
        world.grow(cache, 20 * MIB).unwrap();
        world.check_all();
        world.end(&[]);
    }
}

#[test]
fn pools_that_cannot_have_one_refuse() {
    let mut world = World::new(CAPACITY, OPTIONS);
    assert_eq!(world.allocator.growing().reserve_in(PoolId(9, 9), MIB, MAIN), unknown());
    let pool = world.allocator.pools().create();
    let blocks = world.allocator.pools().blocks(pool).unwrap();
    let cache = world.reserve_in(pool, 100 * MIB, MAIN).unwrap();
    world.grow(cache, 10 * MIB).unwrap();
    let restored = world.allocator.pools().restore(pool, &blocks);
    assert!(matches!(restored, Err(Error::NotGrowable { address, .. }) if address == cache));
    world.check_all();
    world.free(cache);
    world.allocator.pools().restore(pool, &blocks).unwrap();
    world.end(&[pool]);
}

fn unknown() -> Result<u64, Error> {
    Err(Error::UnknownPool { pool: PoolId(9, 9) })
}

/// Once a pool has ended, no graph uses what was given back: the CPU waits for the device, and it grows.
#[test]
fn one_whose_captured_pool_has_ended_grows_over_what_it_gave_back() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let (stream, pool) = (world.device.host.create_stream(), world.allocator.pools().create());
    world.allocator.pools().begin(pool, Route::stream(stream).capturing()).unwrap();
    world.device.host.begin_capture(stream, CaptureMode::Global).unwrap();
    let captured = world.allocator.allocate(MIB, stream).unwrap();
    world.device.host.end_capture(stream).unwrap();
    world.allocator.pools().end(pool).unwrap();
    world.allocator.free(captured).unwrap();
    let cache = world.reserve_in(pool, 100 * MIB, MAIN).unwrap();
    world.grow(cache, 20 * MIB).unwrap();
    world.shrink(cache, 4 * MIB).unwrap();
    let other = world.allocator.pools().allocate(pool, 16 * MIB, MAIN).unwrap();
    let refused = world.grow(cache, 24 * MIB);
    assert!(matches!(refused, Err(Error::NotGrowable { address, .. }) if address == cache), "{refused:?}");
    world.allocator.pools().release(pool).unwrap();
    world.grow(cache, 24 * MIB).unwrap();
    world.allocator.free(other).unwrap();
    world.check_all();
    world.end(&[]);
}

#[test]
fn one_of_a_tag_that_was_released_asleep_grows_no_more_until_the_tag_is_taken_up_again() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let tag = world.allocator.tags().create().unwrap();
    let cache = world.reserve_in(tag, 100 * MIB, MAIN).unwrap();
    world.grow(cache, 10 * MIB).unwrap();
    world.allocator.tags().sleep(tag, &Backup::Host).unwrap();
    world.allocator.pools().release(tag).unwrap();
    assert_eq!(world.allocator.growing().grow(cache, 20 * MIB), Err(Error::PoolAsleep { pool: tag }));
    world.check_books();
    world.allocator.tags().open(tag).unwrap();
    world.allocator.tags().wake(tag).unwrap();
    world.grow(cache, 20 * MIB).unwrap();
    assert_eq!(world.allocator.pools().stats(tag).unwrap().allocated_bytes, 20 * MIB);
    world.check_all();
    world.allocator.tags().sleep(tag, &Backup::Host).unwrap();
    world.allocator.pools().release(tag).unwrap();
    world.free(cache);
    world.check_books();
    world.end(&[]);
}

/// The allocation's parts are public from the pool's end on, and so is what comes, whoever has the pool's number then.
#[test]
fn one_that_outlives_its_pool_takes_nothing_of_the_next_pool_of_that_number() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let tag = PoolId(7, 7);
    world.allocator.tags().open(tag).unwrap();
    let cache = world.reserve_in(tag, 100 * MIB, MAIN).unwrap();
    world.grow(cache, 10 * MIB).unwrap();
    world.allocator.pools().release(tag).unwrap();
    world.allocator.tags().open(tag).unwrap();
    world.grow(cache, 20 * MIB).unwrap();
    assert_eq!(world.allocator.pools().stats(tag).unwrap().allocated_bytes, 0);
    assert_eq!(world.allocator.tags().sleep(tag, &Backup::Host).unwrap(), 0);
    world.check_all();
    world.free(cache);
    world.check_books();
    world.end(&[tag]);
}

/// A tag that a graph may use stays a while after its release. What has grown by public memory meanwhile lies in one view with memory
/// of the tag, which is taken up again, sleeps, and ends so.
#[test]
fn a_tag_that_ends_asleep_leaves_what_others_have_in_its_views() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let (stream, tag) = (world.device.host.create_stream(), world.allocator.tags().create().unwrap());
    world.allocator.pools().begin(tag, Route::stream(stream).capturing()).unwrap();
    world.device.host.begin_capture(stream, CaptureMode::Global).unwrap();
    let captured = world.allocator.allocate(MIB, stream).unwrap();
    world.device.host.end_capture(stream).unwrap();
    world.allocator.pools().end(tag).unwrap();
    world.allocator.free(captured).unwrap();
    let cache = world.reserve_in(tag, 100 * MIB, MAIN).unwrap();
    world.grow(cache, 10 * MIB).unwrap();
    world.allocator.pools().release(tag).unwrap();
    world.grow(cache, 20 * MIB).unwrap();
    world.allocator.tags().open(tag).unwrap();
    assert_eq!(world.allocator.pools().stats(tag).unwrap().allocated_bytes, 10 * MIB);
    assert!(world.allocator.tags().sleep(tag, &Backup::Host).unwrap() >= 10 * MIB);
    world.allocator.pools().release(tag).unwrap();
    world.free(cache);
    world.check_books();
    world.allocator.empty_cache().unwrap();
    assert_eq!(world.device.used(), 0);
    world.end(&[]);
}

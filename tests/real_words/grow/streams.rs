//! The memory that is given back serves others, and its addresses are unmapped, only once the GPU has passed it.

use crate::device::{MAIN, MIB, SIDE};
use crate::world::{CAPACITY, OPTIONS, World};
use seamalloc::Growing;
use seamalloc::driver::host::{HostWork, Range};

/// Gives a stream work that uses a range once the stream is let go.
fn use_later(world: &World, stream: seamalloc::StreamId, address: u64, size: u64) {
    world.device.host.hold(stream).unwrap();
    world.device.host.launch(stream, HostWork::Use { range: Range { address, size } }).unwrap();
}

#[test]
fn a_tail_that_the_gpu_uses_is_not_unmapped_under_it() {
    for stream in [MAIN, SIDE] {
        let mut world = World::new(CAPACITY, "strategy:stitch,chunk_size_mb:4,sharing:wait");
        let cache = world.reserve(64 * MIB, stream).unwrap();
        world.grow(cache, 40 * MIB).unwrap();
        world.check_all();
        use_later(&world, stream, cache, 40 * MIB);
        world.shrink(cache, 4 * MIB).unwrap();
        // It serves its stream, in order; so the tail cannot be had where it is.
        let other = world.allocator.allocate(20 * MIB, stream).unwrap();
        // The CPU waits: a held stream is let go by that.
        world.allocator.growing().grow(cache, 30 * MIB).unwrap();
        world.device.settle();
        assert_eq!(world.device.host.faults(), []);
        world.allocator.growing().shrink(cache, 4 * MIB).unwrap();
        world.allocator.free(other).unwrap();
        world.check_all();
        world.end(&[]);
    }
}

#[test]
fn what_another_stream_uses_is_not_given_away_before_it_has_passed() {
    // Nobody waits on the GPU.
    let mut world = World::new(CAPACITY, &format!("{OPTIONS},sharing:never"));
    let cache = world.reserve(64 * MIB, MAIN).unwrap();
    world.grow(cache, 8 * MIB).unwrap();
    world.allocator.record_stream(cache, SIDE).unwrap();
    world.grow(cache, 40 * MIB).unwrap();
    world.check_all();
    use_later(&world, SIDE, cache, 40 * MIB);
    world.shrink(cache, 4 * MIB).unwrap();
    let held = world.device.used();
    assert_eq!(world.allocator.reports().fragmentation().pending, 36 * MIB, "what the side stream uses is not free");
    let other = world.allocate(20 * MIB, MAIN).unwrap();
    assert_eq!(world.device.used(), held + 20 * MIB);
    world.device.host.finish(SIDE);
    world.device.settle();
    world.grow(cache, 40 * MIB).unwrap();
    assert_eq!(world.device.used(), held + 20 * MIB, "what has passed serves again");
    world.free(other);
    world.check_all();
    // Erased, it waits for nobody.
    world.allocator.streams().unrecord(cache, SIDE).unwrap();
    world.shrink(cache, 4 * MIB).unwrap();
    assert_eq!(world.allocator.reports().fragmentation().pending, 0);
    world.end(&[]);
}

/// The allocation is all of its parts, whatever was said of the first one.
#[test]
fn one_of_which_a_stream_was_erased_is_freed_as_a_whole() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let cache = world.reserve(64 * MIB, MAIN).unwrap();
    world.grow(cache, 8 * MIB).unwrap();
    world.allocator.record_stream(cache, SIDE).unwrap();
    world.allocator.streams().unrecord(cache, SIDE).unwrap();
    world.grow(cache, 40 * MIB).unwrap();
    world.free(cache);
    assert!(world.allocator.growing().extent(cache).is_err());
    assert_eq!((world.stats().allocation.all.current, world.stats().allocated_bytes.all.current), (0, 0));
    world.end_empty(&[]);
}

#[test]
fn growing_back_over_a_tail_that_waits_for_a_stream_waits_for_it() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let cache = world.reserve(64 * MIB, MAIN).unwrap();
    world.grow(cache, 40 * MIB).unwrap();
    world.allocator.record_stream(cache, SIDE).unwrap();
    world.check_all();
    use_later(&world, SIDE, cache, 40 * MIB);
    world.shrink(cache, 4 * MIB).unwrap();
    world.grow(cache, 40 * MIB).unwrap();
    world.check_all();
    world.end(&[]);
}

#[test]
fn all_of_it_waits_for_the_stream_of_its_last_use() {
    for under in [false, true] {
        let mut world = World::new(CAPACITY, OPTIONS);
        let cache = world.reserve(64 * MIB, MAIN).unwrap();
        world.grow(cache, 20 * MIB).unwrap();
        world.check_all();
        use_later(&world, SIDE, cache, 20 * MIB);
        world.live.remove(&cache);
        let free = if under { seamalloc::Allocator::free_with_current_stream } else { seamalloc::Allocator::free_on };
        free(&world.allocator, cache, SIDE).unwrap();
        assert_eq!(world.allocator.reports().fragmentation().pending, 20 * MIB);
        let next = world.reserve(64 * MIB, MAIN).unwrap();
        world.grow(next, 20 * MIB).unwrap();
        world.check_all();
        world.end(&[]);
    }
}

#[test]
fn a_stream_that_is_forgotten_is_not_named_again() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let side = world.device.host.create_stream();
    let cache = world.reserve(64 * MIB, MAIN).unwrap();
    world.grow(cache, 20 * MIB).unwrap();
    world.allocator.record_stream(cache, side).unwrap();
    world.allocator.streams().forget(side).unwrap();
    world.device.host.destroy_stream(side);
    world.grow(cache, 30 * MIB).unwrap();
    world.shrink(cache, 0).unwrap();
    assert_eq!(world.allocator.reports().fragmentation().pending, 0);
    world.check_all();
    world.end(&[]);
}

/// The handle of a stream that was forgotten belongs to another stream: it is noted for what there is, and gets nothing new.
#[test]
fn an_allocation_whose_stream_is_forgotten_keeps_what_it_has() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let side = world.device.host.create_stream();
    let cache = world.reserve(64 * MIB, side).unwrap();
    world.grow(cache, 20 * MIB).unwrap();
    world.check_all();
    world.allocator.streams().forget(side).unwrap();
    world.device.host.replace_stream(side);
    let error = world.grow(cache, 40 * MIB).unwrap_err();
    assert!(matches!(&error, seamalloc::Error::NotGrowable { address, .. } if *address == cache), "{error}");
    assert_eq!(world.mapped(cache), 20 * MIB);
    // The new stream of that handle uses it.
    world.allocator.record_stream(cache, side).unwrap();
    use_later(&world, side, cache, 20 * MIB);
    world.shrink(cache, 4 * MIB).unwrap();
    assert_eq!(world.allocator.reports().fragmentation().pending, 16 * MIB, "it waits for the stream that was named");
    world.device.host.finish(side);
    world.device.settle();
    world.check_all();
    world.end(&[]);
}

/// The memory that is given back waits for the stream of the last use, and for a stream that is named.
#[test]
fn one_that_owns_itself_shrinks_behind_its_uses() {
    for is_last in [true, false] {
        let world = World::new(CAPACITY, OPTIONS);
        let mut cache = Growing::new(&world.allocator, 64 * MIB, MAIN).unwrap();
        cache.grow(20 * MIB).unwrap();
        match is_last {
            true => cache.set_last_use(SIDE),
            false => cache.record_stream(SIDE).unwrap(),
        }
        use_later(&world, SIDE, cache.address(), 20 * MIB);
        cache.shrink(4 * MIB).unwrap();
        assert_eq!(world.allocator.reports().fragmentation().pending, 16 * MIB, "last use {is_last}");
        world.device.host.finish(SIDE);
        drop(cache);
        world.device.settle();
        world.end(&[]);
    }
}

/// Frees that wait for streams are not looked at where there is memory.
#[test]
fn growth_within_what_is_mapped_calls_no_driver() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let cache = world.reserve(64 * MIB, MAIN).unwrap();
    world.grow(cache, 3 * MIB).unwrap();
    let block = world.allocate(8 * MIB, MAIN).unwrap();
    world.allocator.record_stream(block, SIDE).unwrap();
    use_later(&world, SIDE, block, 8 * MIB);
    world.free(block);
    world.device.host.finish(SIDE);
    let calls = world.device.calls();
    world.allocator.growing().grow(cache, 4 * MIB).unwrap();
    assert_eq!(world.device.calls(), calls);
    world.allocator.growing().grow(cache, 12 * MIB).unwrap();
    assert_eq!((world.device.used(), world.allocator.reports().fragmentation().pending), (12 * MIB, 0));
    world.take_len(cache);
    world.check_all();
    world.end(&[]);
}

/// Memory that other streams have passed serves growth, in private pools too.
#[test]
fn growth_takes_what_streams_have_passed() {
    for private in [false, true] {
        let mut world = World::new(CAPACITY, OPTIONS);
        let pool = if private { world.allocator.pools().create() } else { seamalloc::PoolId::NONE };
        let cache = world.reserve_in(pool, 64 * MIB, MAIN).unwrap();
        world.grow(cache, 4 * MIB).unwrap();
        let block = world.allocate_in(pool, 8 * MIB, MAIN).unwrap();
        world.allocator.record_stream(block, SIDE).unwrap();
        use_later(&world, SIDE, block, 8 * MIB);
        world.free(block);
        assert_eq!(world.allocator.reports().fragmentation().pending, 8 * MIB);
        world.device.host.finish(SIDE);
        world.device.settle();
        world.grow(cache, 12 * MIB).unwrap();
        assert_eq!(
            (world.device.used(), world.allocator.reports().fragmentation().pending),
            (12 * MIB, 0),
            "private {private}"
        );
        world.check_all();
        if private {
            world.end(&[pool]);
        } else {
            world.end(&[]);
        }
    }
}

/// A stream that is forgotten takes no other's name with it.
#[test]
fn the_other_streams_that_were_named_are_waited_for() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let side = world.device.host.create_stream();
    let cache = world.reserve(64 * MIB, MAIN).unwrap();
    world.allocator.record_stream(cache, SIDE).unwrap();
    world.grow(cache, 20 * MIB).unwrap();
    world.check_all();
    world.allocator.streams().forget(side).unwrap();
    use_later(&world, SIDE, cache, 20 * MIB);
    world.shrink(cache, 4 * MIB).unwrap();
    assert_eq!(world.allocator.reports().fragmentation().pending, 16 * MIB);
    world.device.host.finish(SIDE);
    world.device.settle();
    world.check_all();
    world.end(&[]);
}

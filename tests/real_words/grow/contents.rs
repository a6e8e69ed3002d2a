//! The contents of allocations while they grow and shrink, and from where their memory comes.

use crate::device::{MAIN, MIB, SIDE};
use crate::world::{CAPACITY, OPTIONS, World};
use seamalloc::driver::{Call, CallStats};

#[test]
fn one_grows_at_one_address_and_every_word_keeps() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let cache = world.reserve(128 * MIB, MAIN).unwrap();
    assert_eq!((world.device.used(), world.mapped(cache)), (0, 0));
    world.check_all();
    for step in 1..=160 {
        world.grow(cache, step * 320 * 1024).unwrap();
        assert!(world.mapped(cache) - step * 320 * 1024 < 2 * MIB);
        assert_eq!(world.device.used(), world.mapped(cache));
    }
    world.check_all();
    world.end(&[]);
}

#[test]
fn free_chunks_of_any_place_and_size_serve_before_memory_grows() {
    let mut world = World::new(CAPACITY, OPTIONS);
    // 8, 4, 12 and 4 MiB with live blocks between them.
    let blocks: Vec<u64> = [8, 4, 4, 4, 12, 4, 4, 4].map(|mib| world.allocate(mib * MIB, MAIN).unwrap()).to_vec();
    let held = world.device.used();
    [0, 2, 4, 6].into_iter().for_each(|at| world.free(blocks[at]));
    let cache = world.reserve(100 * MIB, MAIN).unwrap();
    world.grow(cache, 28 * MIB).unwrap();
    assert_eq!((world.device.used(), world.mapped(cache)), (held, 28 * MIB), "memory grew though there was enough");
    world.check_all();
    world.grow(cache, 30 * MIB).unwrap();
    assert_eq!(world.device.used(), held + 2 * MIB, "memory grew by more than is missing");
    world.check_all();
    world.end(&[]);
}

#[test]
fn a_chunk_that_is_in_use_in_part_is_left_alone() {
    let mut world = World::new(CAPACITY, "strategy:stitch,chunk_size_mb:20");
    let whole = world.allocate(20 * MIB, MAIN).unwrap();
    world.free(whole);
    let part = world.allocate(MIB + 512, MAIN).unwrap();
    let cache = world.reserve(100 * MIB, MAIN).unwrap();
    world.grow(cache, 6 * MIB).unwrap();
    assert_eq!(world.device.used(), 26 * MIB);
    world.check_all();
    world.free(part);
    // The whole chunk is free again, and not much larger than what is missing.
    world.grow(cache, 8 * MIB).unwrap();
    assert_eq!((world.device.used(), world.mapped(cache)), (26 * MIB, 26 * MIB));
    world.check_all();
    world.end(&[]);
}

#[test]
fn what_is_given_back_serves_others_and_comes_from_elsewhere_again() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let cache = world.reserve(64 * MIB, MAIN).unwrap();
    world.grow(cache, 40 * MIB).unwrap();
    world.shrink(cache, 9 * MIB).unwrap();
    assert_eq!(world.mapped(cache), 12 * MIB, "chunks go whole");
    assert_eq!(world.device.used(), 40 * MIB);
    world.check_all();
    let other = world.allocate(28 * MIB, MAIN).unwrap();
    assert_eq!(world.device.used(), 40 * MIB, "what was given back serves no other request");
    world.check_all();
    world.grow(cache, 24 * MIB).unwrap();
    assert_eq!(world.device.used(), 52 * MIB);
    world.check_all();
    world.free(other);
    world.grow(cache, 52 * MIB).unwrap();
    assert_eq!(world.device.used(), 52 * MIB);
    world.check_all();
    world.end(&[]);
}

/// Returns how many calls of a kind were made since.
fn made(world: &World, before: &CallStats, call: Call) -> u64 {
    world.device.calls().since(before).get(call).count
}

#[test]
fn what_is_still_mapped_is_taken_again_without_the_driver() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let cache = world.reserve(64 * MIB, MAIN).unwrap();
    world.grow(cache, 40 * MIB).unwrap();
    for size in [0, 4 * MIB, 17 * MIB] {
        world.shrink(cache, size).unwrap();
        let before = world.device.calls();
        world.grow(cache, 40 * MIB).unwrap();
        for call in [Call::Map, Call::Unmap, Call::Create, Call::SetAccess] {
            assert_eq!(made(&world, &before, call), 0, "{call:?} after a shrink to {size}");
        }
        assert_eq!((world.device.used(), world.mapped(cache)), (40 * MIB, 40 * MIB));
        world.check_all();
    }
    world.shrink(cache, 6 * MIB).unwrap();
    let before = world.device.calls();
    for size in 7..=40 {
        world.grow(cache, size * MIB).unwrap();
    }
    assert_eq!(made(&world, &before, Call::Map), 0, "step by step it was mapped anew");
    world.check_all();
    // So is the next one of that capacity.
    let address = cache;
    world.free(cache);
    let next = world.reserve(60 * MIB, MAIN).unwrap();
    assert_eq!(next, address);
    let before = world.device.calls();
    world.grow(next, 32 * MIB).unwrap();
    assert_eq!(made(&world, &before, Call::Map), 0);
    world.check_all();
    world.end(&[]);
}

#[test]
fn memory_goes_back_to_the_driver_from_under_a_tail_and_under_what_was_freed() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let cache = world.reserve(64 * MIB, MAIN).unwrap();
    world.grow(cache, 40 * MIB).unwrap();
    world.shrink(cache, 8 * MIB).unwrap();
    assert_eq!(world.allocator.empty_cache().unwrap(), 32 * MIB);
    assert_eq!(world.device.used(), 8 * MIB);
    world.check_all();
    world.grow(cache, 30 * MIB).unwrap();
    assert_eq!(world.device.used(), 30 * MIB + 2 * MIB * u64::from(world.mapped(cache) == 32 * MIB));
    world.check_all();
    world.shrink(cache, 0).unwrap();
    world.allocator.trim(12 * MIB).unwrap();
    world.check_all();
    world.grow(cache, 30 * MIB).unwrap();
    world.check_all();
    world.free(cache);
    world.allocator.empty_cache().unwrap();
    assert_eq!((world.device.used(), world.allocator.reports().fragmentation().views), (0, 0));
    world.end(&[]);
}

#[test]
fn two_streams_and_blocks_share_what_is_free() {
    let mut world = World::new(96 * MIB, "strategy:stitch,chunk_size_mb:4,sharing:wait");
    let [a, b] = [MAIN, SIDE].map(|stream| world.reserve(80 * MIB, stream).unwrap());
    world.grow(a, 60 * MIB).unwrap();
    world.grow(b, 30 * MIB).unwrap();
    world.check_all();
    world.shrink(a, 8 * MIB).unwrap();
    world.grow(b, 70 * MIB).unwrap();
    assert!(world.device.used() <= 96 * MIB);
    world.check_all();
    let refused = world.grow(a, 40 * MIB).unwrap_err();
    assert!(refused.is_out_of_memory(), "{refused}");
    assert_eq!(world.mapped(a), 8 * MIB);
    world.check_all();
    world.shrink(b, 4 * MIB).unwrap();
    world.grow(a, 80 * MIB).unwrap();
    world.check_all();
    world.device.settle();
    world.end(&[]);
}

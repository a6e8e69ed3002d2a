//! Parts of allocations that grow: where they are cut, what is mapped behind them, and what is counted.

use crate::device::{MAIN, MIB, SIDE};
use crate::world::{CAPACITY, OPTIONS, World};
use seamalloc::driver::Call;
use seamalloc::driver::sim::SimGpu;
use seamalloc::{Allocator, Config, Growing};
use std::sync::Arc;

/// An allocation of one part, made of chunks of 4 MiB at three places of home: one, two and two that are neighbours.
fn of_three_pieces() -> (World, u64) {
    let mut world = World::new(CAPACITY, OPTIONS);
    let blocks = [(); 8].map(|()| world.allocate(4 * MIB, MAIN).unwrap());
    [0, 2, 3, 5, 6].into_iter().for_each(|block: usize| world.free(blocks[block]));
    let cache = world.reserve(64 * MIB, MAIN).unwrap();
    world.grow(cache, 20 * MIB).unwrap();
    assert_eq!((world.used(), world.stats().allocation.all.current), ((32 * MIB, 0), 4), "one part of what was free");
    (world, cache)
}

/// At the end of a piece of home, and between the chunks of one.
#[test]
fn a_part_is_cut_at_the_end_of_any_chunk() {
    for kept in 1..5 {
        let (mut world, cache) = of_three_pieces();
        world.shrink(cache, 4 * MIB * kept).unwrap();
        assert_eq!((world.mapped(cache), world.stats().allocation.all.current), (4 * MIB * kept, 4));
        world.check_all();
        // What was cut off serves others, and the allocation as well.
        let other = world.allocate(20 * MIB - 4 * MIB * kept, MAIN).unwrap();
        assert_eq!(world.used(), (32 * MIB, 0), "{kept}");
        world.check_all();
        world.free(other);
        world.grow(cache, 20 * MIB).unwrap();
        assert_eq!((world.mapped(cache), world.used()), (20 * MIB, (32 * MIB, 0)), "{kept}");
        world.check_all();
        world.end_empty(&[]);
    }
}

#[test]
fn a_part_is_cut_again_and_again() {
    let (mut world, cache) = of_three_pieces();
    for kept in (0..5).rev() {
        world.shrink(cache, 4 * MIB * kept).unwrap();
        assert_eq!((world.mapped(cache), world.used()), (4 * MIB * kept, (32 * MIB, 0)));
        world.check_all();
    }
    world.end_empty(&[]);
}

/// Parts count as what they are: two that were one may be both oversize, one of them, or none.
#[test]
fn a_part_that_is_cut_counts_as_two() {
    for (whole, kept, allocated, freed) in [(40, 28, 1, 0), (40, 8, 1, 1), (64, 32, 2, 1), (40, 20, 1, 1)] {
        let allocator = Allocator::open("sim:h200", "chunk_size_mb:4,max_split_size_mb:24").unwrap();
        let mut cache = Growing::new(&allocator, 64 * MIB, MAIN).unwrap();
        cache.grow(whole * MIB).unwrap();
        cache.shrink(kept * MIB).unwrap();
        let stats = allocator.stats();
        let counted = (stats.oversize_allocations.current, stats.oversize_allocations.freed);
        assert_eq!(counted, (allocated - freed, freed), "{whole} to {kept}");
        assert_eq!((stats.allocation.all.current, stats.active.all.current), (1, 1));
        assert_eq!((stats.allocation.all.allocated, stats.allocation.all.freed), (2, 1));
        drop(cache);
        assert_eq!(allocator.stats().oversize_allocations.current, 0, "{whole} to {kept}");
        allocator.reports().check().unwrap();
    }
}

#[test]
fn of_what_is_still_mapped_as_much_is_taken_as_is_asked_for() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let cache = world.reserve(64 * MIB, MAIN).unwrap();
    assert_eq!(world.stats().views_built, 1);
    world.grow(cache, 40 * MIB).unwrap();
    world.shrink(cache, 4 * MIB).unwrap();
    for size in [8, 12, 13, 15, 16, 24, 25, 40] {
        world.grow(cache, size * MIB).unwrap();
        assert_eq!(world.mapped(cache), size.next_multiple_of(4) * MIB);
    }
    assert_eq!(world.stats().views_built, 1);
    world.check_all();
    world.end_empty(&[]);
}

/// The first chunk behind the part serves another request, so all that is mapped behind it goes, by one call.
#[test]
fn a_tail_goes_at_once() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let cache = world.reserve(64 * MIB, MAIN).unwrap();
    world.grow(cache, 40 * MIB).unwrap();
    world.shrink(cache, 4 * MIB).unwrap();
    world.allocate(4 * MIB, MAIN).unwrap();
    let before = world.device.calls();
    world.grow(cache, 8 * MIB).unwrap();
    assert_eq!(world.device.calls().since(&before).get(Call::Unmap).count, 1);
    assert_eq!((world.mapped(cache), world.used()), (8 * MIB, (40 * MIB, 0)));
    world.check_all();
    world.end_empty(&[]);
}

/// Memory of some chunks has gone back to the driver: what is left of the tail lies apart.
#[test]
fn of_a_tail_with_holes_each_run_goes() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let cache = world.reserve(64 * MIB, MAIN).unwrap();
    world.grow(cache, 40 * MIB).unwrap();
    world.shrink(cache, 4 * MIB).unwrap();
    let blocks = [(); 3].map(|()| world.allocate(4 * MIB, MAIN).unwrap());
    world.free(blocks[1]);
    world.allocator.empty_cache().unwrap();
    assert_eq!(world.used(), (12 * MIB, 0), "the cache has one chunk, and the blocks have two");
    let before = world.device.calls();
    world.grow(cache, 12 * MIB).unwrap();
    assert_eq!(world.device.calls().since(&before).get(Call::Unmap).count, 2);
    assert_eq!((world.mapped(cache), world.used()), (12 * MIB, (20 * MIB, 0)));
    world.check_all();
    world.end_empty(&[]);
}

/// Though the GPU has passed all of it, what is mapped stays where it is for the next one.
#[test]
fn what_is_mapped_stays_for_the_next_one() {
    let gpu = Arc::new(SimGpu::new("sim:h200".parse().unwrap()).unwrap());
    let config = Config::parse("chunk_size_mb:4,sharing:completed").unwrap();
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), config).unwrap();
    let cache = allocator.growing().reserve(64 * MIB, MAIN).unwrap();
    allocator.growing().grow(cache, 20 * MIB).unwrap();
    allocator.growing().shrink(cache, 0).unwrap();
    // Another stream gets what this one has passed.
    let other = allocator.allocate(4 * MIB, SIDE).unwrap();
    assert_eq!(allocator.reports().reserved(), 20 * MIB, "memory grew");
    allocator.free(cache).unwrap();
    allocator.free(other).unwrap();
    assert_eq!((allocator.stats().views, allocator.growing().reserve(64 * MIB, MAIN)), (1, Ok(cache)));
    let before = seamalloc::driver::Driver::call_stats(&*gpu);
    allocator.growing().grow(cache, 20 * MIB).unwrap();
    let made = seamalloc::driver::Driver::call_stats(&*gpu).since(&before);
    assert_eq!((made.get(Call::Map).count, allocator.reports().reserved()), (0, 20 * MIB));
    allocator.free(cache).unwrap();
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
}

/// Addresses of one that was freed make room, though nobody has looked since whether the GPU has passed it.
#[test]
fn addresses_that_the_gpu_has_passed_make_room_for_others() {
    let allocator = Allocator::open("sim:h200", "chunk_size_mb:4,max_view_address_space:600MiB").unwrap();
    let old = allocator.growing().reserve(512 * MIB, MAIN).unwrap();
    allocator.growing().grow(old, 8 * MIB).unwrap();
    allocator.free(old).unwrap();
    let new = allocator.growing().reserve(100 * MIB, MAIN).unwrap();
    let stats = allocator.stats();
    assert_eq!((stats.views, stats.views_dropped, stats.view_address_space_bytes), (1, 1, 100 * MIB));
    allocator.growing().grow(new, 8 * MIB).unwrap();
    allocator.reports().check().unwrap();
    allocator.free(new).unwrap();
}

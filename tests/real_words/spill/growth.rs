//! The calls about an allocation that grows, and about a block that shares a view with others.

use super::OF_SPILLING;
use crate::device::{Fault, MAIN, MIB, SIDE};
use crate::world::World;
use seamalloc::driver::Status;
use seamalloc::driver::host::Range;
use seamalloc::{Advice, Error};

/// An allocation of 24 MiB in three parts; 18 MiB are left.
fn filled() -> (World, u64) {
    let mut world = World::new(42 * MIB, "chunk_size_mb:8,spill:host=1GiB");
    let cache = world.reserve(64 * MIB, MAIN).unwrap();
    [8, 16, 24].into_iter().for_each(|mib| world.grow(cache, mib * MIB).unwrap());
    (world, cache)
}

#[test]
fn advice_holds_for_all_of_an_allocation_that_grows_and_for_what_it_gets() {
    let (mut world, cache) = filled();
    let block = world.allocate(16 * MIB, MAIN).unwrap();
    world.allocator.spill().advise(cache, Advice::Cold).unwrap();
    let new = world.allocate(24 * MIB, MAIN).unwrap();
    assert_eq!(world.spilled(), 24 * MIB);
    world.allocator.spill().advise(block, Advice::Hot).unwrap();
    assert_eq!(world.stats().spills.returned_chunks, 0, "the block is on the device, so the cache went");
    world.free(new);
    world.allocator.spill().advise(cache, Advice::Hot).unwrap();
    assert_eq!((world.spilled(), world.stats().spills.returned_chunks), (0, 3), "all of it comes back");
    world.check_all();
    // What it gets is as hot.
    world.free(block);
    world.grow(cache, 40 * MIB).unwrap();
    world.allocator.spill().advise(cache, Advice::Cold).unwrap();
    world.shrink(cache, 24 * MIB).unwrap();
    let other = world.allocate(16 * MIB, MAIN).unwrap();
    world.grow(cache, 32 * MIB).unwrap();
    assert_eq!(world.spilled(), 8 * MIB);
    world.allocator.spill().advise(other, Advice::Hot).unwrap();
    assert_eq!(world.spilled(), 8 * MIB, "a part of the cache went");
    world.check_all();
    world.end_empty(&[]);
}

#[test]
fn a_stream_that_is_named_is_a_use_of_all_of_an_allocation_that_grows() {
    let (mut world, cache) = filled();
    let pass_time = |world: &mut World, operations: u64| {
        for _ in 0..operations / 2 {
            let small = world.allocate(512, MAIN).unwrap();
            world.free(small);
        }
    };
    pass_time(&mut world, 200);
    let block = world.allocate(16 * MIB, MAIN).unwrap();
    pass_time(&mut world, 40);
    world.allocator.record_stream(cache, SIDE).unwrap();
    let new = world.allocate(16 * MIB, MAIN).unwrap();
    assert!(world.spilled() >= 14 * MIB, "{}", world.spilled());
    world.free(new);
    world.allocator.spill().advise(block, Advice::Hot).unwrap();
    assert_eq!((world.spilled(), world.stats().spills.returned_chunks > 0), (0, true), "the cache was used since");
    assert!(world.allocator.spill().advise(cache + 8 * MIB, Advice::Cold).is_err(), "a part is no allocation");
    world.check_all();
    world.end_empty(&[]);
}

/// Two blocks lie in one view: what is said of one is not said of the other.
#[test]
fn what_is_fixed_of_a_view_is_what_the_block_has() {
    let mut world = World::new(32 * MIB, "chunk_size_mb:4,spill:host=1GiB");
    let blocks = [(); 8].map(|()| world.allocate(4 * MIB, MAIN).unwrap());
    blocks.iter().step_by(2).for_each(|block| world.free(*block));
    let whole = world.allocate(16 * MIB, MAIN).unwrap();
    world.free(whole);
    let [fixed, cold] = [(); 2].map(|()| world.allocate(8 * MIB, MAIN).unwrap());
    assert_eq!(world.allocator.reports().fragmentation().views, 1);
    world.allocator.spill().advise(cold, Advice::Cold).unwrap();
    let new = world.allocate(8 * MIB, MAIN).unwrap();
    assert_eq!(world.spilled(), 8 * MIB);
    world.allocator.sharing().pin_physical(fixed).unwrap();
    world.check_all();
    world.free(new);
    assert_eq!(world.allocator.spill().restore(), Ok(8 * MIB));
    world.check_all();
    world.end_empty(&[]);
}

/// Memory that is mapped where an allocation grows needs no call. It is given only once all live memory is at its addresses.
#[test]
fn nothing_grows_while_live_memory_is_missing() {
    const BLOCK: u64 = 4 * MIB;
    for nth in 1.. {
        let mut world = World::new(12 * MIB, "chunk_size_mb:2,spill:host=1GiB");
        let pool = world.allocator.pools().create();
        let cache = world.reserve_in(pool, 16 * MIB, MAIN).unwrap();
        world.grow(cache, 2 * MIB).unwrap();
        world.shrink(cache, 0).unwrap();
        let blocks = [(); 2].map(|()| world.allocate(BLOCK, MAIN).unwrap());
        world.device.settle();
        world.device.fail(&OF_SPILLING, Fault { nth, count: u64::MAX, status: Status::UNKNOWN });
        world.allocator.allocate(6 * MIB, MAIN).expect_err("a call fails");
        let has_memory = |address: &u64| {
            let pieces = world.device.host.physical(Range { address: *address, size: BLOCK });
            pieces.iter().map(|piece| piece.size).sum::<u64>() == BLOCK
        };
        let is_missing = !blocks.iter().all(has_memory);
        if is_missing {
            let grown = world.allocator.growing().grow(cache, MIB);
            assert!(matches!(grown, Err(Error::Driver(_))), "{nth}: {grown:?}");
        }
        world.device.heal();
        world.grow(cache, 2 * MIB).unwrap();
        world.check_all();
        world.end(&[pool]);
        if is_missing {
            return;
        }
    }
}

//! Spilling where a bound is reached: the limit, the headroom, the budget, and the bound on mappings.

use super::frees::spilled;
use crate::device::{MAIN, MIB};
use crate::world::World;
use seamalloc::Advice;
use seamalloc::driver::{Driver, MemoryInfo, PlainMemory};

/// Memory that is spilled takes nothing of the device, however far a limit was lowered.
#[test]
fn a_limit_below_what_is_held_is_kept_by_spilling() {
    let (mut world, [old, ..]) = spilled();
    world.allocator.limits().set_bytes(Some(30 * MIB)).unwrap();
    assert_eq!(world.stats().reserved_bytes.all.current, 48 * MIB, "it is in use");
    world.device.settle();
    world.free(old);
    world.device.settle();
    let new = world.allocate(8 * MIB, MAIN).unwrap();
    assert!(world.stats().reserved_bytes.all.current <= 30 * MIB, "{:?}", world.stats().reserved_bytes);
    assert_eq!(
        world.spilled() + world.stats().reserved_bytes.all.current,
        56 * MIB,
        "of the freed block nothing is left"
    );
    world.check_all();
    world.free(new);
    assert!(world.allocator.spill().restore().unwrap() <= 8 * MIB);
    assert!(world.stats().reserved_bytes.all.current <= 30 * MIB, "the limit is in force");
    world.allocator.limits().set_bytes(None).unwrap();
    assert!(world.allocator.spill().restore().unwrap() > 0);
    world.check_all();
    world.end_empty(&[]);
}

/// Others have taken of the headroom: as much more is spilled.
#[test]
fn a_headroom_that_others_took_is_made_whole_by_spilling() {
    let mut world = World::new(64 * MIB, "chunk_size_mb:8,spill:host=1GiB,headroom:16MiB");
    let old = world.allocate(48 * MIB, MAIN).unwrap();
    let others = world.device.host.malloc(8 * MIB).unwrap();
    let new = world.allocator.allocate(8 * MIB, MAIN).unwrap();
    let MemoryInfo { free, .. } = world.device.host.memory_info().unwrap();
    assert!(free >= 16 * MIB && world.spilled() == 16 * MIB, "{free}, {}", world.spilled());
    world.check(old);
    world.allocator.free(new).unwrap();
    world.device.host.free(others).unwrap();
    world.end_empty(&[]);
}

/// The oldest chunk would use the budget up and gain too little; another one gains enough.
#[test]
fn a_budget_too_small_for_the_coldest_serves_a_request_by_others() {
    let mut world = World::new(16 * MIB, "chunk_size_mb:12,spill:host=8MiB");
    let cold = world.allocate(4 * MIB, MAIN).unwrap();
    // Half of the other chunk is free.
    let whole = world.allocate(12 * MIB, MAIN).unwrap();
    world.free(whole);
    world.allocate(6 * MIB, MAIN).unwrap();
    world.allocator.spill().advise(cold, Advice::Cold).unwrap();
    world.device.settle();
    let new = world.allocate(12 * MIB, MAIN).unwrap();
    assert_eq!(world.spilled(), 6 * MIB);
    world.check_all();
    world.free(new);
    world.end_empty(&[]);
}

/// An exchange puts as many mappings in the place of as many: the bound forbids none of them.
#[test]
fn at_the_bound_on_mappings_memory_is_spilled_and_comes_back() {
    let mut world = World::new(48 * MIB, "chunk_size_mb:8,spill:host=1GiB,max_view_mappings:4");
    let cache = world.reserve(64 * MIB, MAIN).unwrap();
    world.grow(cache, 32 * MIB).unwrap();
    let other = world.allocate(40 * MIB, MAIN).unwrap();
    assert_eq!(world.spilled(), 24 * MIB);
    world.check_all();
    world.free(other);
    assert_eq!(world.allocator.spill().restore(), Ok(24 * MIB));
    world.check_all();
    // And its memory goes.
    let other = world.allocate(40 * MIB, MAIN).unwrap();
    world.shrink(cache, 8 * MIB).unwrap();
    world.device.settle();
    world.allocator.lending().release_passed().unwrap();
    assert!(world.spilled() <= 8 * MIB, "{}", world.spilled());
    world.check_all();
    world.free(other);
    world.end_empty(&[]);
}

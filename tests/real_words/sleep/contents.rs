//! Blocks of a tag hold the same words after sleep, and their memory is counted where it is meanwhile.

use super::{backups, file, furnished};
use crate::device::{MAIN, MIB, SIDE};
use crate::length::rounds;
use crate::program::Operation::{Allocate, Free, Turn};
use crate::program::{Mix, Tally, run};
use crate::world::{CAPACITY, OPTIONS, World};
use seamalloc::Backup;

#[test]
fn blocks_and_views_hold_what_they_held_at_the_same_addresses() {
    for backup in [Backup::Host, Backup::File(file("contents"))] {
        let mut world = World::new(CAPACITY, OPTIONS);
        let tag = furnished(&mut world);
        let (held, views) = (world.device.used(), world.views());
        world.check_all();
        for _ in 0..3 {
            assert_eq!(world.allocator.tags().sleep(tag, &backup).unwrap(), held);
            assert_eq!((world.device.used(), world.views()), (0, views), "no memory is left, and all views are");
            world.check_books();
            assert_eq!(world.allocator.tags().wake(tag).unwrap(), held);
            assert_eq!(world.device.used(), held);
            world.check_all();
        }
        if let Backup::File(path) = &backup {
            assert!(!path.exists());
        }
        world.end(&[tag]);
    }
}

/// In one chunk lie live blocks side by side, and others apart from them.
#[test]
fn what_lies_apart_in_a_chunk_is_kept_apart() {
    for backup in [Backup::Host, Backup::Pinned] {
        let mut world = World::new(CAPACITY, "chunk_size_mb:16");
        let tag = world.allocator.tags().create().unwrap();
        let whole = world.allocate_in(tag, 16 * MIB, MAIN).unwrap();
        world.free(whole);
        let blocks = [(); 8].map(|()| world.allocate_in(tag, 2 * MIB, MAIN).unwrap());
        [1, 4, 6].into_iter().for_each(|block: usize| world.free(blocks[block]));
        assert_eq!((world.allocator.tags().sleep(tag, &backup), world.device.used()), (Ok(16 * MIB), 0));
        assert_eq!(world.allocator.tags().wake(tag), Ok(16 * MIB));
        world.check_all();
        world.end(&[tag]);
    }
}

#[test]
fn discarded_contents_leave_addresses_that_can_be_used() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let tag = furnished(&mut world);
    let held = world.device.used();
    assert_eq!(world.allocator.tags().sleep(tag, &Backup::Discard).unwrap(), held);
    assert_eq!(world.allocator.tags().wake(tag).unwrap(), held);
    world.check_books();
    let first = *world.live.keys().next().unwrap();
    world.free(first);
    let again = world.allocate_in(tag, 5 * MIB, MAIN).unwrap();
    world.check(again);
    world.end(&[tag]);
}

#[test]
fn one_tag_uses_the_memory_of_another_that_sleeps() {
    let mut world = World::new(64 * MIB, OPTIONS);
    let [weights, cache] = [(); 2].map(|()| world.allocator.tags().create().unwrap());
    for _ in 0..5 {
        world.allocate_in(weights, 10 * MIB, MAIN).unwrap();
    }
    assert!(world.allocate_in(cache, 40 * MIB, MAIN).unwrap_err().is_out_of_memory());
    world.check_all();
    let slept = world.allocator.tags().sleep(weights, &Backup::Host).unwrap();
    let in_cache = world.allocate_in(cache, 40 * MIB, MAIN).unwrap();
    let public = world.allocate(12 * MIB, SIDE).unwrap();
    world.check_all();
    assert_eq!(world.allocator.pools().stats(weights).unwrap().asleep_bytes, slept);
    assert_eq!(world.allocator.pools().stats(weights).unwrap().reserved_bytes, 0);
    let refused = world.allocator.tags().wake(weights).unwrap_err();
    assert!(refused.is_out_of_memory(), "{refused}");
    assert!(world.allocator.tags().is_asleep(weights));
    world.check_all();
    // What is free elsewhere goes back to make room.
    world.free(public);
    world.allocator.tags().sleep(cache, &Backup::Host).unwrap();
    assert!(world.device.used() > 0);
    assert_eq!(world.allocator.tags().wake(weights).unwrap(), slept);
    world.check_all();
    world.allocator.tags().sleep(weights, &Backup::Host).unwrap();
    world.allocator.tags().wake(cache).unwrap();
    world.check(in_cache);
    world.allocator.tags().wake(weights).unwrap_err();
    world.check_all();
    world.free(in_cache);
    world.allocator.pools().release(cache).unwrap();
    world.allocator.tags().wake(weights).unwrap();
    world.check_all();
    world.end(&[weights]);
}

#[test]
fn blocks_are_freed_while_they_sleep() {
    for backup in backups("freed") {
        let mut world = World::new(CAPACITY, OPTIONS);
        let tag = furnished(&mut world);
        let keeps = backup != Backup::Discard;
        let held = world.allocator.tags().sleep(tag, &backup).unwrap();
        let every_other: Vec<u64> = world.live.keys().copied().step_by(2).collect();
        for address in every_other {
            world.free(address);
            world.check_books();
        }
        assert_eq!(world.allocator.tags().wake(tag).unwrap(), held);
        if keeps {
            world.check_all();
        }
        let again = world.allocate_in(tag, 6 * MIB, MAIN).unwrap();
        world.check(again);
        world.check_books();
        world.end(&[tag]);
    }
}

const MIX: Mix = Mix {
    capacity: 96 * MIB,
    options: "strategy:stitch",
    operations: (400, 400),
    weights: &[(Turn, 25), (Allocate, 42), (Free, 33)],
    tags: 3,
    pools: 0,
    share: 4,
    size: |random| match random.below(3) {
        0 => 512 * (1 + random.below(200)),
        1 => 8 * (1 + random.below(600 << 10)),
        _ => MIB * (1 + random.below(14)),
    },
    reads: 16,
    spills_at_random: false,
};

#[test]
fn random_programs_lose_no_word() {
    for seed in 1..=rounds(4, 12) {
        let mut tally = Tally::default();
        let options = ["", "chunk_size_mb:4", "chunk_size_mb:2", "split:last_resort"][seed as usize % 4];
        run(&MIX, seed, options, false, &mut tally);
        assert!(tally.slept > 3 && tally.woken > 3, "{seed}: {tally:?}");
    }
}

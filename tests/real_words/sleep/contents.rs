//! What blocks hold after sleep, and where the memory is meanwhile.

use crate::random::Random;
use crate::real_words::{MAIN, MIB, SIDE};
use crate::world::{World, backups, file};
use seamalloc::{Backup, PoolId};

const OPTIONS: &str = "strategy:stitch,chunk_size_mb:4";

#[test]
fn blocks_and_views_hold_what_they_held_at_the_same_addresses() {
    for backup in [Backup::Host, Backup::File(file("contents"))] {
        let mut world = World::new(256 * MIB, OPTIONS);
        let tag = world.furnished();
        let (held, views) = (world.device.used(), world.views());
        world.check_all();
        for _ in 0..3 {
            assert_eq!(world.allocator.sleep(tag, &backup).unwrap(), held);
            assert_eq!((world.device.used(), world.views()), (0, views), "no memory is left, and all views are");
            world.check_books();
            assert_eq!(world.allocator.wake(tag).unwrap(), held);
            assert_eq!(world.device.used(), held);
            world.check_all();
        }
        if let Backup::File(path) = &backup {
            assert!(!path.exists());
        }
        world.end(&[tag]);
    }
}

#[test]
fn discarded_contents_leave_addresses_that_can_be_used() {
    let mut world = World::new(256 * MIB, OPTIONS);
    let tag = world.furnished();
    let held = world.device.used();
    assert_eq!(world.allocator.sleep(tag, &Backup::Discard).unwrap(), held);
    assert_eq!(world.allocator.wake(tag).unwrap(), held);
    world.check_books();
    let first = *world.live.keys().next().unwrap();
    world.free(first);
    let again = world.allocate(tag, 5 * MIB, MAIN).unwrap();
    world.check(again);
    world.end(&[tag]);
}

#[test]
fn one_tag_uses_the_memory_of_another_that_sleeps() {
    let mut world = World::new(64 * MIB, OPTIONS);
    let [weights, cache] = [(); 2].map(|()| world.allocator.create_tag().unwrap());
    for _ in 0..5 {
        world.allocate(weights, 10 * MIB, MAIN).unwrap();
    }
    assert!(world.allocate(cache, 40 * MIB, MAIN).unwrap_err().is_out_of_memory());
    world.check_all();
    let slept = world.allocator.sleep(weights, &Backup::Host).unwrap();
    let in_cache = world.allocate(cache, 40 * MIB, MAIN).unwrap();
    let public = world.allocate(PoolId::NONE, 12 * MIB, SIDE).unwrap();
    world.check_all();
    assert_eq!(world.allocator.pool_stats(weights).unwrap().asleep_bytes, slept);
    assert_eq!(world.allocator.pool_stats(weights).unwrap().reserved_bytes, 0);
    let refused = world.allocator.wake(weights).unwrap_err();
    assert!(refused.is_out_of_memory(), "{refused}");
    assert!(world.allocator.is_asleep(weights));
    world.check_all();
    // What is free elsewhere goes back to make room.
    world.free(public);
    world.allocator.sleep(cache, &Backup::Host).unwrap();
    assert!(world.device.used() > 0);
    assert_eq!(world.allocator.wake(weights).unwrap(), slept);
    world.check_all();
    world.allocator.sleep(weights, &Backup::Host).unwrap();
    world.allocator.wake(cache).unwrap();
    world.check(in_cache);
    world.allocator.wake(weights).unwrap_err();
    world.check_all();
    world.free(in_cache);
    world.allocator.release_pool(cache).unwrap();
    world.allocator.wake(weights).unwrap();
    world.check_all();
    world.end(&[weights]);
}

#[test]
fn blocks_are_freed_while_they_sleep() {
    for backup in backups("freed") {
        let mut world = World::new(256 * MIB, OPTIONS);
        let tag = world.furnished();
        let keeps = backup != Backup::Discard;
        let held = world.allocator.sleep(tag, &backup).unwrap();
        let every_other: Vec<u64> = world.live.keys().copied().step_by(2).collect();
        for address in every_other {
            world.free(address);
            world.check_books();
        }
        assert_eq!(world.allocator.wake(tag).unwrap(), held);
        if keeps {
            world.check_all();
        }
        let again = world.allocate(tag, 6 * MIB, MAIN).unwrap();
        world.check(again);
        world.check_books();
        world.end(&[tag]);
    }
}

#[test]
fn random_programs_lose_no_word() {
    for seed in 1..=12 {
        let mut random = Random(seed);
        let mut world = World::new(
            96 * MIB,
            ["strategy:stitch", OPTIONS, "chunk_size_mb:2", "split:last_resort"][seed as usize % 4],
        );
        let tags = [(); 3].map(|()| world.allocator.create_tag().unwrap());
        let (mut slept, mut woken, mut refused) = (0, 0, 0);
        for step in 0..400 {
            let tag = tags[random.below(3) as usize];
            match random.below(12) {
                0 => {
                    let name = format!("random-{seed}");
                    let backup = if random.below(2) == 0 { Backup::Host } else { Backup::File(file(&name)) };
                    slept += u64::from(world.allocator.sleep(tag, &backup).unwrap() > 0);
                }
                1 | 2 => match world.allocator.wake(tag) {
                    Ok(bytes) => woken += u64::from(bytes > 0),
                    Err(error) => {
                        assert!(error.is_out_of_memory(), "{error}");
                        refused += 1;
                    }
                },
                3..=7 => {
                    let tag = if random.below(4) == 0 { PoolId::NONE } else { tag };
                    let size = match random.below(3) {
                        0 => 512 * (1 + random.below(200)),
                        1 => 8 * (1 + random.below(600 << 10)),
                        _ => MIB * (1 + random.below(14)),
                    };
                    let asleep = world.allocator.is_asleep(tag);
                    let stream = if random.below(4) == 0 { SIDE } else { MAIN };
                    let answer = world.allocate(tag, size, stream);
                    assert!(!asleep || answer.is_err());
                }
                _ => {
                    let at = random.below(1 + world.live.len() as u64) as usize;
                    if let Some(address) = world.live.keys().copied().nth(at) {
                        if !world.allocator.is_asleep(world.live[&address].tag) {
                            world.check(address);
                        }
                        world.free(address);
                    }
                }
            }
            if step % 16 == 0 {
                world.check_all();
            } else {
                world.check_books();
            }
        }
        assert!(slept > 3 && woken > 3, "{seed}: slept {slept}, woke {woken}, refused {refused}");
        world.check_all();
        world.end(&tags);
    }
}

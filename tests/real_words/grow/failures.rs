//! Each call of the driver fails in turn, once, twice or from then on, while an allocation is reserved, grows, shrinks or goes.

use crate::device::{Calls, Fault, MAIN, MIB, SIDE};
use crate::failures::fail_each;
use crate::world::World;
use seamalloc::driver::{Call, Status, StreamId};

/// Bytes: what is checked so often is small.
const HALF: u64 = MIB / 2;

/// Chunks of two sizes are free, and the cache has a part of 6 MiB and a tail that is mapped and was given back.
fn furnished() -> (World, u64) {
    let mut world = World::new(128 * HALF, "strategy:stitch,chunk_size_mb:2,sharing:wait");
    let blocks: Vec<u64> = [8, 4, 4, 4, 12, 4].map(|halves| world.allocate(halves * HALF, MAIN).unwrap()).to_vec();
    let cache = world.reserve(100 * HALF, SIDE).unwrap();
    world.grow(cache, 30 * HALF).unwrap();
    // Which calls follow must not depend on how far the streams have come.
    world.device.settle();
    world.shrink(cache, 11 * HALF).unwrap();
    // A part of the tail serves another request, so that it is unmapped.
    world.allocate(6 * HALF, SIDE).unwrap();
    [0, 2, 4].into_iter().for_each(|at| world.free(blocks[at]));
    world.device.settle();
    (world, cache)
}

/// The steps, by their names.
const STEPS: [&str; 7] = ["reserve", "grow", "grow much", "shrink", "split", "shrink used elsewhere", "free"];

fn step(world: &mut World, cache: u64, name: &str) -> Result<(), seamalloc::Error> {
    match name {
        "reserve" => world.reserve(300 * HALF, MAIN).map(drop),
        "grow" => world.grow(cache, 20 * HALF),
        "grow much" => world.grow(cache, 60 * HALF),
        "shrink" => world.shrink(cache, 0),
        "split" => world.shrink(cache, 5 * HALF),
        "shrink used elsewhere" => {
            world.allocator.record_stream(cache, StreamId(9)).unwrap();
            world.shrink(cache, 8)
        }
        _ => world.free_by(cache, |allocator| allocator.free_on(cache, StreamId(9))),
    }
}

/// Lets calls fail in one step.
fn attempt(name: &str, fault: Fault) -> Calls {
    let (mut world, cache) = furnished();
    let (held, mapped, reserved) =
        (world.device.used(), world.mapped(cache), world.allocator.reports().fragmentation());
    world.device.fail(&Call::ALL, fault);
    let answer = step(&mut world, cache, name);
    let calls = world.device.heal();
    let failed = &calls.failed;
    // Nothing is undone yet that could not be: it is counted.
    world.allocator.reports().check().unwrap();
    assert_eq!(world.stats().reserved_bytes.all.current, world.device.used(), "{name}: {failed:?}");
    if failed.is_empty() {
        answer.unwrap();
        world.check_all();
        world.end(&[]);
        return calls;
    }
    if answer.is_err() && name.starts_with("grow") {
        assert_eq!(world.mapped(cache), mapped, "{name}: {failed:?}");
    }
    if answer.is_err() && world.live.contains_key(&cache) {
        // What was given back before the failure is given back.
        world.take_len(cache);
    }
    // The next request undoes what could not be undone.
    let small = world.allocate(512, MAIN).unwrap();
    world.free(small);
    world.check_all();
    if answer.is_err() && name == "grow" {
        let used = world.device.used();
        assert!(used <= held + 2 * MIB, "{name}: {failed:?}: {used} bytes are held of {held}");
        assert!(world.allocator.reports().fragmentation().views <= reserved.views);
    }
    // And the way goes on.
    if world.live.contains_key(&cache) {
        world.grow(cache, 50 * HALF).unwrap();
        world.check_all();
        world.shrink(cache, 3 * HALF).unwrap();
    }
    world.check_all();
    world.end(&[]);
    calls
}

#[test]
fn every_call_that_fails_leaves_contents_and_accounts_as_they_were() {
    for name in STEPS {
        for (count, status) in [
            (1, Status::UNKNOWN),
            (u64::MAX, Status::UNKNOWN),
            (1, Status::OUT_OF_MEMORY),
            (u64::MAX, Status::OUT_OF_MEMORY),
        ] {
            let failed = fail_each(count, status, |fault| attempt(name, fault));
            let expected: &[Call] = match name {
                "reserve" => &[Call::Reserve],
                "grow" => &[Call::Unmap, Call::Map, Call::SetAccess],
                "grow much" => &[Call::Unmap, Call::Map, Call::SetAccess, Call::Create],
                _ => &[],
            };
            assert!(expected.iter().all(|call| failed.contains(call)), "{name}: {failed:?}");
        }
    }
}

#[test]
fn a_device_without_memory_refuses_and_all_stays() {
    let mut world = World::new(64 * MIB, "strategy:stitch,chunk_size_mb:4");
    let cache = world.reserve(200 * MIB, MAIN).unwrap();
    world.grow(cache, 40 * MIB).unwrap();
    for size in [65 * MIB, 100 * MIB, 200 * MIB] {
        let error = world.grow(cache, size).unwrap_err();
        assert!(error.is_out_of_memory(), "{error}");
        assert_eq!((world.mapped(cache), world.device.used()), (40 * MIB, 40 * MIB));
        world.check_all();
    }
    world.grow(cache, 64 * MIB).unwrap();
    assert_eq!(world.allocator.stats().num_ooms, 3);
    world.end(&[]);
}

/// Calls that a failure leaves to undo are undone before the next growth, which takes nothing that is missing elsewhere.
#[test]
fn a_growth_undoes_what_could_not_be_undone() {
    let left = std::cell::Cell::new(0);
    for name in ["grow", "grow much"] {
        fail_each(u64::MAX, Status::UNKNOWN, |fault| {
            let (mut world, cache) = furnished();
            world.device.fail(&Call::ALL, fault);
            let answer = step(&mut world, cache, name);
            let calls = world.device.heal();
            left.set(left.get() + u64::from(answer.is_err()));
            if answer.is_err() {
                world.grow(cache, 50 * HALF).unwrap();
            }
            world.check_all();
            world.end(&[]);
            calls
        });
    }
    assert!(left.get() > 4, "only {left:?} steps failed");
}

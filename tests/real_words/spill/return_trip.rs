//! A spilled block comes back, or its memory goes.

use super::small_step;
use crate::device::{Fault, MAIN, MIB, SIDE};
use crate::world::World;
use seamalloc::driver::{Call, CaptureMode, Status};
use seamalloc::{Advice, Stat};

/// Three blocks fill a device; a fourth spills the oldest. Returns these, the new one last.
fn spilled(options: &str) -> (World, Vec<u64>) {
    let mut world = World::new(48 * MIB, &format!("chunk_size_mb:8,spill:host=1GiB,{options}"));
    let mut blocks: Vec<u64> = (0..3).map(|_| world.allocate(16 * MIB, MAIN).unwrap()).collect();
    world.allocator.spill().advise(blocks[0], Advice::Cold).unwrap();
    blocks.push(world.allocate(16 * MIB, MAIN).unwrap());
    assert_eq!((world.spilled(), world.stats().spills.chunks), (16 * MIB, 2));
    (world, blocks)
}

#[test]
fn what_is_spilled_comes_back_when_the_program_asks() {
    let (mut world, blocks) = spilled("");
    assert_eq!(world.allocator.spill().restore(), Ok(0), "there is no room");
    assert_eq!(world.spilled(), 16 * MIB);
    world.free(blocks[3]);
    assert_eq!(world.spilled(), 16 * MIB, "a free alone moves nothing");
    assert_eq!(world.allocator.spill().restore(), Ok(16 * MIB));
    let stats = world.stats();
    let Stat { current, peak, allocated, freed, .. } = stats.spilled_bytes;
    assert_eq!((current, peak, allocated, freed), (0, 16 * MIB, 16 * MIB, 16 * MIB));
    // Three blocks, the fourth, and what came back.
    assert_eq!(stats.reserved_bytes.all.allocated, 80 * MIB);
    assert_eq!((stats.spills.returned_chunks, stats.spills.returned_bytes), (2, 16 * MIB));
    assert_eq!(stats.reserved_bytes.all.current, 48 * MIB);
    world.check_all();
    assert_eq!(world.allocator.spill().restore(), Ok(0));
    world.end_empty(&[]);
}

#[test]
fn what_the_program_calls_hot_comes_back_at_once_if_there_is_room() {
    let (mut world, blocks) = spilled("");
    world.allocator.spill().advise(blocks[0], Advice::Hot).unwrap();
    assert_eq!(world.spilled(), 16 * MIB, "there is none");
    world.free(blocks[3]);
    world.allocator.spill().advise(blocks[1], Advice::Hot).unwrap();
    assert_eq!(world.spilled(), 16 * MIB, "that one is on the device");
    world.allocator.spill().advise(blocks[0], Advice::Hot).unwrap();
    assert_eq!(world.spilled(), 0);
    world.check_all();
    world.end_empty(&[]);
}

/// Host memory of a freed block goes back, once its stream has passed, and serves nobody as if it were the device's.
#[test]
fn the_memory_of_a_freed_block_goes_back_to_the_machine() {
    for options in ["", "sharing:never", "sharing:wait"] {
        let (mut world, blocks) = spilled(options);
        // Work that uses it is still running: it holds until the device is waited for.
        let hold = world.device.host.hold(MAIN).unwrap();
        world.free(blocks[0]);
        assert_eq!(world.spilled(), 16 * MIB, "{options}: it may still be used");
        world.device.host.finish_hold(hold);
        world.device.settle();
        // A miss looks which blocks are done with.
        let device = world.stats().reserved_bytes.all.current;
        let new = world.allocate(17 * MIB, SIDE);
        assert!(new.is_ok() && world.stats().reserved_bytes.all.current <= device, "{options}");
        world.allocator.empty_cache().unwrap();
        world.check_all();
        world.allocator.spill().restore().unwrap();
        world.free(new.unwrap());
        world.free(blocks[3]);
        world.allocator.spill().restore().unwrap();
        assert_eq!(world.spilled(), 0, "{options}");
        world.check_all();
        world.end_empty(&[]);
    }
}

/// The free of a spilled block does not wait for the device: an event tells.
#[test]
fn a_free_of_what_is_spilled_waits_for_nothing() {
    let (mut world, blocks) = spilled("");
    let waits = |world: &World| {
        [Call::Synchronize, Call::EventSynchronize, Call::Unmap].map(|call| world.device.calls().get(call).count)
    };
    world.device.settle();
    let before = waits(&world);
    world.free(blocks[0]);
    assert_eq!(waits(&world), before);
    let stats = world.stats();
    assert_eq!((stats.allocation.all.current, stats.active.all.current), (3, 4), "it waits for its own stream");
    // The next miss finds it done, and nothing else is spilled for a request that has room.
    world.free(blocks[1]);
    let new = world.allocate(16 * MIB, SIDE).unwrap();
    assert_eq!((world.spilled(), world.stats().spills.chunks), (0, 2));
    assert_eq!((world.used(), world.kept()), ((48 * MIB, 16 * MIB), 16 * MIB), "what it lay in is kept");
    world.check_all();
    world.free(new);
    world.end_empty(&[]);
}

/// A block that ends inside of a chunk leaves at most the granules that it shares with others.
#[test]
fn only_granules_that_blocks_share_stay() {
    let mut world = World::new(48 * MIB, "chunk_size_mb:16,spill:host=1GiB");
    let blocks: Vec<u64> = (0..4).map(|_| world.allocate(11 * MIB, MAIN).unwrap()).collect();
    let new = world.allocate(40 * MIB, MAIN).unwrap();
    let before = world.spilled();
    assert!(before >= 36 * MIB, "{before}");
    world.check_all();
    world.free(blocks[1]);
    world.device.settle();
    world.allocator.empty_cache().unwrap();
    world.check_all();
    let gone = before - world.spilled();
    assert!((8 * MIB..=12 * MIB).contains(&gone), "{gone} of 11 MiB went back");
    world.free(new);
    world.end_empty(&[]);
}

/// Memory comes back by itself once the program has allocated much without a need to spill, and not before; where it is spilled
/// again soon, the next time is twice as far off.
#[test]
fn memory_comes_back_by_itself_and_does_not_go_to_and_fro() {
    let (mut world, blocks) = spilled("");
    // Steps that need little: the free memory of a step falls to a low-water mark in each.
    let steps = |world: &World, most: u64| {
        let before = world.stats().spills;
        for step in 1..=most {
            small_step(world);
            if world.stats().spills.returned_chunks > before.returned_chunks {
                return Some(step);
            }
        }
        None
    };
    world.free(blocks[3]);
    assert_eq!(steps(&world, 1000), None, "what is live would fill the device");
    world.free(blocks[2]);
    let first = steps(&world, 1000).expect("it comes back by itself");
    assert_eq!(world.spilled(), 0);
    assert!(first < 10, "{first}: it was quiet for long");
    world.check_all();
    world.allocator.spill().advise(blocks[0], Advice::Cold).unwrap();
    let mut apart = Vec::new();
    for _ in 0..3 {
        let again = world.allocate(32 * MIB, MAIN).unwrap();
        assert_eq!(world.spilled(), 16 * MIB);
        world.free(again);
        apart.push(steps(&world, 10_000).expect("it comes back again"));
        assert_eq!(world.spilled(), 0);
    }
    println!("{apart:?} steps");
    assert!(apart[0] > 40 && apart.windows(2).all(|two| two[1] > 3 * two[0] / 2), "{apart:?} steps");
    world.check_all();
    world.end_empty(&[]);
}

/// While the device is as full as before, nothing comes back, however much is allocated.
#[test]
fn nothing_comes_back_while_there_is_no_room() {
    let (mut world, blocks) = spilled("");
    world.free(blocks[3]);
    let kept = world.allocate(14 * MIB, MAIN).unwrap();
    for _ in 0..2_000 {
        let address = world.allocate(MIB + 512, SIDE).unwrap();
        world.free(address);
    }
    assert_eq!(world.stats().spills.returned_chunks, 0);
    world.free(kept);
    world.check_all();
    world.end_empty(&[]);
}

/// A wait for the device would end a capture, of which nobody told the allocator.
#[test]
fn memory_does_not_come_back_by_itself_while_a_stream_is_captured_untold() {
    let (mut world, blocks) = spilled("sharing:never");
    let stream = world.device.host.create_stream();
    world.free(blocks[3]);
    world.free(blocks[2]);
    // The stream is known from here on.
    let small = world.allocate(512, stream).unwrap();
    small_step(&world);
    world.device.settle();
    world.device.host.begin_capture(stream, CaptureMode::Global).unwrap();
    (0..200).for_each(|_| small_step(&world));
    assert_eq!(world.stats().spills.returned_chunks, 0);
    world.device.host.end_capture(stream).expect("nothing has ended the capture");
    (0..200).for_each(|_| small_step(&world));
    assert!(world.stats().spills.returned_chunks > 0);
    world.free(small);
    world.check_all();
    world.end_empty(&[]);
}

/// Three of four blocks are on the device, which has as much free as a step needs. All together they leave a sixteenth of it.
fn nearly_full(last: u64) -> World {
    let mut world = World::new(64 * MIB, "chunk_size_mb:2,spill:host=1GiB");
    let blocks = [16, 16, 16].map(|size| world.allocate(size * MIB, MAIN).unwrap());
    world.allocate(last, MAIN).unwrap();
    world.allocator.spill().advise(blocks[0], Advice::Cold).unwrap();
    let large = world.allocate(20 * MIB, MAIN).unwrap();
    world.free(large);
    assert!(world.spilled() >= 15 * MIB, "{}", world.spilled());
    world
}

/// Memory comes back where what is live leaves a sixteenth of the device, to the byte.
#[test]
fn memory_comes_back_where_a_sixteenth_stays_free() {
    for (last, comes) in [(12 * MIB, true), (12 * MIB + 512, false)] {
        let world = nearly_full(last);
        for _ in 0..100 {
            let block = world.allocator.allocate(18 * MIB, MAIN).unwrap();
            world.allocator.free(block).unwrap();
        }
        assert_eq!(world.stats().spills.returned_chunks > 0, comes, "{last}");
        world.check_all();
        world.end_empty(&[]);
    }
}

/// A route may be for a capture that is about to begin.
#[test]
fn memory_does_not_come_back_by_itself_while_requests_are_routed_for_a_capture() {
    let (mut world, blocks) = spilled("");
    world.free(blocks[3]);
    world.free(blocks[2]);
    let pool = world.allocator.pools().create();
    world.allocator.pools().begin(pool, seamalloc::Route::stream(SIDE).capturing()).unwrap();
    (0..100).for_each(|_| small_step(&world));
    assert_eq!(world.stats().spills.returned_chunks, 0);
    world.allocator.pools().end(pool).unwrap();
    (0..100).for_each(|_| small_step(&world));
    assert!(world.stats().spills.returned_chunks > 0);
    world.allocator.pools().release(pool).unwrap();
    world.check_all();
    world.end_empty(&[]);
}

/// Whether a stream is captured is asked of streams that the allocator may name. One that is gone is captured by nobody.
#[test]
fn streams_are_asked_whether_they_are_captured() {
    let ask = |status: Option<Status>, prepare: &dyn Fn(&mut World)| {
        let (mut world, blocks) = spilled("sharing:never");
        world.free(blocks[3]);
        world.free(blocks[2]);
        prepare(&mut world);
        world.device.settle();
        let before = world.device.calls().get(Call::IsCapturing).count;
        if let Some(status) = status {
            world.device.fail(&[Call::IsCapturing], Fault { nth: 1, count: u64::MAX, status });
        }
        (0..60).for_each(|_| small_step(&world));
        let asked =
            world.device.heal().counted.len() as u64 + world.device.calls().get(Call::IsCapturing).count - before;
        let returned = world.stats().spills.returned_chunks > 0;
        world.check_all();
        world.end_empty(&[]);
        (asked > 0, returned)
    };
    let known = |world: &mut World| assert!(world.allocate(512, SIDE).is_ok());
    assert_eq!(ask(None, &|_| {}), (false, true));
    assert_eq!(ask(None, &known), (true, true));
    let borrowed = |world: &mut World| world.allocator.streams().mark_external(SIDE).unwrap();
    assert_eq!(ask(None, &borrowed), (false, true));
    let forgotten = |world: &mut World| {
        world.allocate(512, SIDE).unwrap();
        world.allocator.streams().forget(SIDE).unwrap();
    };
    assert_eq!(ask(None, &forgotten), (false, true));
    for (status, returned) in [(Status::INVALID_HANDLE, true), (Status::UNKNOWN, false)] {
        assert_eq!(ask(Some(status), &known), (true, returned), "{status}");
    }
}

/// While something is spilled, a free of what is on the device waits for nothing.
#[test]
fn a_free_of_what_is_on_the_device_is_free_at_once() {
    let (mut world, blocks) = spilled("");
    let pool = world.allocator.pools().create();
    world.free(blocks[3]);
    assert_eq!(world.allocator.reports().fragmentation().pending, 0);
    let private = world.allocate_in(pool, 512, MAIN).unwrap();
    world.free(private);
    assert_eq!((world.allocator.reports().fragmentation().pending, world.spilled()), (0, 16 * MIB));
    // A stream that was named is erased again, and one under which it is freed is no user.
    world.allocator.record_stream(blocks[2], SIDE).unwrap();
    world.allocator.streams().unrecord(blocks[2], SIDE).unwrap();
    world.free_by(blocks[2], |allocator| allocator.free(blocks[2])).unwrap();
    world.free_by(blocks[1], |allocator| allocator.free_with_current_stream(blocks[1], SIDE)).unwrap();
    assert_eq!((world.allocator.reports().fragmentation().pending, world.spilled()), (0, 16 * MIB));
    world.allocator.pools().release(pool).unwrap();
    world.check_all();
    world.end_empty(&[]);
}

/// A free that fails leaves nothing behind: once the memory is back on the device, a free waits for nothing.
#[test]
fn a_free_that_fails_forgets_that_its_stream_was_to_be_waited_for() {
    let (mut world, blocks) = spilled("");
    world.device.fail(&[Call::EventRecord], Fault { nth: 1, count: u64::MAX, status: Status::UNKNOWN });
    let failed = world.allocator.free(blocks[0]);
    assert!(matches!(failed, Err(seamalloc::Error::Driver(_))), "{failed:?}");
    world.device.heal();
    world.check_all();
    world.free(blocks[3]);
    assert_eq!(world.allocator.spill().restore(), Ok(16 * MIB));
    world.free(blocks[0]);
    assert_eq!(world.allocator.reports().fragmentation().pending, 0);
    world.check_all();
    world.end_empty(&[]);
}

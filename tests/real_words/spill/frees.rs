//! The memory of a spilled block goes once every stream has passed it, however the block was freed, and serves nobody before.

use crate::device::{MAIN, MIB, SIDE};
use crate::world::World;
use seamalloc::driver::host::{HostWork, Range};
use seamalloc::driver::sim::SimGpu;
use seamalloc::driver::{CaptureMode, StreamId};
use seamalloc::{Allocator, Config, Route};
use std::sync::Arc;

/// Three blocks fill a device, and the first is spilled for a fourth. Returns these.
pub(crate) fn spilled() -> (World, [u64; 4]) {
    // There is room for a slab besides.
    let mut world = World::new(50 * MIB, "chunk_size_mb:8,spill:host=1GiB");
    let [a, b, c] = [(); 3].map(|()| world.allocate(16 * MIB, MAIN).unwrap());
    world.allocator.spill().advise(a, seamalloc::Advice::Cold).unwrap();
    let new = world.allocate(16 * MIB, MAIN).unwrap();
    assert_eq!(world.spilled(), 16 * MIB);
    world.device.settle();
    (world, [a, b, c, new])
}

/// Gives a stream work that uses a block once the stream is let go.
fn use_later(world: &World, stream: StreamId, address: u64) {
    world.device.host.hold(stream).unwrap();
    let range = Range { address, size: 16 * MIB };
    world.device.host.launch(stream, HostWork::Use { range }).unwrap();
}

/// A request that makes the allocator look which frees are complete.
fn look(world: &mut World) {
    let small = world.allocate(512, MAIN).unwrap();
    world.free(small);
    let pool = world.allocator.pools().create();
    world.allocator.pools().allocate(pool, 0, MAIN).unwrap();
    world.allocator.pools().release(pool).unwrap();
    world.allocator.lending().release_passed().unwrap();
}

#[test]
fn memory_freed_under_another_stream_stays_until_that_stream_has_passed() {
    let (mut world, [old, ..]) = spilled();
    use_later(&world, SIDE, old);
    world.live.remove(&old);
    world.allocator.free_with_current_stream(old, SIDE).unwrap();
    look(&mut world);
    assert_eq!(world.spilled(), 16 * MIB, "the other stream uses it");
    assert!(world.device.host.finish(SIDE));
    world.device.settle();
    look(&mut world);
    assert_eq!((world.spilled(), world.device.host.faults().len()), (0, 0));
    world.check_all();
    world.end_empty(&[]);
}

#[test]
fn a_stream_that_is_named_and_erased_leaves_a_spilled_block_as_it_was() {
    let (mut world, [old, ..]) = spilled();
    world.allocator.record_stream(old, SIDE).unwrap();
    world.allocator.streams().unrecord(old, SIDE).unwrap();
    world.free(old);
    assert_eq!(
        world.allocator.reports().fragmentation().pending,
        16 * MIB,
        "it waits for its own stream, and serves nobody"
    );
    world.device.settle();
    look(&mut world);
    assert_eq!(world.spilled(), 0);
    world.check_all();
    world.end_empty(&[]);
}

/// Beside memory that is spilled, what lies on the device is free at once.
#[test]
fn a_neighbour_of_what_is_spilled_waits_for_nothing() {
    for cold in 0..3 {
        let mut world = World::new(50 * MIB, "chunk_size_mb:8,spill:host=1GiB");
        let mut blocks = [(); 3].map(|()| world.allocate(16 * MIB, MAIN).unwrap()).to_vec();
        world.allocator.spill().advise(blocks[cold], seamalloc::Advice::Cold).unwrap();
        blocks.push(world.allocate(16 * MIB, MAIN).unwrap());
        assert_eq!(world.spilled(), 16 * MIB);
        let spilled = blocks.remove(cold);
        for block in blocks {
            world.free(block);
            assert_eq!(world.allocator.reports().fragmentation().pending, 0, "{cold} is spilled");
        }
        world.free(spilled);
        assert_eq!(world.allocator.reports().fragmentation().pending, 16 * MIB);
        world.end_empty(&[]);
    }
}

/// The block waits for a stream that was named, and not for its own, which works on.
#[test]
fn a_neighbour_of_what_is_spilled_waits_for_the_named_stream_alone() {
    let gpu = Arc::new(SimGpu::new("sim:h200,capacity=50MiB".parse().unwrap()).unwrap());
    let config = Config::parse("chunk_size_mb:8,spill:host=1GiB").unwrap();
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), config).unwrap();
    let blocks = [(); 3].map(|()| allocator.allocate(16 * MIB, MAIN).unwrap());
    allocator.spill().advise(blocks[1], seamalloc::Advice::Cold).unwrap();
    let new = allocator.allocate(16 * MIB, MAIN).unwrap();
    assert_eq!(allocator.stats().spilled_bytes.current, 16 * MIB);
    gpu.launch(MAIN, &[], 1 << 30).unwrap();
    for block in [blocks[0], blocks[2], new] {
        allocator.record_stream(block, SIDE).unwrap();
        allocator.free(block).unwrap();
    }
    // A request looks which frees are complete.
    let small = allocator.allocate(512, SIDE).unwrap();
    assert_eq!(allocator.reports().fragmentation().pending, 0);
    [small, blocks[1]].into_iter().for_each(|block| allocator.free(block).unwrap());
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
}

/// No request comes that would look which frees are complete.
#[test]
fn what_an_idle_program_freed_goes_back_to_the_machine_too() {
    for lends in [false, true] {
        let (mut world, [old, ..]) = spilled();
        let hold = world.device.host.hold(MAIN).unwrap();
        world.free(old);
        world.device.host.finish_hold(hold);
        world.device.settle();
        let given =
            if lends { world.allocator.lending().lend(MIB) } else { world.allocator.lending().release_passed() };
        assert_eq!((given, world.spilled()), (Ok(0), 0), "{lends}");
        world.check_all();
        world.end_empty(&[]);
    }
}

#[test]
fn what_waits_for_a_stream_that_ends_goes_with_it() {
    let mut world = World::new(48 * MIB, "chunk_size_mb:8,spill:host=1GiB");
    let stream = world.device.host.create_stream();
    let old = world.allocate(40 * MIB, stream).unwrap();
    let new = world.allocate(16 * MIB, MAIN).unwrap();
    assert!(world.spilled() > 0);
    let hold = world.device.host.hold(stream).unwrap();
    world.free(old);
    world.device.host.finish_hold(hold);
    world.allocator.streams().forget(stream).unwrap();
    assert_eq!(world.spilled(), 0);
    world.free(new);
    world.end_empty(&[]);
}

/// During a capture nothing can be asked or unmapped; the memory waits for its end instead of serving others.
#[test]
fn what_is_freed_during_a_capture_serves_nobody_and_goes_after_it() {
    let (mut world, [old, ..]) = spilled();
    let stream = StreamId(9);
    let pool = world.allocator.pools().create();
    world.allocator.pools().begin(pool, Route::stream(stream).capturing()).unwrap();
    world.device.host.begin_capture(stream, CaptureMode::Global).unwrap();
    world.free(old);
    assert!(world.allocator.allocate(16 * MIB, MAIN).unwrap_err().is_out_of_memory(), "the request got host memory");
    world.device.host.end_capture(stream).unwrap();
    world.allocator.pools().end(pool).unwrap();
    world.allocator.pools().release(pool).unwrap();
    look(&mut world);
    world.device.settle();
    look(&mut world);
    assert_eq!(world.spilled(), 0);
    world.check_all();
    world.end_empty(&[]);
}

/// The free memory is counted, though much of what is live is not on the device.
#[test]
fn what_is_spilled_or_asleep_is_no_part_of_what_is_held() {
    let (mut world, [.., new]) = spilled();
    world.free(new);
    let spare = world.allocator.lending().lendable();
    assert_eq!((spare.held, spare.live, spare.free), (48 * MIB, 32 * MIB, 16 * MIB));
    let mut idle = seamalloc::IdleRelease::new(std::time::Duration::ZERO);
    let ticks = [0, 100, 200].map(|s| idle.tick(&world.allocator, std::time::Duration::from_secs(s)).unwrap());
    assert_eq!(ticks.iter().sum::<u64>(), 16 * MIB, "{ticks:?}");
    world.check_all();
    world.end_empty(&[]);
}

/// Half a MiB of a granule is the end of one block, and the rest of the granule is free or another block's.
const ODD: u64 = 5 * MIB / 2;
const REST: u64 = 3 * MIB / 2;

/// A block that ends inside of a granule, and is spilled with it for another one. `beside` is a block of that stream in the rest of
/// the granule. Returns the block, and the one beside.
fn shared_granule(beside: Option<StreamId>) -> (World, u64, Option<u64>) {
    let mut world = World::new(6 * MIB, "chunk_size_mb:8,spill:host=1GiB,sharing:completed");
    world.allocate(512, MAIN).unwrap();
    let odd = world.allocate(ODD, MAIN).unwrap();
    // The device has no more: another stream gets what that one has passed.
    let rest = beside.map(|stream| world.allocate(REST, stream).unwrap());
    assert!(rest.is_none_or(|rest| rest == odd + ODD), "the block lies elsewhere");
    world.allocate(4 * MIB, MAIN).unwrap();
    assert_eq!(world.spilled(), 4 * MIB, "the granule that is shared is spilled with the other");
    world.device.settle();
    (world, odd, rest)
}

/// Only one of two blocks in a granule has passed: a kernel uses the other one, which was handed out after the spill, and is free.
#[test]
fn a_granule_of_two_blocks_stays_until_both_have_passed() {
    let (mut world, odd, _) = shared_granule(None);
    let rest = world.allocate(REST, MAIN).unwrap();
    assert_eq!(rest, odd + ODD, "the block lies elsewhere");
    world.device.settle();
    world.free(odd);
    let hold = world.device.host.hold(MAIN).unwrap();
    world.use_on(rest, MAIN);
    world.free(rest);
    look(&mut world);
    assert_eq!(world.device.host.faults(), [], "memory was unmapped under a kernel");
    assert_eq!(world.spilled(), 2 * MIB, "the granule is in use, the other is not");
    world.device.host.finish_hold(hold);
    for _ in 0..3 {
        world.device.settle();
        look(&mut world);
    }
    assert_eq!((world.spilled(), world.device.host.faults().len()), (0, 0));
    world.check_all();
    world.end_empty(&[]);
}

/// Two streams have freed the parts of a granule, which goes as a whole.
#[test]
fn a_granule_that_two_streams_have_freed_goes_once_both_have_passed() {
    let (mut world, odd, rest) = shared_granule(Some(SIDE));
    world.free(odd);
    world.free(rest.unwrap());
    // The first look records events, the next one sees that they have passed, and the last one gives the memory back.
    for _ in 0..3 {
        world.device.settle();
        look(&mut world);
    }
    assert_eq!(world.spilled(), 0);
    world.check_all();
    world.end_empty(&[]);
}

/// Free memory of two streams meets inside of a granule, all of which is free.
#[test]
fn what_is_free_of_two_streams_is_not_spilled() {
    let mut world = World::new(10 * MIB, "chunk_size_mb:8,spill:host=1GiB,sharing:never");
    let whole = world.allocate(8 * MIB, MAIN).unwrap();
    world.free(whole);
    for size in [4 * MIB, ODD] {
        world.allocate(size, MAIN).unwrap();
    }
    // What is free of the chunk belongs to nobody then.
    world.allocator.empty_cache().unwrap();
    let rest = world.allocate(REST, SIDE).unwrap();
    assert_eq!((rest, world.used().0), (whole + 4 * MIB + ODD, 8 * MIB));
    [rest, whole + 4 * MIB].into_iter().for_each(|block| world.free(block));
    world.device.settle();
    world.allocate(7 * MIB, MAIN).unwrap();
    assert_eq!(world.spilled(), 4 * MIB, "what is live");
    world.check_all();
    world.end_empty(&[]);
}

/// The pieces of a stitched block are in chunks that are spilled.
#[test]
fn a_stitched_block_that_is_spilled_serves_nobody_once_it_is_freed() {
    let mut world = World::new(34 * MIB, "chunk_size_mb:8,spill:host=1GiB");
    let blocks = [(); 4].map(|()| world.allocate(8 * MIB, MAIN).unwrap());
    [0, 2].into_iter().for_each(|at: usize| world.free(blocks[at]));
    let stitched = world.allocate(16 * MIB, MAIN).unwrap();
    assert_eq!(world.views(), 1);
    world.allocator.spill().advise(stitched, seamalloc::Advice::Cold).unwrap();
    world.allocate(16 * MIB, MAIN).unwrap();
    assert_eq!(world.spilled(), 16 * MIB);
    world.device.settle();
    world.free(stitched);
    assert_eq!(
        world.allocator.reports().fragmentation().pending,
        16 * MIB,
        "it waits for its own stream, and serves nobody"
    );
    world.device.settle();
    look(&mut world);
    assert_eq!(world.spilled(), 0);
    world.check_all();
    world.end_empty(&[]);
}

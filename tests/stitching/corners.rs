//! Where the strategy `stitch` comes to its edges: sizes at the end of what can be counted, addresses of home so
//! scattered that large memory lies among slabs, and calls that fail between two changes.

use crate::simulated;
use seamalloc::driver::sim::{Range, SimGpu};
use seamalloc::driver::{Call, Status, StreamId};
use seamalloc::{Allocator, Config, Error};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId::DEFAULT;
const SIDE: StreamId = StreamId(7);

fn on(device: &str, options: &str) -> (Arc<SimGpu>, Allocator) {
    simulated::on(device, Config::parse(&format!("strategy:stitch,{options}")).unwrap())
}

fn sound(gpu: &SimGpu, allocator: &Allocator) {
    allocator.reports().check().unwrap();
    assert_eq!(gpu.leaks().bytes, allocator.reports().reserved());
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
}

fn by_class(allocator: &Allocator) -> [u64; 2] {
    let reserved = allocator.stats().reserved_bytes;
    [reserved.large_pool.current, reserved.small_pool.current]
}

#[test]
fn the_largest_request_is_refused_while_another_stream_is_behind() {
    let (gpu, allocator) = on("sim:h200,capacity=64MiB", "");
    let held = allocator.allocate(8 * MIB, SIDE).unwrap();
    gpu.hold(SIDE);
    allocator.free(held).unwrap();
    let refused = allocator.allocate(1 << 60, MAIN);
    assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
    sound(&gpu, &allocator);
}

#[test]
fn a_slab_that_cannot_be_mapped_is_not_cut_out_of_large_memory() {
    for call in [Call::Map, Call::SetAccess] {
        let (gpu, allocator) = on("sim:h200,capacity=32MiB", "");
        let blocks = [8 * MIB, 8 * MIB].map(|size| allocator.allocate(size, MAIN).unwrap());
        allocator.free(blocks[0]).unwrap();
        // All of the device; what is new of it lies bare.
        let stitched = allocator.allocate(24 * MIB, MAIN).unwrap();
        allocator.free(stitched).unwrap();
        let again = allocator.allocate(8 * MIB, MAIN).unwrap();
        let before = (by_class(&allocator), gpu.leaks());
        gpu.fail_nth(call, 1, Status::UNKNOWN);
        assert!(allocator.allocate(1000, MAIN).is_err());
        assert_eq!((by_class(&allocator), gpu.leaks()), before);
        sound(&gpu, &allocator);
        let rest = allocator.allocate(16 * MIB, MAIN).unwrap();
        for address in [rest, again, blocks[1]] {
            allocator.free(address).unwrap();
        }
        assert_eq!(allocator.trim(u64::MAX).unwrap(), 32 * MIB);
        assert_eq!(by_class(&allocator), [0, 0]);
    }
}

/// Large chunks come to lie where slabs were before; they stay large.
#[test]
fn large_memory_among_slabs_stays_large() {
    let (gpu, allocator) = on("sim:h200,capacity=128MiB", "chunk_size_mb:64");
    let mut kept = vec![(allocator.allocate(2 * MIB, MAIN).unwrap(), 2)];
    // Slabs reach 60 MiB down from the end of home, which has 256 MiB.
    let small: Vec<u64> = (0..60).map(|_| allocator.allocate(MIB, MAIN).unwrap()).collect();
    small.into_iter().for_each(|address| allocator.free(address).unwrap());
    allocator.empty_cache().unwrap();
    // Each size leaves holes that are too small for the next.
    for size in [2, 4, 8, 16] {
        let blocks: Vec<u64> = std::iter::from_fn(|| allocator.allocate(size * MIB, MAIN).ok()).collect();
        for (index, address) in blocks.into_iter().enumerate() {
            if index % 2 == 0 && size < 16 {
                allocator.free(address).unwrap();
            } else {
                kept.push((address, size));
            }
        }
        allocator.empty_cache().unwrap();
    }
    let (apart, kept): (Vec<_>, Vec<_>) = kept.into_iter().partition(|(_, size)| *size >= 4);
    let home = kept[0].0;
    assert!(apart.iter().any(|(address, _)| *address >= home + 196 * MIB), "some lie where slabs lay: {apart:x?}");
    apart.iter().for_each(|(address, _)| allocator.free(*address).unwrap());
    let together: u64 = apart.iter().map(|(_, size)| size * MIB).sum();
    let before = by_class(&allocator);
    for _ in 0..3 {
        let stitched = allocator.allocate(together, MAIN).unwrap();
        allocator.free(stitched).unwrap();
        sound(&gpu, &allocator);
        assert_eq!(by_class(&allocator), before);
    }
    assert_eq!(allocator.stats().views_built, 1);
}

#[test]
fn memory_that_an_undoing_has_left_mapped_is_not_released_under_it() {
    let (gpu, allocator) = on("sim:h200,capacity=32MiB", "max_views:0");
    let blocks = [(); 4].map(|()| allocator.allocate(8 * MIB, MAIN).unwrap());
    for address in [blocks[0], blocks[2]] {
        allocator.free(address).unwrap();
    }
    // Two chunks go back. What grows in their stead cannot be mapped, nor is that undone, however often it is tried.
    gpu.fail_nth(Call::SetAccess, 1, Status::OUT_OF_MEMORY);
    for nth in [3, 4, 5] {
        gpu.fail_nth(Call::Unmap, nth, Status::UNKNOWN);
    }
    assert!(allocator.allocate(16 * MIB, MAIN).is_err());
    sound(&gpu, &allocator);
    allocator.allocate(16 * MIB, MAIN).unwrap();
    sound(&gpu, &allocator);
}

/// A chunk may be free and passed while a view over it is not: the view's other chunks were freed later, and unmapping
/// takes all of it.
#[test]
fn a_chunk_under_a_view_that_is_in_use_is_waited_for() {
    let (gpu, allocator) = on("sim:h200,capacity=400MiB", "chunk_size_mb:20");
    let held: Vec<u64> = (0..7).map(|_| allocator.allocate(20 * MIB, MAIN).unwrap()).collect();
    for index in [1, 3, 5] {
        allocator.free(held[index]).unwrap();
    }
    let three = allocator.allocate(60 * MIB, MAIN).unwrap();
    allocator.free(three).unwrap();
    // A miss of another stream ends the epoch, so that all three are idle.
    let other = allocator.allocate(20 * MIB + 600 * 1024, SIDE).unwrap();
    allocator.free(other).unwrap();
    // Two of them are used once more, through the same view.
    let two = allocator.allocate(40 * MIB, MAIN).unwrap();
    assert_eq!((two, allocator.stats().views), (three, 1));
    gpu.launch(MAIN, &[Range { address: two, size: 40 * MIB }], 1 << 30).unwrap();
    allocator.free(two).unwrap();
    for bytes in [2 * MIB, 20 * MIB, 20 * MIB] {
        assert!(allocator.trim(bytes).unwrap() >= bytes);
        sound(&gpu, &allocator);
    }
}

/// Neither a range of 2 MiB nor any other of another stream is open, though a slab of the own one is.
#[test]
fn a_range_of_the_size_of_a_slab_stays_its_streams() {
    let (gpu, allocator) = on("sim:h200", "sharing:never");
    let held = [(16, MAIN), (2, SIDE), (16, MAIN)].map(|(size, of)| allocator.allocate(size * MIB, of).unwrap());
    held.iter().for_each(|address| allocator.free(*address).unwrap());
    allocator.allocate(34 * MIB, MAIN).unwrap();
    assert_eq!(allocator.reports().reserved(), 36 * MIB);
    assert_eq!(allocator.allocate(2 * MIB, SIDE).unwrap(), held[1]);
    sound(&gpu, &allocator);
}

/// A large block that takes a part of an idle slab leaves a rest that merges with the part again.
#[test]
fn an_idle_slab_of_which_a_part_was_taken_becomes_whole_again() {
    let (gpu, allocator) = on("sim:h200", "sharing:completed");
    let [large, small] = [16 * MIB, 1000].map(|size| allocator.allocate(size, MAIN).unwrap());
    [large, small].iter().for_each(|address| allocator.free(*address).unwrap());
    // A miss of another stream makes both idle.
    for size in [17 * MIB, 18 * MIB, 17 * MIB, 18 * MIB] {
        let stitched = allocator.allocate(size, SIDE).unwrap();
        assert_eq!(allocator.reports().reserved(), 18 * MIB, "{size}");
        allocator.free(stitched).unwrap();
        sound(&gpu, &allocator);
    }
}

/// The memory behind the first chunk of a view is live, and says nothing of the end of that chunk.
#[test]
fn a_view_that_begins_inside_a_chunk_is_found_again() {
    let (gpu, allocator) = on("sim:h200", "");
    let first = allocator.allocate(16 * MIB, MAIN).unwrap();
    allocator.free(first).unwrap();
    let [head, tail, behind, third, _] = [10, 6, 16, 16, 16].map(|size| allocator.allocate(size * MIB, MAIN).unwrap());
    assert_eq!([head, tail, behind, third].map(|address| (address - first) / MIB), [0, 10, 16, 32]);
    [tail, third].iter().for_each(|address| allocator.free(*address).unwrap());
    let stitched = allocator.allocate(22 * MIB, MAIN).unwrap();
    allocator.free(stitched).unwrap();
    // A size that no choice of ranges is remembered for, and one that has such a choice.
    for size in [21 * MIB, 22 * MIB] {
        assert_eq!(allocator.allocate(size, MAIN).unwrap(), stitched);
        allocator.free(stitched).unwrap();
    }
    assert_eq!((allocator.stats().views_built, allocator.stats().views_reused), (1, 2));
    sound(&gpu, &allocator);
}

#[test]
fn a_run_takes_no_more_idle_bytes_than_it_needs() {
    let (gpu, allocator) = on("sim:h200", "sharing:completed");
    let held = [(16, MAIN), (32, SIDE), (16, MAIN)].map(|(size, of)| allocator.allocate(size * MIB, of).unwrap());
    allocator.free(held[1]).unwrap();
    gpu.hold(MAIN);
    allocator.free(held[0]).unwrap();
    assert_eq!(allocator.allocate(40 * MIB, MAIN).unwrap(), held[0]);
    allocator.allocate(8 * MIB, SIDE).unwrap();
    assert_eq!(allocator.reports().reserved(), 64 * MIB);
    sound(&gpu, &allocator);
}

/// The rest of a block that a hit has split was last used when the whole was.
#[test]
fn what_a_hit_leaves_is_passed_when_the_whole_is() {
    let (gpu, allocator) = on("sim:h200", "sharing:completed");
    let whole = allocator.allocate(32 * MIB, MAIN).unwrap();
    let held = gpu.hold(MAIN);
    allocator.free(whole).unwrap();
    // A miss of another stream ends the epoch.
    let other = allocator.allocate(8 * MIB, SIDE).unwrap();
    gpu.finish_hold(held);
    assert_eq!(allocator.allocate(16 * MIB, MAIN).unwrap(), whole);
    gpu.hold(MAIN);
    assert_eq!(allocator.allocate(16 * MIB, SIDE).unwrap(), whole + 16 * MIB);
    assert!(other != whole && allocator.reports().reserved() == 40 * MIB);
    sound(&gpu, &allocator);
}

/// More streams than have pools of their own at once. A pool that passes from one to another goes on counting epochs:
/// nothing that the new stream frees counts as passed by the old one.
#[test]
fn what_a_stream_with_the_pools_of_another_frees_is_waited_for() {
    let (gpu, allocator) = on("sim:h200", "sharing:completed");
    for number in 100..160 {
        let stream = StreamId(number);
        let address = allocator.allocate(16 * MIB, stream).unwrap();
        gpu.launch(stream, &[Range { address, size: 16 * MIB }], 1 << 30).unwrap();
        allocator.free(address).unwrap();
        assert_ne!(allocator.allocate(16 * MIB, SIDE).unwrap(), address, "stream {number} still uses it");
        let busy = gpu.done_at(stream).unwrap();
        assert!(gpu.now_ns() < busy, "nobody has waited for it");
        assert_eq!(allocator.trim(allocator.reports().reserved() - 16 * MIB).unwrap(), 16 * MIB);
        assert!(gpu.now_ns() >= busy, "stream {number} uses what was given back");
        sound(&gpu, &allocator);
    }
}

/// The pools of streams that hold nothing serve others; a program may create streams without end.
#[test]
fn streams_that_come_and_go_leave_no_pools_behind() {
    let (gpu, allocator) = on("sim:h200", "sharing:completed");
    let mut after = Vec::new();
    for number in 0..600 {
        let stream = StreamId(1000 + number);
        let address = allocator.allocate(16 * MIB, stream).unwrap();
        allocator.free(address).unwrap();
        after.push(allocator.stats().host_bytes);
    }
    assert!(after[599] <= after[199] + (64 << 10), "{} and {}", after[199], after[599]);
    sound(&gpu, &allocator);
}

/// A stream may hold nothing, and still use a view: others have taken its memory behind a wait. It keeps its pools, and
/// the view stays mapped.
#[test]
fn a_stream_that_still_uses_a_view_keeps_its_pools() {
    const USER: StreamId = StreamId(99);
    let (gpu, allocator) = on("sim:h200", "sharing:wait,max_view_mappings:4");
    let held: Vec<u64> = (0..8).map(|_| allocator.allocate(16 * MIB, MAIN).unwrap()).collect();
    [0, 2].iter().for_each(|index: &usize| allocator.free(held[*index]).unwrap());
    let view = allocator.allocate(32 * MIB, USER).unwrap();
    assert_eq!(allocator.stats().views_built, 1);
    gpu.launch(USER, &[Range { address: view, size: 32 * MIB }], 1 << 40).unwrap();
    allocator.free(view).unwrap();
    // Each chunk goes to another stream at its place at home, where memory cannot grow.
    allocator.limits().set_bytes(Some(8 * 16 * MIB)).unwrap();
    let mut taken = [(); 2].map(|()| allocator.allocate(16 * MIB, SIDE).unwrap());
    allocator.limits().set_bytes(None).unwrap();
    taken.sort_unstable();
    assert_eq!((taken, allocator.reports().reserved()), ([held[0], held[2]], 8 * 16 * MIB));
    for number in 100..140 {
        allocator.allocate(2 * MIB, StreamId(number)).unwrap();
    }
    // Three more do not fit beside the view.
    [1, 4, 6].iter().for_each(|index: &usize| allocator.free(held[*index]).unwrap());
    allocator.allocate(48 * MIB, MAIN).unwrap();
    assert!(gpu.done_at(USER).unwrap() > gpu.now_ns(), "nobody has waited for it");
    sound(&gpu, &allocator);
}

/// Memory at home moves between streams, so a snapshot shows it as nobody's: the viewer joins ranges of one stream only.
#[test]
fn a_snapshot_shows_home_as_one_stream_and_views_as_their_own() {
    let (gpu, allocator) = on("sim:h200", "");
    let held: Vec<u64> = (0..4).map(|_| allocator.allocate(16 * MIB, SIDE).unwrap()).collect();
    [0, 2].iter().for_each(|index: &usize| allocator.free(held[*index]).unwrap());
    let view = allocator.allocate(32 * MIB, SIDE).unwrap();
    assert_eq!(allocator.stats().views_built, 1);
    let segments = allocator.reports().snapshot().segments;
    let stream_of = |address: u64| {
        let found = segments.iter().find(|segment| segment.blocks.iter().any(|block| block.address == address));
        found.unwrap().stream
    };
    assert_eq!([held[1], held[3]].map(stream_of), [StreamId::DEFAULT; 2]);
    assert_eq!(stream_of(view), SIDE);
    sound(&gpu, &allocator);
}

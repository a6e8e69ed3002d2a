//! Where the strategy `stitch` comes to its edges: sizes at the end of what can be counted, addresses of home so
//! scattered that large memory lies among slabs, and calls that fail between two changes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod simulated;

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
    allocator.check().unwrap();
    assert_eq!(gpu.leaks().bytes, allocator.reserved());
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

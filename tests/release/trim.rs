//! `trim` gives back what was asked for, and hardly more.

use super::watch::Watch;
use super::{CHUNK, MAIN, MIB, SIDE, balanced, on, reserved};
use seamalloc::driver::{Call, Driver, StreamId};
use seamalloc::{Allocator, StrategyKind};

fn calls(gpu: &Watch, call: Call) -> u64 {
    gpu.call_stats().get(call).count
}

fn cpu_waits(gpu: &Watch) -> u64 {
    [Call::StreamSynchronize, Call::EventSynchronize, Call::Synchronize].map(|call| calls(gpu, call)).iter().sum()
}

/// `count` blocks of whole chunks each, one behind the other at home.
fn chunks(allocator: &Allocator, count: usize, stream: StreamId) -> Vec<u64> {
    (0..count).map(|_| allocator.allocate(CHUNK, stream).unwrap()).collect()
}

#[test]
fn chunks_go_one_by_one_from_the_end_of_home() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200", "");
    let held = chunks(&allocator, 4, MAIN);
    for address in &held[1..] {
        allocator.free(*address).unwrap();
    }
    let freed = allocator.stats().num_device_free;
    assert_eq!(allocator.trim(1).unwrap(), CHUNK / 2, "a chunk is the least");
    assert_eq!(allocator.trim(CHUNK).unwrap(), CHUNK);
    assert_eq!(allocator.stats().num_device_free - freed, 3);
    assert_eq!((calls(&gpu, Call::Release), cpu_waits(&gpu)), (3, 0), "the GPU has passed");
    assert_eq!(allocator.allocate(CHUNK, MAIN).unwrap(), held[1], "the end of home went first");
    assert_eq!(allocator.trim(0).unwrap(), 0);
    assert_eq!(allocator.trim(u64::MAX).unwrap(), CHUNK / 2);
    assert_eq!(allocator.trim(u64::MAX).unwrap(), 0);
    assert_eq!(reserved(&allocator), 2 * CHUNK);
    balanced(&gpu, &allocator);
}

#[test]
fn what_fits_goes_before_what_is_larger() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200", "chunk_size_mb:64");
    let held: Vec<u64> = [4, 6, 10, 20].iter().map(|size| allocator.allocate(size * MIB, MAIN).unwrap()).collect();
    held.iter().for_each(|address| allocator.free(*address).unwrap());
    for (bytes, given) in [(6, 6), (24, 24), (1, 10)] {
        assert_eq!(allocator.trim(bytes * MIB).unwrap() / MIB, given, "{bytes}");
        balanced(&gpu, &allocator);
    }
    assert_eq!(reserved(&allocator), 0);
}

#[test]
fn what_the_gpu_has_passed_goes_without_a_wait() {
    for kind in [StrategyKind::Expandable, StrategyKind::Gmlake, StrategyKind::Stitch] {
        for sharing in ["never", "completed", "wait"] {
            let (gpu, allocator) = on(kind, "sim:h200", &format!("sharing:{sharing}"));
            let main = allocator.allocate(40 * MIB, MAIN).unwrap();
            let side = allocator.allocate(40 * MIB, SIDE).unwrap();
            gpu.sim.hold(MAIN);
            allocator.free(main).unwrap();
            allocator.free(side).unwrap();
            assert_eq!(allocator.trim(40 * MIB).unwrap(), 40 * MIB);
            assert_eq!((cpu_waits(&gpu), allocator.stats().num_sync_all_streams), (0, 0), "{kind} {sharing}");
            assert!(gpu.sim.physical(seamalloc::driver::sim::Range { address: side, size: 40 * MIB }).is_empty());
            // The rest is still in use, so that the CPU has to wait.
            assert_eq!(allocator.trim(40 * MIB).unwrap(), 40 * MIB);
            assert!(cpu_waits(&gpu) > 0 && allocator.stats().num_sync_all_streams == 1, "{kind} {sharing}");
            balanced(&gpu, &allocator);
        }
    }
}

#[test]
fn chunks_without_views_go_first_and_then_those_of_the_view_unused_longest() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200", "");
    let held = chunks(&allocator, 9, MAIN);
    for index in [0, 2, 4, 6, 8] {
        allocator.free(held[index]).unwrap();
    }
    // Two views, each over two blocks; the ninth block has none.
    let [old, young] = [0, 1].map(|_| allocator.allocate(2 * CHUNK, MAIN).unwrap());
    allocator.free(young).unwrap();
    allocator.free(old).unwrap();
    assert_eq!(allocator.stats().views, 2);
    let mapped = allocator.stats().mappings;
    assert_eq!(allocator.trim(CHUNK).unwrap(), CHUNK);
    assert_eq!((allocator.stats().views, allocator.stats().mappings), (2, mapped - 2));
    assert_eq!(allocator.trim(2 * CHUNK).unwrap(), 2 * CHUNK);
    assert_eq!(allocator.stats().views, 1);
    assert_eq!(allocator.allocate(2 * CHUNK, MAIN).unwrap(), young, "the other view is still there");
    balanced(&gpu, &allocator);
}

#[test]
fn neighbours_that_streams_keep_to_themselves_go_together() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200", "sharing:never,chunk_size_mb:64");
    let whole = allocator.allocate(20 * MIB, MAIN).unwrap();
    allocator.free(whole).unwrap();
    let main = allocator.allocate(10 * MIB, MAIN).unwrap();
    // What is left of the one chunk belongs to all after this.
    assert_eq!(allocator.empty_cache().unwrap(), 0);
    let side = allocator.allocate(10 * MIB, SIDE).unwrap();
    assert_eq!((main, side, reserved(&allocator)), (whole, whole + 10 * MIB, 20 * MIB));
    allocator.free(main).unwrap();
    assert_eq!(allocator.trim(1).unwrap(), 0);
    allocator.free(side).unwrap();
    let waits = cpu_waits(&gpu);
    assert_eq!(allocator.trim(1).unwrap(), 20 * MIB);
    assert_eq!((reserved(&allocator), cpu_waits(&gpu)), (0, waits));
    balanced(&gpu, &allocator);
}

#[test]
fn segments_unused_longest_go_first() {
    let (gpu, allocator) = on(StrategyKind::Caching, "sim:h200", "");
    let held = [30, 30, 30, 50].map(|size| allocator.allocate(size * MIB, MAIN).unwrap());
    allocator.free(held[1]).unwrap();
    for _ in 0..3 {
        let other = allocator.allocate(20 * MIB, SIDE).unwrap();
        allocator.free(other).unwrap();
    }
    allocator.free(held[0]).unwrap();
    allocator.free(held[3]).unwrap();
    assert_eq!(allocator.trim(30 * MIB).unwrap(), 30 * MIB);
    assert_eq!(allocator.allocate(30 * MIB, MAIN).unwrap(), held[0], "the other one lay free for longer");
    assert_eq!(allocator.trim(60 * MIB).unwrap(), 70 * MIB, "two segments are the least");
    balanced(&gpu, &allocator);
}

#[test]
fn units_go_from_the_end_of_a_segment() {
    let (gpu, allocator) = on(StrategyKind::Expandable, "sim:h200", "");
    let first = allocator.allocate(30 * MIB, MAIN).unwrap();
    let second = allocator.allocate(90 * MIB, MAIN).unwrap();
    let small = allocator.allocate(1000, MAIN).unwrap();
    allocator.free(small).unwrap();
    allocator.free(second).unwrap();
    assert_eq!(reserved(&allocator), 122 * MIB);
    assert_eq!(allocator.trim(25 * MIB).unwrap(), 40 * MIB, "two units");
    assert_eq!(allocator.trim(22 * MIB).unwrap(), 22 * MIB, "with the small one");
    assert_eq!(allocator.trim(u64::MAX).unwrap(), 20 * MIB, "half of a unit is in use");
    assert_eq!(reserved(&allocator), 40 * MIB);
    assert_eq!(gpu.sim.leaks().reservations, 1, "nothing is left of the small segment");
    assert_eq!(allocator.allocate(70 * MIB, MAIN).unwrap(), first + 30 * MIB);
    balanced(&gpu, &allocator);
}

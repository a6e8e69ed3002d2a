//! The cost of guard mode: memory to the byte, limits, the quarantine, the sample.

use super::*;
use seamalloc::Error;
use seamalloc::driver::sim::CaptureMode;

#[test]
fn every_byte_is_counted_live_and_freed() {
    let (gpu, allocator) = guarded("guard:on");
    let address = allocator.allocate(1000, S).unwrap();
    let large = allocator.allocate(5 * MIB, S).unwrap();
    let stats = allocator.stats();
    assert_eq!(stats.reserved_bytes.all.current, 8 * MIB);
    assert_eq!(stats.allocated_bytes.all.current, 1024 + 5 * MIB);
    assert_eq!((stats.guard.guarded, stats.guard.held_bytes), (2, 8 * MIB));
    assert_eq!(stats.guard.slack_bytes, 2 * MIB - 1000 + MIB);
    assert_eq!((stats.num_device_alloc, stats.num_device_free, stats.mappings), (2, 0, 2));
    balanced(&gpu, &allocator);
    let snapshot = allocator.reports().snapshot();
    let total: u64 = snapshot.segments.iter().map(|segment| segment.total_size).sum();
    assert_eq!(total, 8 * MIB);
    for segment in &snapshot.segments {
        let blocks: u64 = segment.blocks.iter().map(|block| block.size).sum();
        assert_eq!(blocks, segment.total_size);
    }
    allocator.free(address).unwrap();
    allocator.free(large).unwrap();
    gpu.advance(10);
    allocator.guard().check().unwrap();
    let stats = allocator.stats();
    assert_eq!((stats.reserved_bytes.all.current, stats.guard.held_bytes, stats.guard.slack_bytes), (0, 0, 0));
    assert_eq!((stats.num_device_alloc, stats.num_device_free, stats.mappings), (2, 2, 0));
    assert_eq!((stats.guard.quarantined, stats.guard.quarantined_bytes), (2, 16 * MIB), "with 2 MiB on each side");
    ends_clean(&gpu, allocator);
}

/// Guarded memory is not of the pool that the driver frees to.
#[test]
fn guarded_memory_is_freed_where_other_memory_goes_to_the_drivers_pool() {
    let (gpu, allocator) = guarded("strategy:malloc-async,guard:on,guard_sample:2");
    let live: Vec<u64> = (0..8).map(|_| allocator.allocate(5 * MIB, S).unwrap()).collect();
    let guarded = allocator.stats().guard.guarded;
    assert!(0 < guarded && guarded < 8, "{guarded} of 8");
    for (at, address) in live.into_iter().enumerate() {
        let free = [Allocator::free, |on: &Allocator, address| on.free_on(address, T)][at % 2];
        free(&allocator, address).unwrap();
    }
    gpu.advance(10);
    allocator.guard().check().unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.reports().reserved(), 0);
    ends_clean(&gpu, allocator);
}

#[test]
fn the_quarantine_keeps_to_its_bound_and_the_oldest_goes_first() {
    let (gpu, allocator) = guarded("guard:on,guard_quarantine_mb:20");
    let mut freed = Vec::new();
    for _ in 0..10 {
        let address = allocator.allocate(100, S).unwrap();
        allocator.free(address).unwrap();
        freed.push(address);
        allocator.guard().check().unwrap();
        let stats = allocator.stats().guard;
        assert!(stats.quarantined_bytes <= 20 * MIB && stats.quarantined <= 3, "{stats:?}");
    }
    assert_eq!(allocator.stats().guard.quarantined, 3);
    assert_eq!(gpu.leaks().reservations, 3);
    let newest = freed.last().unwrap();
    assert!(allocator.guard().explain(*newest).is_some());
    ends_clean(&gpu, allocator);
}

#[test]
fn where_memory_or_limits_do_not_suffice_allocations_go_without() {
    let (gpu, allocator) = guarded("guard:on,memory_limit:20MiB");
    let live: Vec<u64> = (0..100).map(|_| allocator.allocate(100 << 10, S).unwrap()).collect();
    let stats = allocator.stats();
    assert!(stats.reserved_bytes.all.peak <= 20 * MIB);
    assert!((2..100).contains(&stats.guard.guarded), "{:?}", stats.guard);
    assert!(stats.guard.slack_bytes <= 5 * MIB, "a quarter of the limit: {:?}", stats.guard);
    assert_eq!(stats.guard.guarded + stats.guard.unguarded, 100);
    assert!(matches!(allocator.allocate(20 * MIB, S), Err(Error::OutOfMemory(_))));
    for address in live {
        allocator.free(address).unwrap();
    }
    // What waits to be unmapped does not make a request fail.
    let large = allocator.allocate(19 * MIB, S).unwrap();
    allocator.free(large).unwrap();
    allocator.empty_cache().unwrap();
    ends_clean(&gpu, allocator);
}

#[test]
fn a_share_of_the_large_ones_is_guarded_where_that_is_asked_for() {
    let (gpu, allocator) = guarded("guard:on,guard_sample:10,guard_min_size:1MiB");
    for index in 0..2000 {
        let size = if index % 2 == 0 { MIB - 1 } else { MIB };
        let before = allocator.stats().guard.guarded;
        let address = allocator.allocate(size, S).unwrap();
        assert!(size == MIB || allocator.stats().guard.guarded == before);
        allocator.free(address).unwrap();
    }
    let guarded = allocator.stats().guard.guarded;
    assert!((60..140).contains(&guarded), "of 1000: {guarded}");
    ends_clean(&gpu, allocator);
}

#[test]
fn findings_are_kept_up_to_a_bound_and_counted_beyond() {
    let (_, allocator) = guarded("guard:on");
    let address = allocator.allocate(100, S).unwrap();
    allocator.free(address).unwrap();
    for _ in 0..1100 {
        allocator.free(address).unwrap_err();
    }
    assert_eq!((allocator.guard().findings().len(), allocator.stats().guard.findings), (1000, 1100));
}

#[test]
fn guarded_allocations_keep_their_alignment() {
    let (_, allocator) = guarded("guard:on");
    for size in [1, 511, 513, 100_000, 2 * MIB + 1, 7 * MIB - 511] {
        let address = allocator.allocate(size, S).unwrap();
        assert_eq!(address % 512, 0);
        let rounded = allocator.reports().size_of(address).unwrap().next_multiple_of(512);
        assert_eq!((address + rounded) % (2 * MIB), 0, "it ends where its memory ends");
    }
}

/// A view and a guarded block may have the same number.
#[test]
fn a_stitched_block_beside_guarded_ones_is_none() {
    let (gpu, allocator) = guarded("guard:on,guard_min_size:64MiB,strategy:stitch");
    let large = allocator.allocate(64 * MIB, S).unwrap();
    let held: Vec<u64> = (0..4).map(|_| allocator.allocate(16 * MIB, S).unwrap()).collect();
    [0, 2].iter().for_each(|index: &usize| allocator.free(held[*index]).unwrap());
    let stitched = allocator.allocate(32 * MIB, S).unwrap();
    let stats = allocator.stats();
    assert_eq!((stats.views_built, stats.guard.guarded, stats.guard.held_bytes), (1, 1, 64 * MIB));
    [large, stitched, held[1], held[3]].iter().for_each(|address| allocator.free(*address).unwrap());
    allocator.empty_cache().unwrap();
    allocator.guard().check().unwrap();
    assert_eq!(allocator.stats().guard.held_bytes, 0);
    ends_clean(&gpu, allocator);
}

/// A freed block cannot be filled or waited for while its stream is captured: that is done later.
#[test]
fn what_is_freed_while_its_stream_is_captured_is_unmapped_later() {
    let (gpu, allocator) = guarded("guard:on");
    let [first, second] = [(); 2].map(|()| allocator.allocate(3 * MIB, S).unwrap());
    gpu.begin_capture(S, CaptureMode::Relaxed).unwrap();
    [first, second].iter().for_each(|address| allocator.free(*address).unwrap());
    let other = allocator.allocate(1000, T).unwrap();
    allocator.free(other).unwrap();
    assert!(allocator.stats().guard.held_bytes >= 8 * MIB);
    gpu.end_capture(S).unwrap();
    allocator.guard().check().unwrap();
    gpu.advance(10);
    allocator.guard().check().unwrap();
    assert_eq!(allocator.stats().guard.held_bytes, 0);
    ends_clean(&gpu, allocator);
}

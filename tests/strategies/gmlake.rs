//! The rules of the strategy `gmlake`, state by state, against GMLake's paper and its authors' release, on the
//! simulated GPU.

use crate::simulated;
use seamalloc::driver::sim::{Range, SimGpu};
use seamalloc::driver::{Call, CallStats, Driver, Status, StreamId};
use seamalloc::{Allocator, Config, Error};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 2 * MIB;
const MAIN: StreamId = StreamId::DEFAULT;
const SIDE: StreamId = StreamId(7);

fn on(device: &str, options: &str) -> (Arc<SimGpu>, Allocator) {
    simulated::on(device, Config::parse(&format!("strategy:gmlake,{options}")).unwrap())
}

fn counts<const N: usize>(made: &CallStats, calls: [Call; N]) -> [u64; N] {
    calls.map(|call| made.get(call).count)
}

fn reserved_mib(allocator: &Allocator) -> u64 {
    allocator.stats().reserved_bytes.all.current / MIB
}

fn allocate<const N: usize>(allocator: &Allocator, mib: [u64; N]) -> [u64; N] {
    mib.map(|mib| allocator.allocate(mib * MIB, MAIN).unwrap())
}

fn free(allocator: &Allocator, addresses: &[u64]) {
    addresses.iter().for_each(|address| allocator.free(*address).unwrap());
    allocator.reports().check().unwrap();
}

/// Built, reused.
fn views(allocator: &Allocator) -> (u64, u64) {
    (allocator.stats().views_built, allocator.stats().views_reused)
}

/// A kernel may use all of it, as one range.
fn usable(gpu: &SimGpu, allocator: &Allocator, address: u64) {
    let range = Range { address, size: allocator.reports().size_of(address).unwrap() };
    gpu.launch(MAIN, &[range], 1000).unwrap();
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
    allocator.reports().check().unwrap();
}

/// Guarded blocks have mappings of their own, beside those of chunks and views.
#[test]
fn mappings_of_guarded_blocks_are_counted() {
    let (_, allocator) = on("sim:h200", "guard:on");
    let addresses = allocate(&allocator, [1, 5]);
    assert_eq!(allocator.stats().mappings, 2);
    allocator.reports().check().unwrap();
    free(&allocator, &addresses);
}

#[test]
fn memory_comes_in_uniform_chunks_and_small_requests_from_malloc() {
    let (gpu, allocator) = on("sim:h200", "");
    let whole = allocator.allocate(30 * MIB + 1, MAIN).unwrap();
    assert_eq!(allocator.reports().size_of(whole).unwrap(), 32 * MIB, "whole chunks");
    assert_eq!(counts(&gpu.call_stats(), [Call::Create, Call::Map, Call::SetAccess]), [16, 16, 1]);
    assert_eq!((reserved_mib(&allocator), allocator.stats().mappings), (32, 16));
    // As PyTorch sizes segments: below 10 MiB they are shared.
    let [first, second] = allocate(&allocator, [7, 3]);
    assert_eq!((second - first, reserved_mib(&allocator)), (8 * MIB, 52));
    assert_eq!(allocator.reports().size_of(second).unwrap(), 4 * MIB);
    let small = allocator.allocate(MIB, MAIN).unwrap();
    assert_eq!(counts(&gpu.call_stats(), [Call::Malloc, Call::Create]), [1, 26]);
    assert_eq!(allocator.stats().reserved_bytes.small_pool.current, CHUNK);
    let larger = allocator.allocate(MIB + 1, MAIN).unwrap();
    assert_eq!(allocator.reports().size_of(larger).unwrap(), CHUNK);
    for address in [whole, first, second, small, larger] {
        usable(&gpu, &allocator, address);
    }
}

#[test]
fn state_1_an_exact_match_comes_first() {
    let (gpu, allocator) = on("sim:h200", "");
    let [large, _, a, _, b, _] = allocate(&allocator, [60, 10, 20, 10, 20, 10]);
    free(&allocator, &[a, b]);
    let [stitched] = allocate(&allocator, [40]);
    assert_eq!((views(&allocator), reserved_mib(&allocator)), ((1, 0), 130));
    free(&allocator, &[stitched, large]);
    let before = gpu.call_stats();
    assert_eq!(allocate(&allocator, [60, 40]), [large, stitched], "the pBlock, then the sBlock");
    free(&allocator, &[stitched]);
    assert_eq!(allocate(&allocator, [20, 20]), [b.min(a), a.max(b)], "its parts, each by itself");
    assert_eq!(gpu.call_stats(), before, "no driver call");
    assert_eq!(views(&allocator), (1, 1));
    free(&allocator, &[large, a]);
    // The sBlock's other half is in use: it is not inactive, and the pBlock is split.
    let [split] = allocate(&allocator, [40]);
    assert_eq!((split, gpu.call_stats()), (large, before));
    // Both are free: an exact sBlock is preferred to splitting a larger pBlock.
    free(&allocator, &[b, split]);
    assert_eq!(allocate(&allocator, [40]), [stitched]);
    usable(&gpu, &allocator, stitched);
}

#[test]
fn state_2_a_larger_block_is_split_and_finds_back_to_itself() {
    let (gpu, allocator) = on("sim:h200", "");
    let [larger, _, large] = allocate(&allocator, [60, 10, 40]);
    free(&allocator, &[larger, large]);
    let before = gpu.call_stats();
    let parts = allocate(&allocator, [15, 20, 4]);
    assert_eq!(parts, [large, large + 16 * MIB, large + 36 * MIB], "of the smallest that is larger");
    free(&allocator, &parts);
    assert_eq!(allocate(&allocator, [40, 60]), [large, larger]);
    assert_eq!(gpu.call_stats(), before);
}

#[test]
fn pblocks_of_different_allocations_do_not_merge() {
    let (_, allocator) = on("sim:h200", "fragLimit:1000000000");
    let both = allocate(&allocator, [40, 40]);
    free(&allocator, &both);
    let [third] = allocate(&allocator, [80]);
    assert!(!both.contains(&third));
    assert_eq!(reserved_mib(&allocator), 160);
}

#[test]
fn a_larger_sblock_lends_its_head_up_to_the_reuse_limit() {
    for (limit, lends) in [("reuseLimit:1.5", true), ("reuseLimit:1.25", false)] {
        let (gpu, allocator) = on("sim:h200", limit);
        let [a, _, b, _] = allocate(&allocator, [20, 10, 40, 10]);
        free(&allocator, &[a, b]);
        let [stitched] = allocate(&allocator, [60]);
        free(&allocator, &[stitched]);
        let [single] = allocate(&allocator, [38]);
        assert_eq!(single, b, "a single pBlock is split rather");
        free(&allocator, &[single]);
        // No pBlock is as large. The sBlock begins with all of b.
        let [head] = allocate(&allocator, [44]);
        assert_eq!((head == stitched, views(&allocator)), (lends, if lends { (1, 1) } else { (2, 0) }));
        assert_eq!(allocator.reports().size_of(head).unwrap(), 44 * MIB);
        usable(&gpu, &allocator, head);
        assert_eq!(allocate(&allocator, [16]), [a + 4 * MIB], "the rest of its last pBlock serves others");
        free(&allocator, &[head]);
        assert_ne!(allocate(&allocator, [60]), [stitched], "a part of it is in use");
        allocator.reports().check().unwrap();
    }
}

#[test]
fn state_3_free_blocks_are_stitched_the_largest_first() {
    let (gpu, allocator) = on("sim:h200", "");
    let [small, _, large, _, middle, _] = allocate(&allocator, [12, 10, 30, 10, 20, 10]);
    free(&allocator, &[small, large, middle]);
    let before = gpu.call_stats();
    let [stitched] = allocate(&allocator, [40]);
    let made = gpu.call_stats().since(&before);
    assert_eq!(counts(&made, [Call::Create, Call::Map, Call::SetAccess, Call::Reserve]), [0, 20, 1, 1]);
    assert_eq!(reserved_mib(&allocator), 92, "nothing grew");
    usable(&gpu, &allocator, stitched);
    // The last one was split, and the smallest not touched.
    assert_eq!(allocate(&allocator, [10, 12]), [middle + 10 * MIB, small]);
    free(&allocator, &[stitched]);
    assert_eq!(allocate(&allocator, [30, 10]), [large, middle], "its pBlocks are free again");
}

#[test]
fn state_4_only_the_missing_bytes_are_created() {
    let (gpu, allocator) = on("sim:h200", "");
    let [a, _, b, _] = allocate(&allocator, [20, 10, 30, 10]);
    free(&allocator, &[a, b]);
    let before = gpu.call_stats();
    let [stitched] = allocate(&allocator, [57]);
    let made = gpu.call_stats().since(&before);
    assert_eq!(reserved_mib(&allocator), 70 + 8);
    assert_eq!(counts(&made, [Call::Create, Call::Map, Call::SetAccess]), [4, 4 + 29, 2]);
    usable(&gpu, &allocator, stitched);
    free(&allocator, &[stitched]);
    assert_eq!(allocate(&allocator, [58]), [stitched]);
}

#[test]
fn state_5_out_of_memory_comes_after_everything_cached_was_given_back() {
    let (gpu, allocator) = on("sim:h200,capacity=100MiB", "");
    let other = allocator.allocate(40 * MIB, SIDE).unwrap();
    allocator.free(other).unwrap();
    let [kept] = allocate(&allocator, [40]);
    let [large] = allocate(&allocator, [60]);
    assert_eq!((reserved_mib(&allocator), allocator.stats().num_alloc_retries), (100, 1), "the side stream's went");
    let Err(Error::OutOfMemory(report)) = allocator.allocate(2 * MIB, MAIN) else { panic!("all of it is live") };
    assert_eq!((report.reserved, report.allocated), (100 * MIB, 100 * MIB));
    allocator.reports().check().unwrap();
    free(&allocator, &[kept, large]);
    assert_eq!(allocate(&allocator, [100]).len(), 1);
    assert!(gpu.faults().is_empty());
}

#[test]
fn below_the_fragmentation_limit_nothing_is_stitched() {
    let (_, allocator) = on("sim:h200", "fragLimit:41943040");
    let [a, _, b, _] = allocate(&allocator, [20, 10, 20, 10]);
    free(&allocator, &[a, b]);
    let [grown] = allocate(&allocator, [38]);
    assert_eq!((views(&allocator), reserved_mib(&allocator)), ((0, 0), 98));
    let [stitched] = allocate(&allocator, [40]);
    assert_eq!((views(&allocator), reserved_mib(&allocator)), ((1, 0), 98));
    free(&allocator, &[grown, stitched]);
}

#[test]
fn the_level_says_when_stitching_begins() {
    for level in 0..4 {
        let (_, allocator) = on("sim:h200,capacity=100MiB", &format!("defragLevel:{level}"));
        let [a, _, b, _] = allocate(&allocator, [20, 10, 20, 20]);
        free(&allocator, &[a, b]);
        // 16 and 2 MiB are left, which cannot be given back.
        assert_eq!(allocate(&allocator, [4, 18]), [a, b]);
        let [first] = allocate(&allocator, [18]);
        let at_once = u64::from(level == 0);
        assert_eq!((views(&allocator).0, reserved_mib(&allocator)), (at_once, if level == 0 { 70 } else { 88 }));
        free(&allocator, &[first]);
        // 36 MiB are free now, or can be had, but not in one piece.
        let second = allocator.allocate(36 * MIB, MAIN);
        assert_eq!((second.is_ok(), views(&allocator).0), (level < 3, at_once + u64::from(level < 3)), "level {level}");
        assert_eq!(allocator.stats().num_alloc_retries, u64::from(level > 1), "level {level}");
        allocator.reports().check().unwrap();
    }
}

#[test]
fn above_auto_gc_the_sblock_unused_longest_goes_after_the_stitch() {
    let (gpu, allocator) = on("sim:h200", "reuseLimit:1,autoGC:2");
    let [a, _, b, _, c, _] = allocate(&allocator, [500, 10, 550, 10, 600, 10]);
    free(&allocator, &[a, b, c]);
    let of_pblocks = allocator.stats().mappings;
    let [first] = allocate(&allocator, [900]);
    free(&allocator, &[first]);
    let [second] = allocate(&allocator, [1000]);
    free(&allocator, &[second]);
    assert_eq!((views(&allocator), allocator.stats().mappings), ((2, 0), of_pblocks + 450 + 500));
    assert_eq!(allocate(&allocator, [900]), [first]);
    free(&allocator, &[first]);
    let before = gpu.call_stats();
    let [third] = allocate(&allocator, [950]);
    let made = gpu.call_stats().since(&before);
    assert_eq!(counts(&made, [Call::Unmap, Call::AddressFree, Call::Create]), [1, 1, 0]);
    assert_eq!(allocator.stats().mappings, of_pblocks + 450 + 475, "the second had lain unused longest");
    free(&allocator, &[third]);
    assert_eq!(allocate(&allocator, [900]), [first]);
    assert!(gpu.faults().is_empty());
}

#[test]
fn no_bound_refuses_a_stitch() {
    for bounds in ["max_view_mappings:0", "max_views:0,max_view_address_space:0B", "autoGC:0"] {
        let (gpu, allocator) = on("sim:h200", bounds);
        let [a, _, b, _] = allocate(&allocator, [20, 10, 30, 10]);
        free(&allocator, &[a, b]);
        for (round, mib) in [40, 46, 50].into_iter().enumerate() {
            let [stitched] = allocate(&allocator, [mib]);
            assert_eq!((views(&allocator), reserved_mib(&allocator)), ((round as u64 + 1, 0), 70), "{bounds}");
            usable(&gpu, &allocator, stitched);
            let others = if bounds == "autoGC:0" { 0 } else { round as u64 };
            assert_eq!(gpu.call_stats().get(Call::AddressFree).count, round as u64 - others, "{bounds}");
            free(&allocator, &[stitched]);
            gpu.advance(2_000_000_000);
        }
        let memory = allocator.reports().fragmentation();
        assert_eq!(memory.streams[0].reachable, 50 * MIB, "{bounds}");
    }
}

#[test]
fn nothing_is_unmapped_while_the_gpu_may_use_it() {
    let (gpu, allocator) = on("sim:h200", "autoGC:0");
    let [a, _, b, _] = allocate(&allocator, [20, 10, 30, 10]);
    free(&allocator, &[a, b]);
    let [stitched] = allocate(&allocator, [40]);
    let range = Range { address: stitched, size: 40 * MIB };
    gpu.launch(MAIN, &[range], 1_000_000_000).unwrap();
    free(&allocator, &[stitched]);
    let [other] = allocate(&allocator, [50]);
    assert_eq!((views(&allocator).0, reserved_mib(&allocator)), (2, 70), "it exceeds autoGC while the kernel runs");
    assert_eq!(counts(&gpu.call_stats(), [Call::Unmap]), [0]);
    free(&allocator, &[other]);
    gpu.advance(2_000_000_000);
    let [again] = allocate(&allocator, [58]);
    assert_eq!((views(&allocator).0, reserved_mib(&allocator)), (3, 78));
    assert_eq!(counts(&gpu.call_stats(), [Call::Unmap]), [2]);
    usable(&gpu, &allocator, again);
    let stats = gpu.call_stats();
    assert_eq!(counts(&stats, [Call::StreamSynchronize, Call::EventSynchronize]), [0, 0], "the CPU waits for nothing");
}

#[test]
fn an_sblock_that_cannot_be_dropped_does_not_fail_the_stitch() {
    for call in [Call::Unmap, Call::AddressFree] {
        let (gpu, allocator) = on("sim:h200", "autoGC:0,reuseLimit:1");
        let [a, x, b, y] = allocate(&allocator, [20, 10, 30, 10]);
        free(&allocator, &[a, b]);
        let [first] = allocate(&allocator, [40]);
        free(&allocator, &[first]);
        gpu.fail_nth(call, 1, Status::UNKNOWN);
        let [second] = allocate(&allocator, [46]);
        usable(&gpu, &allocator, second);
        free(&allocator, &[second]);
        let [third] = allocate(&allocator, [50]);
        assert_eq!((views(&allocator), reserved_mib(&allocator)), ((3, 0), 70), "{call}");
        usable(&gpu, &allocator, third);
        free(&allocator, &[third, x, y]);
        allocator.empty_cache().unwrap();
        drop(allocator);
        assert!(gpu.leaks().is_empty() && gpu.faults().is_empty(), "{call}: {}", gpu.leaks());
    }
}

/// An allocator with 70 MiB, of which 50 are free in two pBlocks, and idle sBlocks of these sizes over them.
fn with_idle_sblocks(options: &str, mib: &[u64]) -> (Arc<SimGpu>, Allocator) {
    let (gpu, allocator) = on("sim:h200", &format!("reuseLimit:1,{options}"));
    let [a, _, b, _] = allocate(&allocator, [20, 10, 30, 10]);
    free(&allocator, &[a, b]);
    for mib in mib {
        let [stitched] = allocate(&allocator, [*mib]);
        free(&allocator, &[stitched]);
    }
    (gpu, allocator)
}

#[test]
fn where_the_driver_maps_no_more_sblocks_go_and_the_stitch_is_tried_again() {
    for call in [Call::Reserve, Call::Map, Call::SetAccess] {
        // At the first refusal four times the request goes, by least recent use, and at the second all.
        for (refusals, dropped) in [(1, 4), (2, 5)] {
            let (gpu, allocator) = with_idle_sblocks("", &[34, 36, 38, 40, 42]);
            (1..=refusals).for_each(|nth| gpu.fail_nth(call, nth, Status::OUT_OF_MEMORY));
            let of_pblocks = 35;
            let [stitched] = allocate(&allocator, [32]);
            assert_eq!((views(&allocator), reserved_mib(&allocator)), ((6, 0), 70), "{call}");
            let left = if dropped == 4 { 21 } else { 0 };
            assert_eq!(allocator.stats().mappings, of_pblocks + 16 + left, "{call}, {refusals} refusals");
            usable(&gpu, &allocator, stitched);
        }
        // With no sBlock to drop, new memory in one piece takes fewer mappings.
        let (gpu, allocator) = with_idle_sblocks("", &[]);
        gpu.fail_nth(call, 1, Status::OUT_OF_MEMORY);
        let [grown] = allocate(&allocator, [48]);
        assert_eq!((views(&allocator), reserved_mib(&allocator)), ((0, 0), 118), "{call}");
        usable(&gpu, &allocator, grown);
    }
}

#[test]
fn where_the_driver_maps_no_more_sblocks_go_for_new_memory_too() {
    for call in [Call::Create, Call::Map, Call::SetAccess] {
        let (gpu, allocator) = with_idle_sblocks("fragLimit:35651584", &[34, 36, 38]);
        gpu.fail_nth(call, 1, Status::OUT_OF_MEMORY);
        let [grown] = allocate(&allocator, [32]);
        assert_eq!((reserved_mib(&allocator), allocator.stats().mappings), (70 + 32, 35 + 16), "{call}");
        assert_eq!(allocator.stats().num_alloc_retries, 0, "{call}: nothing else went");
        usable(&gpu, &allocator, grown);
    }
}

#[test]
fn blocks_serve_their_own_stream_only() {
    let (gpu, allocator) = on("sim:h200", "");
    let [a, _, b, _] = allocate(&allocator, [20, 10, 20, 10]);
    free(&allocator, &[a, b]);
    let [stitched] = allocate(&allocator, [40]);
    allocator.record_stream(stitched, SIDE).unwrap();
    gpu.hold(SIDE);
    free(&allocator, &[stitched]);
    let other = allocator.allocate(40 * MIB, SIDE).unwrap();
    assert_eq!(reserved_mib(&allocator), 100);
    let [elsewhere] = allocate(&allocator, [20]);
    assert!(elsewhere != a && elsewhere != b, "the side stream still uses both");
    gpu.finish(SIDE);
    assert_eq!(allocate(&allocator, [40]), [stitched]);
    free(&allocator, &[stitched, elsewhere, other]);
}

#[test]
fn whole_free_pblocks_are_given_back_with_the_idle_sblocks_over_them() {
    let (gpu, allocator) = on("sim:h200", "");
    let [a, x, b, y] = allocate(&allocator, [20, 10, 30, 10]);
    free(&allocator, &[a, b]);
    let [stitched] = allocate(&allocator, [50]);
    free(&allocator, &[stitched]);
    let [part] = allocate(&allocator, [4]);
    assert_eq!(part, a);
    assert_eq!(allocator.empty_cache().unwrap(), 30 * MIB, "a is split, and stays");
    assert_eq!((reserved_mib(&allocator), allocator.stats().mappings), (40, 20), "the sBlock went with b");
    free(&allocator, &[part, x]);
    assert_eq!(allocator.empty_cache().unwrap(), 30 * MIB);
    free(&allocator, &[y]);
    assert_eq!(allocator.empty_cache().unwrap(), 10 * MIB);
    assert_eq!((reserved_mib(&allocator), allocator.stats().mappings), (0, 0));
    assert_eq!(gpu.leaks().bytes, 0);
    drop(allocator);
    assert!(gpu.leaks().is_empty() && gpu.faults().is_empty(), "{}", gpu.leaks());
}

#[test]
fn the_tail_of_an_sblock_that_lends_its_head_stays_mapped() {
    let (gpu, allocator) = on("sim:h200", "");
    let [a, _, b, _] = allocate(&allocator, [20, 10, 30, 10]);
    free(&allocator, &[a, b]);
    let [stitched] = allocate(&allocator, [50]);
    free(&allocator, &[stitched]);
    let [_, _] = allocate(&allocator, [30, 20]);
    free(&allocator, &[a, b]);
    // The head of b alone is too small, so the sBlock lends 32 MiB: all of b, 2 MiB of a.
    let [head] = allocate(&allocator, [32]);
    assert_eq!(head, stitched);
    assert_eq!(allocator.empty_cache().unwrap(), 0);
    usable(&gpu, &allocator, head);
    free(&allocator, &[head]);
    assert_eq!(allocator.empty_cache().unwrap(), 50 * MIB);
    assert!(gpu.faults().is_empty());
}

#[test]
fn a_stitch_that_fails_leaves_nothing_behind() {
    for (call, nth) in [(Call::Create, 2), (Call::Map, 2), (Call::Map, 9), (Call::SetAccess, 2), (Call::Reserve, 1)] {
        let (gpu, allocator) = on("sim:h200", "");
        let [a, _, b, _] = allocate(&allocator, [20, 10, 30, 10]);
        free(&allocator, &[a, b]);
        let before = allocator.stats();
        gpu.fail_nth(call, nth, Status::UNKNOWN);
        let error = allocator.allocate(60 * MIB, MAIN).unwrap_err();
        assert!(matches!(&error, Error::Driver(error) if error.call == call), "{error}");
        let after = allocator.stats();
        assert_eq!(
            after.reserved_bytes.all.current, before.reserved_bytes.all.current,
            "{call}: the missing bytes went"
        );
        assert_eq!(
            (after.mappings, after.active_bytes.all.current),
            (before.mappings, before.active_bytes.all.current)
        );
        allocator.reports().check().unwrap();
        let info = gpu.memory_info().unwrap();
        assert_eq!(info.total - info.free, after.reserved_bytes.all.current);
        let [again] = allocate(&allocator, [60]);
        assert_eq!(reserved_mib(&allocator), 80);
        usable(&gpu, &allocator, again);
    }
}

#[test]
fn the_memory_limit_holds_for_what_is_missing() {
    let options = "per_process_memory_fraction:0.5";
    let (_, allocator) = on("sim:h200,capacity=200MiB", options);
    let [a, _, b, _] = allocate(&allocator, [20, 10, 30, 10]);
    free(&allocator, &[a, b]);
    let [stitched] = allocate(&allocator, [80]);
    assert_eq!(reserved_mib(&allocator), 100);
    assert!(allocator.allocate(2 * MIB, MAIN).unwrap_err().is_out_of_memory());
    free(&allocator, &[stitched]);
}

#[test]
fn a_snapshot_shows_every_byte_once_and_whose_it_is() {
    let (_, allocator) = on("sim:h200", "");
    let [a, _, b, _] = allocate(&allocator, [20, 10, 30, 10]);
    let side = allocator.allocate(16 * MIB, SIDE).unwrap();
    let small = allocator.allocate(1000, MAIN).unwrap();
    free(&allocator, &[a, b]);
    let [stitched] = allocate(&allocator, [46]);
    let snapshot = allocator.reports().snapshot();
    assert_eq!(snapshot.segments.iter().map(|segment| segment.total_size).sum::<u64>(), (70 + 16 + 2) * MIB);
    let of = |address: u64| snapshot.segments.iter().find(|segment| segment.address == address).unwrap();
    assert_eq!((of(stitched).total_size, of(stitched).blocks.len()), (46 * MIB, 1));
    assert_eq!((of(side).stream, of(stitched).stream), (SIDE, MAIN));
    let first =
        snapshot.segments.iter().find(|segment| segment.blocks.iter().any(|block| block.address == small)).unwrap();
    assert!(first.small && !first.expandable);
    // What the sBlock does not use of its last pBlock.
    assert_eq!(of(a + 16 * MIB).total_size, 4 * MIB);
}

#[test]
fn a_stitched_step_is_repeated_without_a_call() {
    let (gpu, allocator) = on("sim:h200", "");
    let step = |round: u64| {
        let mut live: Vec<u64> =
            (1..40).map(|k| allocator.allocate(k * 37 % 29 * MIB + 3 * MIB, MAIN).unwrap()).collect();
        for at in (0..26).rev().step_by(2) {
            allocator.free(live.swap_remove(at)).unwrap();
        }
        live.extend([90, 130, 70].map(|mib| allocator.allocate(mib * MIB, MAIN).unwrap()));
        live.drain(..).for_each(|address| allocator.free(address).unwrap());
        allocator.reports().check().unwrap_or_else(|broken| panic!("round {round}: {broken}"));
    };
    (0..4).for_each(step);
    let (calls, reused) = (gpu.call_stats(), views(&allocator).1);
    (4..8).for_each(step);
    assert_eq!(gpu.call_stats(), calls);
    assert!(views(&allocator).1 > reused, "sBlocks are found again");
}

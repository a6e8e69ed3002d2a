//! The rules of the strategies, one by one, against PyTorch's documented behaviour (2.11), on the simulated GPU.

use crate::simulated;
use seamalloc::driver::sim::SimGpu;
use seamalloc::driver::{Call, Driver, Status, StreamId};
use seamalloc::{Allocator, Config, Error, StrategyKind};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId::DEFAULT;
const SIDE: StreamId = StreamId(7);

fn on(device: &str, options: &str) -> (Arc<SimGpu>, Allocator) {
    simulated::on(device, Config::with_strategy(StrategyKind::Caching).overlaid(options).unwrap())
}

fn calls(gpu: &SimGpu, call: Call) -> u64 {
    gpu.call_stats().get(call).count
}

fn reserved(allocator: &Allocator) -> u64 {
    allocator.stats().reserved_bytes.all.current
}

#[test]
fn a_miss_takes_a_segment_of_pytorchs_size() {
    for (size, segment) in [(1, 2), (MIB, 2), (MIB + 1, 20), (10 * MIB - 512, 20), (10 * MIB, 10), (11 * MIB + 1, 12)] {
        let (_, allocator) = on("sim:h200", "");
        allocator.allocate(size, MAIN).unwrap();
        assert_eq!(reserved(&allocator), segment * MIB, "{size}");
        assert_eq!(allocator.stats().segment.all.current, 1);
    }
}

#[test]
fn a_large_rest_of_up_to_one_mib_stays_with_its_block() {
    let (_, allocator) = on("sim:h200", "");
    let whole = allocator.allocate(19 * MIB, MAIN).unwrap();
    assert_eq!(allocator.reports().size_of(whole).unwrap(), 20 * MIB, "1 MiB left over is not split off");
    let (_, allocator) = on("sim:h200", "");
    let a = allocator.allocate(9 * MIB, MAIN).unwrap();
    let b = allocator.allocate(9 * MIB, MAIN).unwrap();
    assert_eq!((b - a, reserved(&allocator)), (9 * MIB, 20 * MIB));
    assert_eq!(allocator.stats().inactive_split_bytes.all.current, 2 * MIB);
}

#[test]
fn small_and_large_requests_do_not_share_segments() {
    let (_, allocator) = on("sim:h200", "");
    allocator.allocate(2 * MIB, MAIN).unwrap();
    allocator.allocate(1000, MAIN).unwrap();
    let stats = allocator.stats();
    assert_eq!(stats.reserved_bytes.large_pool.current, 20 * MIB);
    assert_eq!(stats.reserved_bytes.small_pool.current, 2 * MIB);
    assert_eq!(stats.allocated_bytes.small_pool.current, 1024);
    assert_eq!(stats.requested_bytes.small_pool.current, 1000);
}

#[test]
fn the_best_fit_is_taken_and_the_lowest_address_among_equals() {
    let (_, allocator) = on("sim:h200", "");
    let blocks: Vec<u64> = (0..4).map(|i| allocator.allocate([30, 12, 12, 20][i] * MIB, MAIN).unwrap()).collect();
    for address in &blocks {
        allocator.free(*address).unwrap();
    }
    assert_eq!(allocator.allocate(12 * MIB, MAIN).unwrap(), blocks[1].min(blocks[2]));
    assert_eq!(allocator.allocate(15 * MIB, MAIN).unwrap(), blocks[3]);
}

#[test]
fn free_neighbours_merge() {
    let (_, allocator) = on("sim:h200", "");
    let [a, b, c] = [0, 1, 2].map(|_| allocator.allocate(4 * MIB, MAIN).unwrap());
    allocator.free(a).unwrap();
    allocator.free(c).unwrap();
    assert_eq!(allocator.stats().inactive_split.all.current, 2);
    allocator.free(b).unwrap();
    assert_eq!(allocator.stats().inactive_split.all.current, 0);
    assert_eq!(allocator.allocate(20 * MIB, MAIN).unwrap(), a);
}

#[test]
fn a_block_serves_its_own_stream_only() {
    for options in ["", "expandable_segments:True"] {
        let (_, allocator) = on("sim:h200", options);
        let a = allocator.allocate(20 * MIB, MAIN).unwrap();
        allocator.free(a).unwrap();
        let b = allocator.allocate(20 * MIB, SIDE).unwrap();
        assert_ne!(a, b);
        assert_eq!(reserved(&allocator), 40 * MIB, "{options}");
        assert_eq!(allocator.allocate(20 * MIB, MAIN).unwrap(), a);
    }
}

#[test]
fn oversize_blocks_are_neither_split_nor_lent_to_smaller_requests() {
    let (_, allocator) = on("sim:h200", "max_split_size_mb:100");
    let big = allocator.allocate(200 * MIB, MAIN).unwrap();
    assert_eq!(allocator.stats().oversize_segments.current, 1);
    assert_eq!(allocator.stats().oversize_allocations.current, 1);
    allocator.free(big).unwrap();
    let small = allocator.allocate(50 * MIB, MAIN).unwrap();
    assert_ne!(small, big, "a request below the limit takes a segment of its own");
    let near = allocator.allocate(190 * MIB, MAIN).unwrap();
    assert_eq!((near, allocator.reports().size_of(near).unwrap()), (big, 200 * MIB), "within 20 MiB, unsplit");
    allocator.free(near).unwrap();
    let far = allocator.allocate(150 * MIB, MAIN).unwrap();
    assert_ne!(far, big, "more than 20 MiB larger than the request");
}

#[test]
fn when_memory_is_short_cached_segments_are_given_back() {
    let (gpu, allocator) = on("sim:h200,capacity=100MiB", "");
    let a = allocator.allocate(60 * MIB, MAIN).unwrap();
    allocator.free(a).unwrap();
    allocator.allocate(80 * MIB, MAIN).unwrap();
    let stats = allocator.stats();
    assert_eq!((stats.num_alloc_retries, stats.num_ooms, stats.num_device_free), (1, 0, 1));
    assert_eq!((reserved(&allocator), calls(&gpu, Call::Free)), (80 * MIB, 1));
}

#[test]
fn oversize_segments_are_given_back_first_and_only_enough() {
    let (_, allocator) = on("sim:h200,capacity=400MiB", "max_split_size_mb:50");
    let blocks: Vec<u64> = (0..3).map(|_| allocator.allocate(100 * MIB, MAIN).unwrap()).collect();
    let small = allocator.allocate(30 * MIB, MAIN).unwrap();
    for address in blocks.into_iter().chain([small]) {
        allocator.free(address).unwrap();
    }
    allocator.allocate(180 * MIB, MAIN).unwrap();
    let stats = allocator.stats();
    assert_eq!(stats.num_alloc_retries, 0, "the last resort was not needed");
    assert_eq!(reserved(&allocator), (100 + 30 + 180) * MIB, "two of the three went");
}

#[test]
fn the_memory_fraction_limits_what_is_held() {
    let (gpu, allocator) = on("sim:h200,capacity=1000MiB", "per_process_memory_fraction:0.5");
    let a = allocator.allocate(400 * MIB, MAIN).unwrap();
    assert!(allocator.allocate(200 * MIB, MAIN).unwrap_err().is_out_of_memory());
    allocator.free(a).unwrap();
    allocator.allocate(450 * MIB, MAIN).unwrap();
    assert_eq!(allocator.stats().num_alloc_retries, 2);
    allocator.limits().set_fraction(1.0).unwrap();
    allocator.allocate(500 * MIB, MAIN).unwrap();
    assert!(allocator.limits().set_fraction(1.5).is_err());
    assert!(gpu.memory_info().unwrap().free < 100 * MIB);
}

#[test]
fn garbage_collection_gives_back_old_unused_segments() {
    let options = "per_process_memory_fraction:0.99,garbage_collection_threshold:0.5";
    let (_, allocator) = on("sim:h200,capacity=1000MiB", options);
    let old = allocator.allocate(300 * MIB, MAIN).unwrap();
    allocator.free(old).unwrap();
    let young = allocator.allocate(310 * MIB, MAIN).unwrap();
    for _ in 0..10 {
        let other = allocator.allocate(20 * MIB, MAIN).unwrap();
        allocator.free(other).unwrap();
    }
    allocator.free(young).unwrap();
    // 630 MiB are held of a limit of 990; above 495 the segment that lay unused longest goes.
    allocator.allocate(320 * MIB, MAIN).unwrap();
    let stats = allocator.stats();
    assert_eq!((stats.num_alloc_retries, stats.num_sync_all_streams), (0, 0));
    assert!(reserved(&allocator) < (300 + 310 + 20 + 320) * MIB, "{}", reserved(&allocator) / MIB);
}

#[test]
fn garbage_ages_with_the_searches_of_all_streams() {
    // `get_free_blocks_call_count` belongs to PyTorch's pool, which all streams share.
    let options = "per_process_memory_fraction:0.99,garbage_collection_threshold:0.5";
    let (_, allocator) = on("sim:h200,capacity=1000MiB", options);
    let old = allocator.allocate(240 * MIB, MAIN).unwrap();
    let young = allocator.allocate(250 * MIB, SIDE).unwrap();
    allocator.free(old).unwrap();
    for _ in 0..10 {
        let other = allocator.allocate(20 * MIB, SIDE).unwrap();
        allocator.free(other).unwrap();
    }
    allocator.free(young).unwrap();
    // 510 MiB are held, 495 are the threshold.
    allocator.allocate(300 * MIB, SIDE).unwrap();
    assert_eq!(reserved(&allocator), (250 + 20 + 300) * MIB, "the segment of the stream that searched no more goes");
    assert_eq!(allocator.allocate(250 * MIB, SIDE).unwrap(), young);
}

#[test]
fn a_memory_fraction_of_one_is_no_limit() {
    let options = "per_process_memory_fraction:1.0,garbage_collection_threshold:0.1";
    let (gpu, allocator) = on("sim:h200,capacity=1000MiB", options);
    for size in [300, 310, 320] {
        let address = allocator.allocate(size * MIB, MAIN).unwrap();
        allocator.free(address).unwrap();
    }
    assert_eq!(reserved(&allocator), 930 * MIB, "without a limit no garbage is collected");
    allocator.limits().set_fraction(0.5).unwrap();
    allocator.limits().set_fraction(1.0).unwrap();
    let Err(Error::OutOfMemory(report)) = allocator.allocate(2000 * MIB, MAIN) else {
        panic!("the device is smaller");
    };
    assert_eq!(report.limit, None);
    assert_eq!(calls(&gpu, Call::MemoryInfo), 1, "for the report; the limit is a part of what the device has");
}

#[test]
fn max_split_size_keeps_small_requests_off_large_free_blocks_of_expandable_segments() {
    let (_, allocator) = on("sim:h200", "expandable_segments:True,max_split_size_mb:40");
    let large = allocator.allocate(60 * MIB, MAIN).unwrap();
    let small = allocator.allocate(20 * MIB, MAIN).unwrap();
    allocator.free(large).unwrap();
    assert_ne!(allocator.allocate(20 * MIB, MAIN).unwrap(), large, "the edge grows instead");
    assert_eq!(allocator.allocate(45 * MIB, MAIN).unwrap(), large, "a request of at least 40 MiB may");
    assert_eq!(allocator.reports().size_of(large).unwrap(), 45 * MIB, "and it is split all the same");
    allocator.free(small).unwrap();
}

#[test]
fn empty_cache_gives_back_what_no_live_block_nails_down() {
    let (gpu, allocator) = on("sim:h200", "");
    let a = allocator.allocate(30 * MIB, MAIN).unwrap();
    let b = allocator.allocate(4 * MIB, MAIN).unwrap();
    allocator.free(a).unwrap();
    assert_eq!(allocator.empty_cache().unwrap(), 30 * MIB, "the segment of b is split and stays");
    allocator.free(b).unwrap();
    assert_eq!(allocator.empty_cache().unwrap(), 20 * MIB);
    assert_eq!(reserved(&allocator), 0);
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
}

#[test]
fn an_expandable_segment_grows_by_what_is_missing() {
    let (gpu, allocator) = on("sim:h200", "expandable_segments:True");
    let a = allocator.allocate(30 * MIB, MAIN).unwrap();
    assert_eq!(reserved(&allocator), 40 * MIB, "in units of 20 MiB");
    let b = allocator.allocate(25 * MIB, MAIN).unwrap();
    assert_eq!((b - a, reserved(&allocator)), (30 * MIB, 60 * MIB), "10 MiB at the end were free");
    assert_eq!((calls(&gpu, Call::Reserve), calls(&gpu, Call::Create), calls(&gpu, Call::SetAccess)), (1, 3, 2));
    allocator.allocate(512, MAIN).unwrap();
    assert_eq!(reserved(&allocator), 62 * MIB, "small requests have a segment of 2 MiB units");
    let stats = allocator.stats();
    assert_eq!((stats.segment.all.current, stats.inactive_split.all.current), (0, 0), "as PyTorch counts");
    assert_eq!((stats.num_device_alloc, stats.mappings), (3, 4));
}

#[test]
fn a_fixed_hole_is_preferred_to_the_growing_edge() {
    let (_, allocator) = on("sim:h200", "expandable_segments:True");
    let hole = allocator.allocate(30 * MIB, MAIN).unwrap();
    let end = allocator.allocate(29 * MIB, MAIN).unwrap();
    allocator.allocate(MIB + 512, MAIN).unwrap();
    let tail = allocator.allocate(15 * MIB, MAIN).unwrap();
    allocator.free(hole).unwrap();
    allocator.free(tail).unwrap();
    assert!(end > hole);
    // 19 MiB are free at the edge, and would be the tighter fit.
    assert_eq!(allocator.allocate(16 * MIB, MAIN).unwrap(), hole);
}

#[test]
fn whole_units_of_expandable_segments_are_given_back() {
    let (gpu, allocator) = on("sim:h200", "expandable_segments:True");
    let a = allocator.allocate(50 * MIB, MAIN).unwrap();
    let b = allocator.allocate(10 * MIB, MAIN).unwrap();
    allocator.free(a).unwrap();
    assert_eq!(allocator.empty_cache().unwrap(), 40 * MIB, "two whole units of the first 50 MiB");
    assert_eq!(calls(&gpu, Call::StreamSynchronize), 1, "its stream is waited for");
    let again = allocator.allocate(55 * MIB, MAIN).unwrap();
    assert_eq!(reserved(&allocator), 80 * MIB, "the hole holds 50 MiB only");
    assert_ne!(again, a);
    let fits = allocator.allocate(50 * MIB, MAIN).unwrap();
    assert_eq!(fits, a, "the hole is mapped again");
    for address in [b, again, fits] {
        allocator.free(address).unwrap();
    }
    allocator.empty_cache().unwrap();
    assert_eq!((reserved(&allocator), allocator.stats().mappings), (0, 0));
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
    assert!(gpu.faults().is_empty());
}

#[test]
fn a_growth_that_fails_halfway_leaves_nothing_mapped() {
    for call in [Call::Create, Call::Map, Call::SetAccess] {
        let (gpu, allocator) = on("sim:h200", "expandable_segments:True");
        let nth = if call == Call::SetAccess { 1 } else { 3 };
        gpu.fail_nth(call, nth, Status::UNKNOWN);
        let error = allocator.allocate(100 * MIB, MAIN).unwrap_err();
        assert!(matches!(&error, Error::Driver(error) if error.call == call), "{error}");
        allocator.reports().check().unwrap();
        assert_eq!(reserved(&allocator), 0);
        assert_eq!(gpu.memory_info().unwrap().free, gpu.memory_info().unwrap().total);
        assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
        allocator.allocate(100 * MIB, MAIN).unwrap();
        allocator.reports().check().unwrap();
        let info = gpu.memory_info().unwrap();
        assert_eq!(info.total - info.free, reserved(&allocator));
    }
}

/// Of several chunks some are mapped when the next cannot be, and stay so when that cannot be undone either.
#[test]
fn what_an_undoing_leaves_counts_as_reserved_and_nothing_else_does() {
    for mapped in 1..4 {
        let (gpu, allocator) = on("sim:h200", "strategy:expandable");
        gpu.fail_nth(Call::Map, mapped + 1, Status::UNKNOWN);
        gpu.fail_nth(Call::Unmap, 1, Status::UNKNOWN);
        let error = allocator.allocate(100 * MIB, MAIN).unwrap_err();
        // Its addresses are not given back while memory is mapped there.
        assert!(matches!(&error, Error::Driver(error) if error.call == Call::Map), "{error}");
        assert_eq!(reserved(&allocator), gpu.leaks().bytes);
        assert!(reserved(&allocator) > 0, "the failures were met");
        allocator.reports().check().unwrap();
        allocator.allocate(100 * MIB, MAIN).unwrap();
        assert_eq!(reserved(&allocator), gpu.leaks().bytes);
    }
}

/// A request of `max_split_size` is too large to be split for, and has a cached block that is not much larger.
#[test]
fn a_request_of_the_split_limit_is_above_it() {
    for (size, held) in [(32 * MIB, 40), (32 * MIB - 512, 72)] {
        let (_, allocator) = on("sim:h200", "max_split_size_mb:32");
        let cached = allocator.allocate(40 * MIB, MAIN).unwrap();
        allocator.free(cached).unwrap();
        let address = allocator.allocate(size, MAIN).unwrap();
        assert_eq!(reserved(&allocator), held * MIB, "{size}");
        let whole = if size == 32 * MIB { 40 * MIB } else { 32 * MIB };
        assert_eq!(allocator.reports().size_of(address), Ok(whole), "it is not split");
    }
}

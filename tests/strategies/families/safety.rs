//! The promises that the contract suite counts in bytes, for the strategies whose blocks are larger than requests: the
//! same promises, in sizes of blocks.

use super::model::MIB;
use super::{MAIN, held, on};
use seamalloc::driver::sim::Range;
use seamalloc::driver::{Driver, StreamId};
use seamalloc::{Allocator, Error};

const SIDE: StreamId = StreamId(8);
const OPTIONS: [&str; 5] = [
    "strategy:buddy,buddy_capacity_mb:2",
    "strategy:slab",
    "strategy:paddle-naive-best-fit,FLAGS_initial_gpu_memory_in_mb:2,FLAGS_reallocate_gpu_memory_in_mb:128",
    "strategy:paddle-thread-local,FLAGS_initial_gpu_memory_in_mb:2,FLAGS_reallocate_gpu_memory_in_mb:128",
    "strategy:exact,exact_buffer_mb:2",
];

fn block(allocator: &Allocator, address: u64) -> Range {
    Range { address, size: allocator.reports().size_of(address).unwrap() }
}

#[test]
fn a_block_that_another_stream_uses_waits_for_it() {
    for options in OPTIONS {
        let (gpu, allocator) = on("sim:h200", options);
        let address = allocator.allocate(30 * MIB, MAIN).unwrap();
        let pending = block(&allocator, address).size;
        allocator.record_stream(address, SIDE).unwrap();
        gpu.launch(SIDE, &[block(&allocator, address)], 1_000_000).unwrap();
        allocator.free(address).unwrap();
        let stats = allocator.stats();
        assert_eq!(stats.active_bytes.all.current - stats.allocated_bytes.all.current, pending, "{options}");
        let other = allocator.allocate(30 * MIB, MAIN).unwrap();
        assert_ne!(other, address, "{options}: it is in use on another stream");
        gpu.synchronize().unwrap();
        allocator.free(other).unwrap();
        let blocks = [(); 2].map(|()| allocator.allocate(30 * MIB, MAIN).unwrap());
        assert!(blocks.contains(&address), "{options}: once that has passed, it serves again");
        assert!(gpu.faults().is_empty(), "{options}: {:?}", gpu.faults());
        allocator.reports().check().unwrap();
    }
}

#[test]
fn memory_of_one_stream_serves_no_other() {
    for options in OPTIONS {
        let (gpu, allocator) = on("sim:h200,capacity=2GiB", options);
        let address = allocator.allocate(100 * MIB, MAIN).unwrap();
        let whole = block(&allocator, address);
        gpu.launch(MAIN, &[whole], 1_000_000).unwrap();
        allocator.free(address).unwrap();
        let other = allocator.allocate(100 * MIB, SIDE).unwrap();
        let theirs = block(&allocator, other);
        assert!(theirs.address >= whole.address + whole.size || whole.address >= theirs.address + theirs.size);
        gpu.launch(SIDE, &[theirs], 1_000).unwrap();
        allocator.reports().check().unwrap();
    }
}

#[test]
fn a_limit_is_reached_and_not_exceeded() {
    for options in OPTIONS {
        let (_, allocator) = on("sim:h200", &format!("{options},memory_limit:128MiB"));
        let size = 128 * MIB - 64;
        let whole = allocator.allocate(size, MAIN).unwrap();
        assert_eq!(held(&allocator), 128 * MIB, "{options}");
        let Err(Error::OutOfMemory(report)) = allocator.allocate(1, MAIN) else {
            panic!("{options}: beyond the limit")
        };
        assert_eq!((report.limit, report.reserved), (Some(128 * MIB), 128 * MIB), "{options}");
        allocator.free(whole).unwrap();
        // What nothing lives in makes room for another size.
        let small = allocator.allocate(1, MAIN).unwrap();
        assert!(held(&allocator) <= 128 * MIB, "{options}");
        allocator.free(small).unwrap();
        allocator.allocate(size, MAIN).unwrap();
        assert!(held(&allocator) <= 128 * MIB, "{options}");
        allocator.reports().check().unwrap();
    }
}

#[test]
fn what_a_report_says_could_be_met_is_met() {
    for options in OPTIONS {
        for live in [20, 40, 70, 100] {
            let (_, allocator) = on("sim:h200,capacity=200MiB", options);
            allocator.allocate(live * MIB, MAIN).unwrap();
            let Err(Error::OutOfMemory(report)) = allocator.allocate(190 * MIB, MAIN) else { panic!("{options}") };
            let met = report.advice.iter().find_map(|advice| match advice {
                seamalloc::out_of_memory::Advice::AskLess { at_most, .. } => Some(*at_most),
                _ => None,
            });
            let at_most = met.unwrap_or_else(|| panic!("{options}, {live}: {report}"));
            assert!(at_most > 0, "{options}, {live}: {report}");
            allocator.allocate(at_most, MAIN).unwrap_or_else(|error| panic!("{options}, {live}, {at_most}: {error}"));
        }
    }
}

#[test]
fn a_trim_gives_back_what_was_asked_for() {
    for options in OPTIONS {
        let (gpu, allocator) = on("sim:h200", options);
        let blocks = [(); 4].map(|()| allocator.allocate(120 * MIB, MAIN).unwrap());
        let sizes = blocks.map(|address| block(&allocator, address).size);
        let before = held(&allocator);
        [blocks[0], blocks[2]].into_iter().for_each(|address| allocator.free(address).unwrap());
        let given = allocator.trim(100 * MIB).unwrap();
        assert!(given >= sizes[0] && given < sizes[0] + sizes[2], "{options}: {given}");
        assert_eq!(held(&allocator), before - given);
        let info = gpu.memory_info().unwrap();
        assert_eq!(info.total - info.free, held(&allocator), "{options}");
    }
}

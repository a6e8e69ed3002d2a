//! A request is refused only when what it may reach does not suffice.

use super::watch::Watch;
use super::{CHUNK, MAIN, MIB, SIDE, balanced, on, reserved};
use crate::random::Random;
use seamalloc::driver::sim::Range;
use seamalloc::driver::{Call, CallStats, Driver, Status, StreamId};
use seamalloc::{Allocator, Error, StrategyKind};
use std::sync::Arc;

const GRANULE: u64 = 2 * MIB;

#[test]
fn free_chunks_of_streams_that_share_nothing_change_hands() {
    // 20 MiB of its own, 20 that the device still has, and 20 of the other stream's.
    for split in ["off", "last_resort"] {
        let options = format!("sharing:never,split:{split}");
        let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200,capacity=100MiB", &options);
        let side = allocator.allocate(60 * MIB, SIDE).unwrap();
        let main = allocator.allocate(20 * MIB, MAIN).unwrap();
        gpu.sim.hold(SIDE);
        allocator.free(side).unwrap();
        allocator.free(main).unwrap();
        allocator.allocate(60 * MIB, MAIN).unwrap();
        assert_eq!(reserved(&allocator), 100 * MIB, "{split}");
        assert_eq!(allocator.stats().num_alloc_retries, 1, "{split}");
        balanced(&gpu, &allocator);
        // The rest of the other stream's, and of the device.
        allocator.allocate(40 * MIB, StreamId(9)).unwrap();
        assert!(allocator.allocate(1, MAIN).unwrap_err().is_out_of_memory());
        balanced(&gpu, &allocator);
    }
}

#[test]
fn a_free_end_of_a_chunk_counts_beside_what_changes_hands() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200,capacity=80MiB", "sharing:never");
    let all = allocator.allocate(40 * MIB, MAIN).unwrap();
    allocator.free(all).unwrap();
    let _live = allocator.allocate(10 * MIB, MAIN).unwrap();
    let side = allocator.allocate(40 * MIB, SIDE).unwrap();
    allocator.free(side).unwrap();
    // 30 MiB are free here, ten of them in a chunk with the live block.
    allocator.allocate(70 * MIB, MAIN).unwrap();
    assert_eq!(allocator.stats().allocated_bytes.all.current, 80 * MIB);
    balanced(&gpu, &allocator);
}

#[test]
fn small_requests_find_room_in_free_chunks_of_others() {
    for sharing in ["never", "completed", "wait"] {
        let options = format!("sharing:{sharing}");
        let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200,capacity=40MiB", &options);
        let side = allocator.allocate(40 * MIB, SIDE).unwrap();
        gpu.sim.hold(SIDE);
        allocator.free(side).unwrap();
        let small = allocator.allocate(100, MAIN).unwrap();
        balanced(&gpu, &allocator);
        allocator.free(small).unwrap();
        // And the other way round: a slab for a large request.
        let slabs: Vec<u64> = (0..20).map(|_| allocator.allocate(MIB, SIDE).unwrap()).collect();
        slabs.iter().for_each(|address| allocator.free(*address).unwrap());
        allocator.allocate(40 * MIB, MAIN).unwrap();
        assert_eq!(reserved(&allocator), 40 * MIB, "{sharing}");
        balanced(&gpu, &allocator);
    }
}

#[test]
fn what_no_view_may_join_changes_its_place() {
    for options in ["max_view_mappings:0", "max_views:0", "max_view_address_space:0B"] {
        let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200,capacity=96MiB", options);
        let held: Vec<u64> = (0..6).map(|_| allocator.allocate(CHUNK, MAIN).unwrap()).collect();
        for index in [0, 2, 4] {
            allocator.free(held[index]).unwrap();
        }
        let joined = allocator.allocate(3 * CHUNK, MAIN).unwrap();
        assert_eq!((reserved(&allocator), allocator.stats().views_built), (96 * MIB, 0), "{options}");
        balanced(&gpu, &allocator);
        gpu.sim.launch(MAIN, &[Range { address: joined, size: 3 * CHUNK }], 1000).unwrap();
        assert!(allocator.allocate(1, MAIN).is_err());
        balanced(&gpu, &allocator);
    }
}

#[test]
fn nothing_is_given_back_where_it_would_not_suffice() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200,capacity=100MiB", "sharing:never");
    let side = allocator.allocate(60 * MIB, SIDE).unwrap();
    let _main = allocator.allocate(20 * MIB, MAIN).unwrap();
    allocator.free(side).unwrap();
    assert!(allocator.allocate(82 * MIB, MAIN).unwrap_err().is_out_of_memory());
    assert_eq!((reserved(&allocator), allocator.stats().num_device_free), (80 * MIB, 0));
    assert_eq!(allocator.allocate(60 * MIB, SIDE).unwrap(), side);
    balanced(&gpu, &allocator);
}

/// A device full of memory that is free to others only, and a request that has to have it; large or small.
fn last_resort(options: &str, size: u64) -> (Arc<Watch>, Allocator, Result<u64, Error>, CallStats) {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200,capacity=96MiB", options);
    prepare(&gpu, &allocator);
    let before = gpu.call_stats();
    let result = allocator.allocate(size, MAIN);
    let made = gpu.call_stats().since(&before);
    (gpu, allocator, result, made)
}

fn prepare(gpu: &Watch, allocator: &Allocator) {
    let held: Vec<u64> = (0..6).map(|index| allocator.allocate(CHUNK, StreamId(index % 2)).unwrap()).collect();
    gpu.sim.hold(StreamId(1));
    for index in [0, 1, 3, 4] {
        allocator.record_stream(held[index], SIDE).unwrap();
        allocator.free(held[index]).unwrap();
    }
}

#[test]
fn any_call_of_the_last_resort_may_fail() {
    let mut failed = 0;
    for options in ["sharing:never,split:off", "sharing:never", "sharing:wait,max_views:0,split:off"] {
        for size in [3 * CHUNK, 100] {
            let (.., plain, made) = last_resort(options, size);
            plain.unwrap();
            for call in Call::ALL.into_iter().filter(|call| *call != Call::MemoryInfo) {
                for nth in 1..=made.get(call).count {
                    for status in [Status::UNKNOWN, Status::OUT_OF_MEMORY] {
                        let name = format!("{options}, {size} bytes: {call} number {nth}, {status}");
                        let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200,capacity=96MiB", options);
                        prepare(&gpu, &allocator);
                        let before = allocator.stats();
                        gpu.sim.fail_nth(call, nth, status);
                        match allocator.allocate(size, MAIN) {
                            Ok(address) => allocator.free(address).unwrap(),
                            Err(Error::Driver(_) | Error::OutOfMemory(_)) => failed += 1,
                            Err(error) => panic!("{name}: {error}"),
                        }
                        balanced(&gpu, &allocator);
                        let after = allocator.stats();
                        assert_eq!(after.allocated_bytes.all.current, before.allocated_bytes.all.current, "{name}");
                        // The next one finds what the first could not get.
                        let again = allocator.allocate(size, MAIN).unwrap_or_else(|error| panic!("{name}: {error}"));
                        balanced(&gpu, &allocator);
                        allocator.free(again).unwrap();
                        drop(allocator);
                        assert!(gpu.sim.leaks().bytes == 2 * CHUNK, "{name}: {}", gpu.sim.leaks());
                    }
                }
            }
        }
    }
    assert!(failed > 50, "{failed} failures");
}

/// A random program with kernels on all it frees, on a device that is nearly always full.
struct Program {
    gpu: Arc<Watch>,
    allocator: Allocator,
    random: Random,
    live: Vec<Range>,
    limit: u64,
    /// Says which program it is.
    name: String,
}

/// How often the edge was reached.
#[derive(Clone, Copy, Debug, Default)]
struct Edge {
    refused: u64,
    /// Requests of all that could be reached, to the byte.
    exact: u64,
    /// Misses that the last resort met.
    replaced: u64,
}

impl Program {
    fn new(options: &str, seed: u64) -> Self {
        let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200,capacity=200MiB", options);
        let limit = allocator.config().memory_limit.unwrap_or(u64::MAX);
        Self { gpu, allocator, random: Random(seed), live: Vec::new(), limit, name: format!("{options} {seed}") }
    }

    /// Bytes of whole chunks without a live byte, and what could still be taken.
    fn reachable(&self) -> u64 {
        let info = self.gpu.memory_info().unwrap();
        let held = info.total - info.free;
        held - self.gpu.touched(self.live.iter().copied()) + info.free.min(self.limit.saturating_sub(held))
    }

    fn step(&mut self, edge: &mut Edge) {
        let stream = StreamId(self.random.below(3));
        match self.random.below(10) {
            0..5 => self.request(stream, edge),
            5..9 if !self.live.is_empty() => self.free(stream),
            _ => self.gpu.sim.advance(self.random.below(2_000_000)),
        }
        balanced(&self.gpu, &self.allocator);
    }

    /// A request that is refused must be one that could not be met.
    fn request(&mut self, stream: StreamId, edge: &mut Edge) {
        let most = [1000, MIB, 8 * MIB, 30 * MIB, 120 * MIB][self.random.below(5) as usize];
        let all = self.reachable();
        // Now and then all that can be had.
        let size = if self.random.below(6) == 0 { all.max(1) } else { 1 + self.random.below(most) };
        let needed = size.next_multiple_of(GRANULE);
        edge.exact += u64::from(needed == all);
        match self.allocator.allocate(size, stream) {
            Ok(address) => self.live.push(Range { address, size: self.allocator.reports().size_of(address).unwrap() }),
            Err(Error::OutOfMemory(report)) => {
                edge.refused += 1;
                let (name, pending) = (&self.name, report.pending);
                assert!(needed > self.reachable(), "{name}: {size} of {all}, {pending} pending");
            }
            Err(error) => panic!("{}: {error}", self.name),
        }
    }

    fn free(&mut self, stream: StreamId) {
        let range = self.live.swap_remove(self.random.below(self.live.len() as u64) as usize);
        if self.random.below(3) == 0 {
            self.allocator.record_stream(range.address, stream).unwrap();
        }
        self.gpu.sim.launch(stream, &[range], self.random.below(3_000_000)).unwrap();
        self.allocator.record_stream(range.address, stream).unwrap();
        self.allocator.free(range.address).unwrap();
    }
}

/// Runs programs under each of these options, often at the edge, in turn without splits and with them.
fn programs(options: &[&str], first_seed: u64) {
    let mut edge = Edge::default();
    let rounds = ["off", "last_resort", "off", "last_resort"];
    let each = rounds.iter().flat_map(|split| options.iter().map(move |options| format!("{options},split:{split}")));
    for (seed, options) in (first_seed..).zip(each) {
        let mut program = Program::new(&options, seed);
        for _ in 0..250 {
            program.step(&mut edge);
        }
        edge.replaced += program.allocator.stats().num_alloc_retries;
    }
    // Otherwise the programs would be too tame to show anything.
    let Edge { refused, exact, replaced } = edge;
    let least = 20 * options.len() as u64;
    assert!(refused > 2 * least && exact > 2 * least && replaced > least, "{edge:?}");
}

#[test]
fn no_request_is_refused_while_whole_free_chunks_suffice() {
    programs(&["sharing:never", "sharing:completed", "sharing:wait"], 0);
}

#[test]
fn nor_while_the_limit_allows_more() {
    programs(&["sharing:never,memory_limit:150MiB", "sharing:wait,memory_limit:150MiB"], 12);
}

#[test]
fn nor_however_large_chunks_are() {
    programs(&["sharing:never,chunk_size_mb:64", "sharing:wait,chunk_size_mb:2"], 20);
}

#[test]
fn nor_at_the_bounds_of_views() {
    let bounds = [
        "sharing:never,max_view_mappings:12",
        "sharing:wait,max_view_mappings:12",
        "sharing:completed,max_views:2",
        "sharing:never,max_view_address_space:100MiB",
        "sharing:wait,max_views:0",
    ];
    programs(&bounds, 28);
}

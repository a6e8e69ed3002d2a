//! Memory of other streams: had too late, or too early.

use super::{MAIN, MIB, SIDE, on, sound};
use crate::simulated;
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{Range, SimGpu};
use seamalloc::{Allocator, Config, StrategyKind};

const READER: StreamId = StreamId(8);
const KERNEL_NS: u64 = 1 << 34;

/// Paddle 79427 and RMM 2039: two streams were enough to run out of memory, because what was idle with one of them, or
/// among blocks of another size, was not released for the other.
#[test]
fn all_that_is_free_of_the_device_serves_any_stream() {
    for kind in StrategyKind::MAIN {
        let (gpu, allocator) = on(kind, "sim:h200,capacity=200MiB");
        for (round, stream) in [MAIN, SIDE, READER, MAIN, SIDE].into_iter().enumerate() {
            // Kernels still run when the next stream wants the memory.
            let small: Vec<u64> = (0..90).map(|_| allocator.allocate(MIB, stream).unwrap()).collect();
            let large: Vec<u64> = (0..5).map(|_| allocator.allocate(20 * MIB, stream).unwrap()).collect();
            for address in small.into_iter().chain(large) {
                gpu.launch(stream, &[Range { address, size: MIB }], 100_000).unwrap();
                allocator.free(address).unwrap();
            }
            let next = [SIDE, READER, MAIN, SIDE, READER][round];
            let whole = allocator.allocate(200 * MIB, next).unwrap();
            gpu.launch(next, &[Range { address: whole, size: 200 * MIB }], 100_000).unwrap();
            allocator.free(whole).unwrap();
            sound(&gpu, &allocator);
        }
    }
}

/// Another stream gets memory of `size` bytes only after `ends`.
fn is_had_after(gpu: &SimGpu, allocator: &Allocator, size: u64, stream: StreamId, ends: u64) {
    allocator.limits().set_bytes(Some(allocator.reports().reserved())).unwrap();
    let address = allocator.allocate(size, stream).unwrap();
    gpu.launch(stream, &[Range { address, size }], 1).unwrap();
    let starts = gpu.done_at(stream).unwrap().max(gpu.now_ns());
    assert!(starts >= ends, "{}: it starts at {starts}, and is used until {ends}", allocator.config());
    sound(gpu, allocator);
}

/// Paddle's second VMM allocator: the rest of a block that is split must be waited for as long as the whole block, although
/// the part that is handed out on the block's own stream need not be waited for at all.
#[test]
fn the_rest_of_a_split_block_is_waited_for_as_the_whole_was() {
    for options in
        ["", "sharing:completed", "sharing:never", "strategy:gmlake", "strategy:expandable", "strategy:caching"]
    {
        for under in [MAIN, READER] {
            let (gpu, allocator) = simulated::on("sim:h200,capacity=1GiB", Config::parse(options).unwrap());
            let block = allocator.allocate(96 * MIB, MAIN).unwrap();
            gpu.launch(under, &[Range { address: block, size: 96 * MIB }], KERNEL_NS).unwrap();
            allocator.free_with_current_stream(block, under).unwrap();
            let ends = gpu.done_at(under).unwrap();
            // The block's own stream has a part at once, except where the block waits.
            let part = allocator.allocate(16 * MIB, MAIN).unwrap();
            let split = part == block;
            assert_eq!(split, under == MAIN || options != "strategy:expandable", "{options}");
            // What is part of a split segment serves nobody else where memory is neither passed on nor given back in units.
            if !split || matches!(options, "" | "sharing:completed" | "strategy:expandable") {
                is_had_after(&gpu, &allocator, 64 * MIB, SIDE, ends);
            }
        }
    }
}

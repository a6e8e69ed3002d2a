//! When live memory counts as low: then freed memory of all streams is gathered, which the end of an epoch shows.

use crate::simulated;
use seamalloc::driver::sim::SimGpu;
use seamalloc::driver::{Call, Driver, StreamId};
use seamalloc::{Allocator, Config};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId::DEFAULT;
const SIDE: StreamId = StreamId(7);
/// A part of a slab. As many as there are here are no long epoch.
const BLOCK: u64 = MIB / 16;

/// An allocator that holds 4 MiB, of which another stream has 2 MiB, half of it free: gathering ends an epoch.
fn held() -> (Arc<SimGpu>, Allocator) {
    let (gpu, allocator) = simulated::on("sim:h200", Config::parse("chunk_size_mb:2,sharing:wait").unwrap());
    let main: Vec<u64> = (0..32).map(|_| allocator.allocate(BLOCK, MAIN).unwrap()).collect();
    let side = [(); 2].map(|()| allocator.allocate(MIB, SIDE).unwrap());
    gpu.hold(SIDE);
    allocator.free(side[0]).unwrap();
    main.into_iter().for_each(|address| allocator.free(address).unwrap());
    assert_eq!(allocator.reports().reserved(), 4 * MIB);
    (gpu, allocator)
}

fn ended(gpu: &SimGpu) -> u64 {
    gpu.call_stats().get(Call::EventRecord).count
}

/// Takes this many blocks, and frees them again, one by one. Returns at how many blocks still live memory was low.
fn step(gpu: &SimGpu, allocator: &Allocator, blocks: usize) -> Vec<usize> {
    let taken: Vec<u64> = (0..blocks).map(|_| allocator.allocate(BLOCK, MAIN).unwrap()).collect();
    let mut low = Vec::new();
    for (freed, address) in taken.into_iter().enumerate() {
        let before = ended(gpu);
        allocator.free(address).unwrap();
        if ended(gpu) > before {
            low.push(blocks - freed - 1);
        }
    }
    low
}

/// Low is a quarter of the reserved memory, 16 blocks, below the last high; and later, where the last step was lowest.
#[test]
fn memory_is_low_a_quarter_below_its_high_and_where_the_last_step_was_lowest() {
    let (gpu, allocator) = held();
    let low = [32, 32, 32].map(|blocks| step(&gpu, &allocator, blocks));
    assert_eq!(low, [vec![15], vec![15, 0], vec![15, 0]]);
    // The rest of the program stays live.
    let (gpu, allocator) = held();
    let rest = [(); 6].map(|()| allocator.allocate(BLOCK, MAIN).unwrap());
    assert_eq!([26, 26].map(|blocks| step(&gpu, &allocator, blocks)), [vec![9], vec![9, 0]]);
    rest.into_iter().for_each(|address| allocator.free(address).unwrap());
}

#[test]
fn a_rise_of_a_quarter_is_no_step() {
    let (gpu, allocator) = held();
    assert_eq!([32, 16, 32].map(|blocks| step(&gpu, &allocator, blocks)), [vec![15], vec![], vec![15, 0]]);
}

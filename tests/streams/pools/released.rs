//! The fate of a pool's memory, and of its live blocks, once nobody uses the pool.

use super::{GRAPH, MIB, SIDE, reserved};
use crate::simulated;
use seamalloc::Config;
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::Range;

#[test]
fn released_memory_is_no_more_passed_than_its_stream() {
    let config = Config::parse("strategy:stitch,sharing:completed,max_view_mappings:4").unwrap();
    let (gpu, allocator) = simulated::on("sim:h200", config);
    // Epochs of the stream that are passed already.
    let early = allocator.allocate(16 * MIB, GRAPH).unwrap();
    allocator.free(early).unwrap();
    allocator.allocate(16 * MIB, SIDE).unwrap();
    let pool = allocator.pools().create();
    let blocks: Vec<u64> = (0..3).map(|_| allocator.pools().allocate(pool, 16 * MIB, GRAPH).unwrap()).collect();
    [0, 2].iter().for_each(|at| allocator.free(blocks[*at]).unwrap());
    let stitched = allocator.pools().allocate(pool, 32 * MIB, GRAPH).unwrap();
    assert_eq!(allocator.stats().views_built, 1);
    gpu.launch(GRAPH, &[Range { address: stitched, size: 32 * MIB }], 1_000_000_000).unwrap();
    let memory = gpu.physical(Range { address: stitched, size: 32 * MIB });
    allocator.free(stitched).unwrap();
    allocator.pools().release(pool).unwrap();
    let busy = gpu.done_at(GRAPH).unwrap();
    // Others want memory, and more mappings than there may be.
    let held: Vec<u64> = (0..6).map(|_| allocator.allocate(16 * MIB, SIDE).unwrap()).collect();
    [0, 2, 4].iter().for_each(|at| allocator.free(held[*at]).unwrap());
    for size in [32 * MIB, 48 * MIB] {
        let address = allocator.allocate(size, SIDE).unwrap();
        let taken = gpu.physical(Range { address, size });
        assert!(!taken.iter().any(|piece| memory.iter().any(|used| used.memory == piece.memory)), "in use");
        allocator.free(address).unwrap();
    }
    assert!(gpu.now_ns() < busy && gpu.faults().is_empty(), "{:?}", gpu.faults());
    allocator.reports().check().unwrap();
    // Once it has passed, the memory is anyone's.
    gpu.advance(busy);
    let held = reserved(&allocator);
    allocator.allocate(16 * MIB, StreamId(9)).unwrap();
    assert_eq!(reserved(&allocator), held);
}

#[test]
fn released_memory_serves_other_streams_once_its_own_has_passed() {
    let config = Config::parse("strategy:stitch,sharing:completed").unwrap();
    let (gpu, allocator) = simulated::on("sim:h200", config);
    let pool = allocator.pools().create();
    let address = allocator.pools().allocate(pool, 40 * MIB, GRAPH).unwrap();
    gpu.launch(GRAPH, &[Range { address, size: 40 * MIB }], 1_000_000).unwrap();
    allocator.free(address).unwrap();
    allocator.pools().release(pool).unwrap();
    allocator.allocate(40 * MIB, SIDE).unwrap();
    assert_eq!(reserved(&allocator), 80 * MIB);
    gpu.advance(2_000_000);
    assert_eq!(allocator.allocate(40 * MIB, SIDE).unwrap(), address);
    assert_eq!(reserved(&allocator), 80 * MIB);
}

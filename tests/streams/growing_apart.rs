//! Where streams share nothing, each grows in a range of its own, and small blocks find room among what others have freed.

use crate::random::Random;
use crate::simulated;
use seamalloc::driver::sim::SimGpu;
use seamalloc::driver::{Driver, StreamId};
use seamalloc::{Allocator, Config};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const A: StreamId = StreamId(1);
const B: StreamId = StreamId(2);
/// A kernel takes so long that the GPU passes nothing by itself.
const LONG: u64 = 1_000_000_000;

fn on(device: &str, options: &str) -> (Arc<SimGpu>, Allocator) {
    simulated::on(device, Config::parse(options).unwrap())
}

#[test]
fn streams_that_grow_in_turns_lie_apart() {
    let (_, allocator) = on("sim:h200", "sharing:never");
    let mut ends = [0; 5];
    for round in 0..60 {
        let size = (1 + round % 7) * 6 * MIB;
        for (stream, end) in (1..).zip(&mut ends) {
            let address = allocator.allocate(size, StreamId(stream)).unwrap();
            // Behind what the stream got before.
            assert!(round == 0 || address == *end, "stream {stream}, round {round}");
            *end = address + size;
        }
    }
    assert_eq!(allocator.stats().views_built, 0);
    allocator.reports().check().unwrap();
}

#[test]
fn streams_that_replace_blocks_in_turns_build_few_views() {
    let (_, allocator) = on("sim:h200", "sharing:never");
    let (mut random, mut live) = (Random(1), vec![[0; 48]; 4]);
    for round in 0..1000 {
        for (stream, live) in (1..).zip(&mut live) {
            let place = &mut live[round % 48];
            if *place != 0 {
                allocator.free(*place).unwrap();
            }
            *place = allocator.allocate(MIB + random.below(63 * MIB), StreamId(stream)).unwrap();
        }
    }
    // Between each other's memory they would build 1,410.
    let built = allocator.stats().views_built;
    assert!(built < 150, "{built}");
}

/// A small request finds no memory for a slab: what another stream has freed serves it without a wait of the CPU.
#[test]
fn a_refused_slab_is_cut_out_of_what_another_stream_has_freed() {
    let (gpu, allocator) = on("sim:h200,capacity=1000MiB", "");
    let other = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::default()).unwrap();
    let freed = allocator.allocate(100 * MIB, A).unwrap();
    gpu.launch(A, &[], LONG).unwrap();
    allocator.free(freed).unwrap();
    other.allocate(gpu.memory_info().unwrap().free, A).unwrap();
    let address = allocator.allocate(512, B).unwrap();
    assert_eq!(allocator.stats().num_alloc_retries, 0, "it was served without the last resort");
    allocator.free(address).unwrap();
    allocator.reports().check().unwrap();
}

#[test]
fn many_streams_find_room_for_all_of_the_device() {
    for (streams, sharing) in [1, 2, 7, 40].into_iter().flat_map(|streams| [(streams, "never"), (streams, "wait")]) {
        let (_, allocator) = on("sim:h200,capacity=4GiB", &format!("sharing:{sharing}"));
        let sizes = [20, 34, 130, 6, 62];
        let mut refused = 0;
        for (stream, size) in (1..=streams).cycle().zip(sizes.into_iter().cycle()) {
            refused = if allocator.allocate(size * MIB, StreamId(stream)).is_ok() { 0 } else { refused + 1 };
            if refused == sizes.len() {
                break;
            }
        }
        // A request of 6 MiB is refused.
        let left = (4 << 30) - allocator.stats().allocated_bytes.all.current;
        assert!(left < 6 * MIB, "{streams} streams leave {left} under `sharing:{sharing}`");
        allocator.reports().check().unwrap();
    }
}

//! In which stream's order a block goes back to the pool.

use super::{MAIN, MIB, SIDE, balanced, calls, on};
use seamalloc::driver::sim::Range;
use seamalloc::driver::{Call, MemoryPools, StreamId};

const THIRD: StreamId = StreamId(9);

#[test]
fn a_block_of_one_stream_is_freed_there_and_serves_it_at_once() {
    let (gpu, allocator) = on("sim:h200", "");
    let address = allocator.allocate(40 * MIB, SIDE).unwrap();
    gpu.launch(SIDE, &[Range { address, size: 40 * MIB }], 1_000_000).unwrap();
    allocator.free(address).unwrap();
    assert_eq!(allocator.stats().active_bytes.all.current, 0, "nothing waits for it here");
    assert_eq!(allocator.allocate(40 * MIB, SIDE), Ok(address));
    assert_eq!([Call::EventRecord, Call::StreamWait, Call::StreamCreate].map(|call| calls(&gpu, call)), [0; 3]);
    balanced(&gpu, &allocator);
}

#[test]
fn streams_that_use_a_block_are_joined_on_another_and_it_is_freed_there() {
    let (gpu, allocator) = on("sim:h200", "");
    let address = allocator.allocate(40 * MIB, MAIN).unwrap();
    let whole = Range { address, size: 40 * MIB };
    for stream in [MAIN, SIDE, THIRD] {
        gpu.launch(stream, &[whole], 1_000_000).unwrap();
    }
    allocator.record_stream(address, SIDE).unwrap();
    allocator.record_stream(address, THIRD).unwrap();
    allocator.free(address).unwrap();
    assert_eq!([Call::EventRecord, Call::StreamWait, Call::PoolFree].map(|call| calls(&gpu, call)), [3, 3, 1]);
    // Neither stream is in its order.
    for stream in [MAIN, SIDE] {
        let other = allocator.allocate(40 * MIB, stream).unwrap();
        assert!(other.abs_diff(address) >= 40 * MIB);
    }
    gpu.advance(10_000_000);
    assert_eq!(allocator.allocate(40 * MIB, MAIN), Ok(address), "the free is complete");
    balanced(&gpu, &allocator);
}

/// The check behind the other tests: it notices a free that waits for too little.
#[test]
fn a_free_that_comes_too_early_is_a_fault() {
    let (gpu, allocator) = on("sim:h200", "");
    let address = allocator.allocate(40 * MIB, MAIN).unwrap();
    gpu.launch(SIDE, &[Range { address, size: 40 * MIB }], 1_000_000).unwrap();
    // The stream is not named.
    allocator.free(address).unwrap();
    assert_eq!(gpu.faults().len(), 1);
    assert!(gpu.faults()[0].to_string().contains("does not wait for a kernel on stream 0x8"), "{}", gpu.faults()[0]);
}

#[test]
fn above_its_ratio_paddles_throttle_lets_the_requests_stream_wait() {
    // 200 MiB are pending, and count twice: 400 of 1,000 MiB.
    for (ratio, waits, next_waits) in [("0.3", 1, 0), ("0.4", 0, 1), ("0.9", 0, 0)] {
        let options = format!("FLAGS_cuda_malloc_async_pool_memory_throttle_ratio:{ratio}");
        let (gpu, allocator) = on("sim:h200,capacity=1000MiB", &options);
        let address = allocator.allocate(200 * MIB, MAIN).unwrap();
        allocator.record_stream(address, SIDE).unwrap();
        gpu.launch(SIDE, &[Range { address, size: 200 * MIB }], 1_000_000_000).unwrap();
        allocator.free(address).unwrap();
        let before = calls(&gpu, Call::StreamWait);
        let next = allocator.allocate(200 * MIB, MAIN).unwrap();
        assert_eq!(calls(&gpu, Call::StreamWait) - before, waits, "{ratio}");
        assert_eq!(next == address, waits == 1, "{ratio}: behind the wait, the memory is in its order");
        // Of those that have waited nothing was freed since; for 0.4 it is 600 of 1,000 MiB by then.
        allocator.allocate(MIB, MAIN).unwrap();
        assert_eq!(calls(&gpu, Call::StreamWait) - before, waits + next_waits, "{ratio}");
        balanced(&gpu, &allocator);
    }
}

#[test]
fn a_stream_that_has_ended_frees_nothing() {
    let (gpu, allocator) = on("sim:h200", "");
    let addresses = [(); 2].map(|()| allocator.allocate(8 * MIB, SIDE).unwrap());
    gpu.launch(SIDE, &[Range { address: addresses[1], size: MIB }], 1_000_000).unwrap();
    allocator.streams().forget(SIDE).unwrap();
    gpu.destroy_stream(SIDE);
    allocator.free(addresses[0]).unwrap();
    // And one of which the allocator was not told.
    let unknown = allocator.allocate(8 * MIB, THIRD).unwrap();
    gpu.launch(THIRD, &[Range { address: unknown, size: MIB }], 1_000_000).unwrap();
    gpu.destroy_stream(THIRD);
    allocator.free(unknown).unwrap();
    allocator.free(addresses[1]).unwrap();
    balanced(&gpu, &allocator);
}

#[test]
fn frees_that_fail_leave_the_block_live() {
    use seamalloc::driver::Status;
    for call in [Call::PoolFree, Call::EventRecord, Call::StreamWait, Call::StreamCreate] {
        let (gpu, allocator) = on("sim:h200", "");
        let address = allocator.allocate(MIB, MAIN).unwrap();
        allocator.record_stream(address, SIDE).unwrap();
        gpu.fail_nth(call, 1, Status::UNKNOWN);
        assert!(allocator.free(address).is_err(), "{call}");
        assert_eq!(allocator.reports().size_of(address), Ok(MIB), "{call}");
        balanced(&gpu, &allocator);
        allocator.free(address).unwrap();
        drop(allocator);
        assert!(gpu.leaks().is_empty(), "{call}: {}", gpu.leaks());
    }
    // A pool that cannot be destroyed is left, and said to be.
    let (gpu, allocator) = on("sim:h200", "");
    allocator.free(allocator.allocate(MIB, MAIN).unwrap()).unwrap();
    gpu.fail_nth(Call::PoolDestroy, 1, Status::UNKNOWN);
    drop(allocator);
    assert_eq!((gpu.leaks().pools, gpu.leaks().bytes), (1, 0));
    assert!(gpu.pool_free(1, MAIN).is_err());
}

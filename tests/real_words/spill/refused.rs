//! A machine, or a device, that refuses memory for an exchange: what is tried, and what stays as it was.

use crate::device::{MAIN, MIB};
use seamalloc::driver::sim::SimGpu;
use seamalloc::driver::{Call, Driver, Status};
use seamalloc::{Allocator, Config};
use std::sync::Arc;

/// How many refusals end an attempt.
const MOST: u64 = 16;

/// Blocks of 2 MiB in chunks of their own fill a device.
fn twenty() -> (Arc<SimGpu>, Allocator, Vec<u64>) {
    let gpu = Arc::new(SimGpu::new("sim:h200,capacity=40MiB".parse().unwrap()).unwrap());
    let config = Config::parse("chunk_size_mb:2,spill:host=1GiB").unwrap();
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), config).unwrap();
    let blocks = (0..20).map(|_| allocator.allocate(2 * MIB, MAIN).unwrap()).collect();
    (gpu, allocator, blocks)
}

/// Lets all calls of a kind find too little memory. Returns how many were made by `run`.
fn refusing(gpu: &SimGpu, call: Call, run: impl FnOnce()) -> u64 {
    (1..100).for_each(|nth| gpu.fail_nth(call, nth, Status::OUT_OF_MEMORY));
    let before = gpu.call_stats();
    run();
    gpu.fail_no_more();
    gpu.call_stats().since(&before).get(call).count
}

#[test]
fn a_machine_without_memory_is_asked_a_few_times_and_the_request_refused() {
    let (gpu, allocator, blocks) = twenty();
    let asked = refusing(&gpu, Call::CreateOnHost, || {
        assert!(allocator.allocate(36 * MIB, MAIN).unwrap_err().is_out_of_memory());
    });
    let spills = allocator.stats().spills;
    assert_eq!((asked, spills.chunks, spills.requests), (MOST, 0, 0));
    allocator.reports().check().unwrap();
    let new = allocator.allocate(36 * MIB, MAIN).unwrap();
    assert_eq!(allocator.stats().spilled_bytes.current, 36 * MIB);
    [new].into_iter().chain(blocks).for_each(|address| allocator.free(address).unwrap());
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
}

#[test]
fn a_device_without_memory_is_asked_a_few_times_and_what_is_spilled_stays() {
    let (gpu, allocator, blocks) = twenty();
    let new = allocator.allocate(40 * MIB, MAIN).unwrap();
    allocator.free(new).unwrap();
    let asked = refusing(&gpu, Call::Create, || assert_eq!(allocator.spill().restore(), Ok(0)));
    assert_eq!((asked, allocator.stats().spilled_bytes.current), (MOST, 40 * MIB));
    allocator.reports().check().unwrap();
    assert_eq!(allocator.spill().restore(), Ok(40 * MIB));
    blocks.into_iter().for_each(|address| allocator.free(address).unwrap());
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
}

/// A machine that has memory for some of what is asked: what was spilled by then stays so, and is all that is counted.
#[test]
fn what_was_spilled_before_the_machine_refused_is_counted() {
    let (gpu, allocator, blocks) = twenty();
    (4..100).for_each(|nth| gpu.fail_nth(Call::CreateOnHost, nth, Status::OUT_OF_MEMORY));
    assert!(allocator.allocate(36 * MIB, MAIN).unwrap_err().is_out_of_memory());
    gpu.fail_no_more();
    let stats = allocator.stats();
    assert_eq!((stats.spills.chunks, stats.spilled_bytes.current, stats.spills.requests), (3, 6 * MIB, 0));
    assert_eq!((gpu.leaks().bytes, gpu.leaks().host_bytes), (34 * MIB, 6 * MIB));
    allocator.reports().check().unwrap();
    blocks.into_iter().for_each(|address| allocator.free(address).unwrap());
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
}

//! When the simulated pool gives freed memory to which stream: the three policies of reuse, by the driver's own calls.

use super::{MAIN, MIB, SIDE};
use seamalloc::driver::prelude::*;
use seamalloc::driver::sim::{Profile, SimConfig, SimGpu};
use seamalloc::driver::{MemoryPool, PoolAttribute, Status};

fn pool(device: &str) -> (SimGpu, MemoryPool) {
    let gpu = SimGpu::new(SimConfig::parse(device).unwrap()).unwrap();
    let pool = gpu.pool_create(u64::MAX).unwrap();
    (gpu, pool)
}

fn figures(gpu: &SimGpu, pool: MemoryPool) -> [u64; 4] {
    PoolAttribute::ALL.map(|attribute| gpu.pool_attribute(pool, attribute).unwrap() / MIB)
}

#[test]
fn the_stream_of_a_free_has_the_memory_at_once_and_others_once_it_is_complete() {
    let (gpu, pool) = pool("sim:h200");
    let address = gpu.pool_malloc(pool, 64 * MIB, MAIN).unwrap();
    gpu.launch(MAIN, &[], 1_000_000).unwrap();
    gpu.pool_free(address, MAIN).unwrap();
    let other = gpu.pool_malloc(pool, 64 * MIB, SIDE).unwrap();
    assert_ne!(other, address);
    let own = gpu.pool_malloc(pool, 32 * MIB, MAIN).unwrap();
    assert_eq!(own, address);
    gpu.advance(2_000_000);
    assert_eq!(gpu.pool_malloc(pool, 32 * MIB, SIDE), Ok(address + 32 * MIB), "opportunistic");
    assert_eq!(figures(&gpu, pool), [128, 128, 128, 128]);
}

#[test]
fn a_stream_that_waits_for_an_event_after_the_free_may_have_it() {
    let (gpu, pool) = pool("sim:h200");
    let event = gpu.event_create().unwrap();
    let first = gpu.pool_malloc(pool, 64 * MIB, MAIN).unwrap();
    let second = gpu.pool_malloc(pool, 64 * MIB, MAIN).unwrap();
    gpu.launch(MAIN, &[], 1_000_000).unwrap();
    gpu.pool_free(first, MAIN).unwrap();
    gpu.event_record(event, MAIN).unwrap();
    gpu.stream_wait(SIDE, event).unwrap();
    // After the event.
    gpu.pool_free(second, MAIN).unwrap();
    let got = gpu.pool_malloc(pool, 64 * MIB, SIDE).unwrap();
    assert!(got == first || got.abs_diff(second) >= 64 * MIB, "{got:#x}");
    gpu.stream_wait(SIDE, event).unwrap();
    gpu.event_record(event, MAIN).unwrap();
    gpu.stream_wait(SIDE, event).unwrap();
    let held = gpu.pool_attribute(pool, PoolAttribute::Reserved).unwrap();
    gpu.pool_malloc(pool, 64 * MIB, SIDE).unwrap();
    assert_eq!(gpu.pool_attribute(pool, PoolAttribute::Reserved), Ok(held), "all of it is in its order now");
}

#[test]
fn where_the_device_has_no_more_a_stream_waits_for_another() {
    let (gpu, pool) = pool("sim:h200,capacity=96MiB");
    let address = gpu.pool_malloc(pool, 64 * MIB, MAIN).unwrap();
    gpu.launch(MAIN, &[], 1_000_000).unwrap();
    gpu.pool_free(address, MAIN).unwrap();
    let done = gpu.done_at(MAIN).unwrap();
    assert_eq!(gpu.pool_malloc(pool, 64 * MIB, SIDE), Ok(address));
    assert!(gpu.done_at(SIDE).unwrap() >= done, "behind a wait");
    let error = gpu.pool_malloc(pool, 64 * MIB, MAIN).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
}

#[test]
fn free_pages_whose_frees_are_complete_move_together_before_a_pool_grows() {
    let (gpu, pool) = pool("sim:h200");
    let addresses = [(); 4].map(|()| gpu.pool_malloc(pool, 40 * MIB, MAIN).unwrap());
    let base = addresses[0];
    let at = |size| gpu.pool_malloc(pool, size * MIB, MAIN).map(|address| (address - base) / MIB);
    let held = || figures(&gpu, pool)[0];
    gpu.launch(MAIN, &[], 1_000_000).unwrap();
    // One page, and parts of two.
    [addresses[0], addresses[2]].iter().for_each(|address| gpu.pool_free(*address, MAIN).unwrap());
    assert_eq!((at(64), held()), (Ok(160), 224), "the frees are not complete");
    gpu.advance(2_000_000);
    let before = gpu.busy_ns();
    let next = at(64);
    let took = gpu.busy_ns() - before;
    assert_eq!((next, held()), (Ok(224), 256), "one page is moved, and one is new");
    let page = 32 * MIB;
    assert_eq!(took, Profile::H200.pool_malloc(1, page, false) + Profile::H200.pool_moves(1, page));
    assert_eq!((at(100), held()), (Ok(288), 384), "parts of pages stay");
    assert_eq!((at(40), at(32), held()), (Ok(80), Ok(0), 416), "and the addresses serve again");
}

#[test]
fn a_pool_is_trimmed_by_whole_steps_that_no_work_uses() {
    let (gpu, pool) = pool("sim:h200");
    let addresses = [(); 4].map(|()| gpu.pool_malloc(pool, 40 * MIB, MAIN).unwrap());
    assert_eq!(figures(&gpu, pool), [160, 160, 160, 160]);
    gpu.launch(MAIN, &[], 1_000_000).unwrap();
    addresses[1..].iter().for_each(|address| gpu.pool_free(*address, MAIN).unwrap());
    gpu.pool_trim(pool, 0).unwrap();
    assert_eq!(figures(&gpu, pool), [160, 160, 40, 160], "the frees are not complete");
    gpu.advance(2_000_000);
    gpu.pool_trim(pool, 100 * MIB).unwrap();
    assert_eq!(figures(&gpu, pool)[0], 128, "at least so much stays");
    gpu.pool_trim(pool, 0).unwrap();
    assert_eq!(figures(&gpu, pool)[0], 64);
    assert_eq!(gpu.leaks().bytes, 64 * MIB);
    gpu.pool_destroy(pool).unwrap();
    assert_eq!(gpu.pool_attribute(pool, PoolAttribute::Used).unwrap_err().status, Status::INVALID_VALUE);
    assert_eq!(gpu.leaks().pooled, 1, "what is allocated stays");
    gpu.pool_free(addresses[0], MAIN).unwrap();
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
}

#[test]
fn beyond_its_threshold_a_pool_gives_back_at_the_next_wait() {
    let gpu = SimGpu::new(SimConfig::default()).unwrap();
    let pool = gpu.pool_create(32 * MIB).unwrap();
    let address = gpu.pool_malloc(pool, 100 * MIB, MAIN).unwrap();
    gpu.pool_free(address, MAIN).unwrap();
    assert_eq!(figures(&gpu, pool)[0], 128);
    gpu.stream_synchronize(MAIN).unwrap();
    assert_eq!(figures(&gpu, pool)[0], 32);
}

#[test]
fn what_cuda_refuses_is_refused() {
    let (gpu, pool) = pool("sim:h200,capacity=64MiB");
    let status = |result: Result<u64, seamalloc::driver::DriverError>| result.unwrap_err().status;
    assert_eq!(status(gpu.pool_malloc(pool, 0, MAIN)), Status::INVALID_VALUE);
    assert_eq!(status(gpu.pool_malloc(pool, 65 * MIB, MAIN)), Status::OUT_OF_MEMORY);
    assert_eq!(status(gpu.pool_malloc(pool, u64::MAX, MAIN)), Status::OUT_OF_MEMORY);
    assert_eq!(status(gpu.pool_malloc(MemoryPool(9), MIB, MAIN)), Status::INVALID_VALUE);
    let address = gpu.pool_malloc(pool, MIB, MAIN).unwrap();
    assert_eq!(gpu.ipc_get(address).unwrap_err().status, Status::INVALID_VALUE);
    assert_eq!(gpu.pool_free(address + 512, MAIN).unwrap_err().status, Status::INVALID_VALUE);
    gpu.pool_free(address, MAIN).unwrap();
    assert_eq!(gpu.pool_free(address, MAIN).unwrap_err().status, Status::INVALID_VALUE);
    let stream = gpu.stream_create().unwrap();
    gpu.stream_destroy(stream).unwrap();
    assert!(gpu.stream_destroy(stream).is_err() && gpu.stream_destroy(SIDE).is_err());
}

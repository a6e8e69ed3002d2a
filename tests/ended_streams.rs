//! Streams that end without a word, while others want their memory. What each strategy does with streams that end is in
//! `contract/ended_streams.rs`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod long_kernels;
mod simulated;

use long_kernels::{A, B, LONG, clean, use_long};
use seamalloc::{Config, StreamSharing};

const DEVICE: &str = "sim:h200,capacity=1GiB";
const MIB: u64 = 1 << 20;

/// Nobody told the allocator, but the driver numbers its streams: no event of the new one says that the old one has passed.
#[test]
fn a_stream_that_was_replaced_unnoticed_is_waited_for_before_another_has_its_memory() {
    for sharing in [StreamSharing::Completed, StreamSharing::Wait] {
        let config = Config { sharing, memory_limit: Some(600 * MIB), ..Config::default() };
        let (gpu, allocator) = simulated::on(DEVICE, config);
        let rest = allocator.allocate(580 * MIB, B).unwrap();
        let old = use_long(&gpu, &allocator, 20 * MIB, A);
        allocator.free(old).unwrap();
        gpu.replace_stream(A);
        let new = allocator.allocate(20 * MIB, B).unwrap();
        assert!(gpu.now_ns() >= LONG, "{sharing:?}");
        [rest, new].into_iter().for_each(|address| allocator.free(address).unwrap());
        clean(&gpu, allocator);
    }
}

/// A stream that was destroyed and not forgotten: an error that names it, and forgetting it helps still.
#[test]
fn a_stream_that_is_gone_can_be_forgotten_late() {
    let (gpu, allocator) = simulated::on(DEVICE, Config::default());
    let rest = allocator.allocate(1004 * MIB, B).unwrap();
    let old = use_long(&gpu, &allocator, 20 * MIB, A);
    allocator.free(old).unwrap();
    gpu.destroy_stream(A);
    let error = allocator.allocate(20 * MIB, B).unwrap_err();
    assert!(error.to_string().contains("stream 0xa0 was destroyed"), "{error}");
    allocator.forget_stream(A).unwrap();
    assert!(gpu.now_ns() >= LONG);
    let new = allocator.allocate(20 * MIB, B).unwrap();
    [rest, new].into_iter().for_each(|address| allocator.free(address).unwrap());
    clean(&gpu, allocator);
}

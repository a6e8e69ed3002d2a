//! Streams that end without a word, while others want their memory. What each strategy does with streams that end is in
//! `contract/ended_streams.rs`.

use crate::long_kernels::{A, B, LONG, clean, use_long};
use crate::simulated;
use seamalloc::driver::sim::{CaptureMode, Range, SimGpu};
use seamalloc::driver::{Call, Driver, StreamId};
use seamalloc::{Allocator, Config, Route, StreamSharing};
use std::sync::Arc;

const DEVICE: &str = "sim:h200,capacity=1GiB";
const MIB: u64 = 1 << 20;

/// Bytes that a full allocator has left: no long epoch.
const LEFT: u64 = 8 * MIB;

/// An allocator of which one block leaves [`LEFT`] bytes, and that block.
fn nearly_full(sharing: StreamSharing) -> (Arc<SimGpu>, Allocator, u64) {
    let config = Config { sharing, memory_limit: Some(600 * MIB), ..Config::default() };
    let (gpu, allocator) = simulated::on(DEVICE, config);
    let rest = allocator.allocate(600 * MIB - LEFT, B).unwrap();
    (gpu, allocator, rest)
}

/// Nobody told the allocator, but the driver numbers its streams: no event of the new one says that the old one has passed.
#[test]
fn a_stream_that_was_replaced_unnoticed_is_waited_for_before_another_has_its_memory() {
    for sharing in [StreamSharing::Completed, StreamSharing::Wait] {
        let (gpu, allocator, rest) = nearly_full(sharing);
        let old = use_long(&gpu, &allocator, LEFT, A);
        allocator.free(old).unwrap();
        gpu.replace_stream(A);
        let new = allocator.allocate(LEFT, B).unwrap();
        assert!(gpu.now_ns() >= LONG, "{sharing:?}");
        [rest, new].into_iter().for_each(|address| allocator.free(address).unwrap());
        clean(&gpu, allocator);
    }
}

/// A borrowed stream is never named once it may be gone. What was freed while it was the current one is passed by events,
/// the rest once the CPU has waited for the device.
#[test]
fn a_borrowed_stream_is_named_only_by_who_has_it() {
    for current in [true, false] {
        let (gpu, allocator) = simulated::on(DEVICE, Config::default());
        allocator.streams().mark_external(A).unwrap();
        let rest = allocator.allocate(960 * MIB, B).unwrap();
        let old = allocator.allocate(40 * MIB, A).unwrap();
        gpu.launch(A, &[Range { address: old, size: 40 * MIB }], 5_000_000).unwrap();
        allocator.free_with_current_stream(old, if current { A } else { B }).unwrap();
        // For a real driver the handle is a dangling pointer from now on.
        gpu.destroy_stream(A);
        let before = gpu.call_stats();
        let new = allocator.allocate(40 * MIB, B).unwrap();
        let made = gpu.call_stats().since(&before);
        assert_eq!(made.get(Call::StreamNumber).count, 0);
        assert_eq!(made.get(Call::Synchronize).count, u64::from(!current), "{current}");
        [rest, new].into_iter().for_each(|address| allocator.free(address).unwrap());
        clean(&gpu, allocator);
    }
}

/// Returns how often a stream was named to the driver.
fn named(gpu: &SimGpu, run: impl FnOnce()) -> u64 {
    let before = gpu.call_stats();
    run();
    let made = gpu.call_stats().since(&before);
    [Call::IsCapturing, Call::EventRecord, Call::StreamNumber].map(|call| made.get(call).count).iter().sum()
}

/// A borrowed stream that is being captured, of which nobody told the allocator, cannot be named at the free, and may be gone later:
/// what it used waits for the device.
#[test]
fn a_borrowed_stream_that_is_captured_untold_is_not_named_after_it() {
    type Free = fn(&Allocator, u64);
    let ways: [Free; 3] = [
        |allocator, block| allocator.free_with_current_stream(block, A).unwrap(),
        |allocator, block| allocator.free_on(block, A).unwrap(),
        |allocator, block| {
            allocator.record_stream(block, A).unwrap();
            allocator.free(block).unwrap();
        },
    ];
    // Where streams share memory, an event on the default stream ends its epoch.
    for (free, (sharing, asked)) in ways.into_iter().flat_map(|free| [(free, ("never", 0)), (free, ("wait", 1))]) {
        let (gpu, allocator) = simulated::on(DEVICE, Config::parse(&format!("sharing:{sharing}")).unwrap());
        allocator.streams().mark_external(A).unwrap();
        let block = allocator.allocate(40 * MIB, StreamId::DEFAULT).unwrap();
        gpu.begin_capture(A, CaptureMode::Relaxed).unwrap();
        free(&allocator, block);
        gpu.end_capture(A).unwrap();
        gpu.destroy_stream(A);
        let calls = named(&gpu, || {
            let other = allocator.allocate(40 * MIB, StreamId::DEFAULT).unwrap();
            assert_ne!(other, block);
            allocator.free(other).unwrap();
            allocator.empty_cache().unwrap();
        });
        assert_eq!((calls, allocator.stats().active_bytes.all.current), (asked, 0), "{sharing}");
        clean(&gpu, allocator);
    }
}

/// During a capture of another stream, a borrowed one is named at the free: its event tells, and nothing waits for the device.
#[test]
fn a_borrowed_stream_is_named_at_a_free_during_a_capture() {
    let (gpu, allocator) = simulated::on(DEVICE, Config { sharing: StreamSharing::Never, ..Config::default() });
    allocator.streams().mark_external(A).unwrap();
    let (pool, block) = (allocator.pools().create(), allocator.allocate(40 * MIB, StreamId::DEFAULT).unwrap());
    allocator.record_stream(block, A).unwrap();
    gpu.launch(A, &[Range { address: block, size: 40 * MIB }], LONG).unwrap();
    allocator.pools().begin(pool, Route::stream(B).capturing()).unwrap();
    gpu.begin_capture(B, CaptureMode::Global).unwrap();
    allocator.free(block).unwrap();
    gpu.end_capture(B).unwrap();
    allocator.pools().end(pool).unwrap();
    allocator.pools().release(pool).unwrap();
    gpu.destroy_stream(A);
    let calls = named(&gpu, || {
        let other = allocator.allocate(40 * MIB, StreamId::DEFAULT).unwrap();
        assert_ne!(other, block, "it is in use");
        allocator.free(other).unwrap();
        gpu.synchronize().unwrap();
        let before = gpu.call_stats();
        allocator.allocate(50 * MIB, StreamId::DEFAULT).map(|new| allocator.free(new).unwrap()).unwrap();
        assert_eq!(gpu.call_stats().since(&before).get(Call::Synchronize).count, 0);
        assert_eq!(allocator.stats().active_bytes.all.current, 0);
    });
    assert_eq!(calls, 0);
    clean(&gpu, allocator);
}

/// An event that ends an epoch might become the graph's.
#[test]
fn in_a_capture_no_epoch_of_a_borrowed_stream_ends() {
    let (gpu, allocator) = simulated::on(DEVICE, Config::default());
    allocator.streams().mark_external(A).unwrap();
    let (pool, block) = (allocator.pools().create(), allocator.allocate(40 * MIB, A).unwrap());
    allocator.pools().begin(pool, Route::stream(B).capturing()).unwrap();
    gpu.begin_capture(B, CaptureMode::Global).unwrap();
    let before = gpu.call_stats();
    allocator.free_with_current_stream(block, A).unwrap();
    assert_eq!(gpu.call_stats().since(&before).get(Call::EventRecord).count, 0);
    gpu.end_capture(B).unwrap();
    allocator.pools().end(pool).unwrap();
    clean(&gpu, allocator);
}

/// A private pool's memory that was freed in the order of a borrowed stream: a capture begins behind a wait for the device.
#[test]
fn a_borrowed_stream_of_a_private_pool_is_not_named_either() {
    let (gpu, allocator) = simulated::on(DEVICE, Config::default());
    allocator.streams().mark_external(A).unwrap();
    let pool = allocator.pools().create();
    let freed = allocator.pools().allocate(pool, 100 * MIB, A).unwrap();
    gpu.launch(A, &[Range { address: freed, size: 100 * MIB }], LONG).unwrap();
    allocator.free(freed).unwrap();
    gpu.destroy_stream(A);
    allocator.pools().begin(pool, Route::stream(B).capturing()).unwrap();
    assert!(gpu.now_ns() >= LONG);
    allocator.pools().end(pool).unwrap();
    allocator.pools().release(pool).unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.reports().reserved(), 0);
    clean(&gpu, allocator);
}

/// A stream that was destroyed and not forgotten is waited for with the device, once, and its memory serves others.
#[test]
fn a_stream_that_is_gone_is_waited_for_once() {
    let (gpu, allocator) = simulated::on(DEVICE, Config::default());
    let rest = allocator.allocate(1008 * MIB, B).unwrap();
    let old = [4, 8].map(|size| use_long(&gpu, &allocator, size * MIB, A));
    old.into_iter().for_each(|address| allocator.free(address).unwrap());
    gpu.destroy_stream(A);
    let new = allocator.allocate(4 * MIB, B).unwrap();
    assert!(gpu.now_ns() >= LONG);
    let before = gpu.call_stats();
    let more = allocator.allocate(8 * MIB, B).unwrap();
    assert_eq!(gpu.call_stats().since(&before).get(Call::Synchronize).count, 0);
    allocator.streams().forget(A).unwrap();
    [rest, new, more].into_iter().for_each(|address| allocator.free(address).unwrap());
    clean(&gpu, allocator);
}

/// The handle that is forgotten is a new stream's: a wait for that one would leave the old one's kernel running over memory
/// that goes back to the device.
#[test]
fn a_stream_that_was_replaced_unnoticed_is_waited_for_when_it_is_forgotten() {
    let (gpu, allocator) = simulated::on(DEVICE, Config::default());
    let old = use_long(&gpu, &allocator, 20 * MIB, A);
    allocator.free(old).unwrap();
    gpu.replace_stream(A);
    allocator.streams().forget(A).unwrap();
    assert!(gpu.now_ns() >= LONG);
    allocator.empty_cache().unwrap();
    clean(&gpu, allocator);
}

/// So it is for memory of a private pool, whose stream has made no other request: once public, it is the old stream's.
#[test]
fn a_stream_of_a_private_pool_that_was_replaced_unnoticed_is_waited_for() {
    for sharing in [StreamSharing::Completed, StreamSharing::Wait] {
        let (gpu, allocator, rest) = nearly_full(sharing);
        let pool = allocator.pools().create();
        let old = allocator.pools().allocate(pool, LEFT, A).unwrap();
        gpu.launch(A, &[Range { address: old, size: LEFT }], LONG).unwrap();
        allocator.free(old).unwrap();
        gpu.replace_stream(A);
        allocator.pools().release(pool).unwrap();
        let new = allocator.allocate(LEFT, B).unwrap();
        assert!(gpu.now_ns() >= LONG, "{sharing:?}");
        [rest, new].into_iter().for_each(|address| allocator.free(address).unwrap());
        clean(&gpu, allocator);
    }
}

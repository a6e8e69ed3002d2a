//! Streams that end, and handles that come again: memory is not given out before a stream that is no more has passed, no call
//! names one, and nothing stays behind.

use crate::long_kernels::{A, B, LONG, clean, use_long};
use crate::random::Random;
use crate::{MIB, Subject, on};
use seamalloc::driver::sim::{CaptureMode, Range};
use seamalloc::driver::{Call, Driver, Status, StreamId};
use seamalloc::{Error, Route};

const DEVICE: &str = "sim:h200,capacity=1GiB";

pub(crate) fn memory_of_a_forgotten_stream_serves_others_once_it_has_passed(subject: Subject) {
    let Subject { kind, .. } = subject;
    let (gpu, allocator) = on(kind, DEVICE);
    let old = use_long(&gpu, &allocator, 600 * MIB, A);
    allocator.free(old).unwrap();
    allocator.streams().forget(A).unwrap();
    gpu.destroy_stream(A);
    assert!(gpu.now_ns() >= LONG, "{kind}: it waited");
    let before = gpu.call_stats();
    // There is room for one of them only.
    let new = allocator.allocate(600 * MIB, B).unwrap();
    if subject.shares_streams {
        assert_eq!(new, old);
        assert_eq!(gpu.call_stats().since(&before).get(Call::Create).count, 0);
    }
    allocator.free(new).unwrap();
    clean(&gpu, allocator);
}

pub(crate) fn what_is_live_outlives_its_stream(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, DEVICE);
    let live = use_long(&gpu, &allocator, 300 * MIB, A);
    let small = use_long(&gpu, &allocator, 1000, A);
    // One that B uses on, and one of B that A has used.
    allocator.record_stream(live, B).unwrap();
    let other = allocator.allocate(300 * MIB, B).unwrap();
    allocator.record_stream(other, A).unwrap();
    allocator.streams().forget(A).unwrap();
    gpu.destroy_stream(A);
    let held = gpu.hold(B);
    for address in [live, small, other] {
        allocator.free(address).unwrap();
    }
    allocator.reports().check().unwrap();
    assert_eq!(allocator.stats().active_bytes.all.current, 300 * MIB, "{kind}: `live` waits for B alone");
    gpu.finish_hold(held);
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.reports().reserved(), 0, "{kind}");
    clean(&gpu, allocator);
}

pub(crate) fn a_handle_that_comes_again_is_another_stream(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, DEVICE);
    let live = use_long(&gpu, &allocator, 200 * MIB, A);
    let freed = use_long(&gpu, &allocator, 200 * MIB, A);
    allocator.free(freed).unwrap();
    allocator.streams().forget(A).unwrap();
    gpu.replace_stream(A);
    // The new stream uses what the old one left alive: named, or it would not be waited for.
    allocator.record_stream(live, A).unwrap();
    gpu.launch(A, &[Range { address: live, size: 200 * MIB }], LONG).unwrap();
    allocator.free(live).unwrap();
    assert_eq!(allocator.stats().active_bytes.all.current, 200 * MIB, "{kind}");
    let again = use_long(&gpu, &allocator, 200 * MIB, A);
    allocator.free(again).unwrap();
    clean(&gpu, allocator);
}

/// Nobody told the allocator, but the driver numbers its streams.
pub(crate) fn a_stream_that_was_replaced_unnoticed_is_waited_for(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, DEVICE);
    let old = use_long(&gpu, &allocator, 200 * MIB, A);
    allocator.free(old).unwrap();
    gpu.replace_stream(A);
    assert_eq!(allocator.trim(u64::MAX), Ok(200 * MIB), "{kind}");
    assert!(gpu.now_ns() >= LONG, "{kind}");
    clean(&gpu, allocator);
}

/// Nobody told the allocator, and no stream has the handle: neither as the stream of free memory, nor as one that
/// `record_stream` has named.
pub(crate) fn a_stream_that_was_destroyed_unnoticed_is_waited_for(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, DEVICE);
    let old = use_long(&gpu, &allocator, 200 * MIB, A);
    let other = allocator.allocate(100 * MIB, B).unwrap();
    allocator.record_stream(other, A).unwrap();
    gpu.launch(A, &[Range { address: other, size: 100 * MIB }], LONG).unwrap();
    gpu.destroy_stream(A);
    allocator.free(other).unwrap();
    assert!(gpu.now_ns() >= LONG, "{kind}");
    assert_eq!(allocator.stats().active_bytes.all.current, 200 * MIB, "{kind}: it waits for nothing more");
    allocator.free(old).unwrap();
    assert_eq!(allocator.trim(u64::MAX), Ok(300 * MIB), "{kind}");
    allocator.reports().check().unwrap();
    clean(&gpu, allocator);
}

pub(crate) fn a_stream_of_a_private_pool_ends_too(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, DEVICE);
    let pool = allocator.pools().create();
    let [freed, live] = [100 * MIB, 50 * MIB].map(|size| allocator.pools().allocate(pool, size, A).unwrap());
    gpu.launch(A, &[Range { address: freed, size: 100 * MIB }], LONG).unwrap();
    allocator.free(freed).unwrap();
    allocator.streams().forget(A).unwrap();
    gpu.destroy_stream(A);
    allocator.free(live).unwrap();
    // Begins without a wait for a stream that is no more.
    allocator.pools().begin(pool, Route::stream(B).capturing()).unwrap();
    allocator.pools().end(pool).unwrap();
    allocator.pools().release(pool).unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.reports().reserved(), 0, "{kind}");
    clean(&gpu, allocator);
}

/// Programs that make and destroy streams all the time, with kernels on all memory.
pub(crate) fn random_programs_never_name_a_stream_that_is_gone(Subject { kind, .. }: Subject) {
    for seed in 0..6 {
        let mut rng = Random(seed);
        let (gpu, allocator) = on(kind, DEVICE);
        let mut exists = [true; 6];
        let mut live: Vec<(u64, u64)> = Vec::new();
        for _ in 0..600 {
            let at = rng.below(6) as usize;
            let stream = StreamId(0x100 + at as u64);
            match rng.below(16) {
                0 if exists[at] => {
                    allocator.streams().forget(stream).unwrap();
                    gpu.destroy_stream(stream);
                    exists[at] = false;
                }
                // Streams that `record_stream` names are not told apart.
                1 if exists[at] && at < 3 => gpu.replace_stream(stream),
                2 => drop(allocator.trim(rng.below(64 * MIB)).unwrap()),
                3 => gpu.advance(rng.below(1_000_000)),
                4..8 if !live.is_empty() => {
                    let (address, _) = live.swap_remove(rng.below(live.len() as u64) as usize);
                    allocator.free(address).unwrap();
                }
                8 if exists[at] && at >= 3 && !live.is_empty() => {
                    let (address, size) = live[rng.below(live.len() as u64) as usize];
                    allocator.record_stream(address, stream).unwrap();
                    gpu.launch(stream, &[Range { address, size }], rng.below(1_000_000)).unwrap();
                }
                _ => {
                    if !exists[at] {
                        gpu.replace_stream(stream);
                        exists[at] = true;
                    }
                    let size = 1 + rng.below(40 * MIB);
                    match allocator.allocate(size, stream) {
                        Ok(address) => {
                            gpu.launch(stream, &[Range { address, size }], rng.below(1_000_000)).unwrap();
                            live.push((address, size));
                        }
                        Err(error) => assert!(error.is_out_of_memory(), "{kind}, seed {seed}: {error}"),
                    }
                }
            }
            allocator.reports().check().unwrap();
        }
        for (address, _) in live {
            allocator.free(address).unwrap();
        }
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.reports().reserved(), 0, "{kind}, seed {seed}");
        clean(&gpu, allocator);
    }
}

pub(crate) fn no_stream_is_forgotten_in_a_capture(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, DEVICE);
    let address = allocator.allocate(10 * MIB, A).unwrap();
    let pool = allocator.pools().create();
    allocator.pools().begin(pool, Route::stream(B).capturing()).unwrap();
    gpu.begin_capture(B, CaptureMode::Global).unwrap();
    let error = allocator.streams().forget(A).unwrap_err();
    assert!(matches!(&error, Error::Driver(error) if error.status == Status::STREAM_CAPTURE_UNSUPPORTED), "{error}");
    gpu.end_capture(B).unwrap();
    allocator.pools().end(pool).unwrap();
    allocator.streams().forget(A).unwrap();
    gpu.destroy_stream(A);
    allocator.free(address).unwrap();
    allocator.pools().release(pool).unwrap();
    allocator.streams().forget(StreamId::DEFAULT).unwrap();
    clean(&gpu, allocator);
}

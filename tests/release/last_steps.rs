//! The state that a request carries through its last steps: the pool that it is for, and the view that was refused to
//! it.

use seamalloc::driver::prelude::*;
use seamalloc::driver::sim::{CaptureMode, SimConfig, SimGpu};
use seamalloc::driver::{Call, Status, StreamId};
use seamalloc::out_of_memory::Advice;
use seamalloc::{Allocator, Config, Error, Route};
use std::sync::{Arc, Mutex};

const MIB: u64 = 1 << 20;

fn gpu(capacity: u64) -> Arc<SimGpu> {
    Arc::new(SimGpu::new(SimConfig { capacity, ..SimConfig::default() }).unwrap())
}

/// After a callback the request is made anew, since its stream may have been forgotten, and its pool be another's.
#[test]
fn a_retry_after_a_callback_is_for_the_stream_as_it_is_then() {
    let gpu = gpu(64 * MIB);
    let allocator = Arc::new(Allocator::new(gpu.clone(), Config::parse("strategy:caching").unwrap()).unwrap());
    let (stream, other) = (StreamId(7), StreamId(8));
    let held = Mutex::new(Some(allocator.allocate(40 * MIB, other).unwrap()));
    let weak = Arc::downgrade(&allocator);
    allocator.limits().on_pressure(move |_| {
        let allocator = weak.upgrade().unwrap();
        allocator.streams().forget(stream).unwrap();
        held.lock().unwrap().take().is_some_and(|address| allocator.free(address).is_ok())
    });
    let small = allocator.allocate(MIB, stream).unwrap();
    allocator.free(small).unwrap();
    let asked = || gpu.call_stats().get(Call::StreamNumber).count;
    let before = asked();
    allocator.allocate(40 * MIB, stream).unwrap();
    // By `streams().forget` in the callback, and as a new stream.
    assert_eq!(asked() - before, 2);
}

/// A view that the bounds forbade is part of the report, whichever step failed for want of memory afterwards.
#[test]
fn a_refused_view_is_reported_if_the_last_resort_of_a_capture_runs_out_of_memory() {
    let gpu = gpu(100 * MIB);
    let options = Config::parse("strategy:stitch,chunk_size_mb:2,max_views:1").unwrap();
    let allocator = Allocator::new(gpu.clone(), options).unwrap();
    let (pool, stream) = (allocator.pools().create(), StreamId(5));
    gpu.malloc(40 * MIB).unwrap();
    let blocks: Vec<_> = (0..20).map(|_| allocator.pools().allocate(pool, 2 * MIB, stream).unwrap()).collect();
    blocks.iter().step_by(2).for_each(|address| allocator.free(*address).unwrap());
    while gpu.memory_info().unwrap().free >= 2 * MIB {
        allocator.allocate(2 * MIB, StreamId::DEFAULT).unwrap();
    }
    // The one view that may be.
    allocator.pools().allocate(pool, 4 * MIB, stream).unwrap();
    allocator.pools().begin(pool, Route::stream(stream).capturing()).unwrap();
    gpu.begin_capture(stream, CaptureMode::Relaxed).unwrap();
    gpu.fail_nth(Call::ExchangeCaptureMode, 1, Status::OUT_OF_MEMORY);
    let Err(Error::OutOfMemory(report)) = allocator.allocate(8 * MIB, stream) else { panic!("it was served") };
    assert!(report.advice.iter().any(|advice| matches!(advice, Advice::FreeDevice { .. })), "{:?}", report.advice);
}

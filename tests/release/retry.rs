//! With `retry_ms` a request that would be refused waits for memory that others give back.

use super::{MAIN, MIB};
use seamalloc::driver::prelude::*;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::{Allocator, Config, PoolId, Route};
use std::sync::Arc;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

/// Longer than any test may take.
const PATIENT: &str = "retry_ms:60000";

fn on(options: &str) -> (Arc<SimGpu>, Allocator) {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h100,capacity=1GiB").unwrap()).unwrap());
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::parse(options).unwrap()).unwrap();
    (gpu, allocator)
}

/// Another process that gives back 800 MiB once the request waits, as two that take turns on a GPU.
#[test]
fn memory_of_another_process_is_waited_for() {
    for strategy in ["stitch", "caching", "expandable"] {
        let (gpu, allocator) = on(&format!("strategy:{strategy},{PATIENT}"));
        let others = gpu.malloc(800 * MIB).unwrap();
        scope(|threads| {
            let waits = threads.spawn(|| allocator.allocate(600 * MIB, MAIN));
            sleep(Duration::from_millis(30));
            assert!(!waits.is_finished(), "{strategy}: 224 MiB are free");
            gpu.free(others).unwrap();
            assert!(waits.join().unwrap().is_ok(), "{strategy}");
        });
    }
}

#[test]
fn a_free_of_another_thread_is_waited_for_without_the_lock() {
    let (_, allocator) = on(PATIENT);
    let held = allocator.allocate(800 * MIB, MAIN).unwrap();
    scope(|threads| {
        let waits = threads.spawn(|| allocator.allocate(600 * MIB, MAIN));
        sleep(Duration::from_millis(30));
        assert!(!waits.is_finished());
        // Others allocate and free meanwhile.
        allocator.free(allocator.allocate(MIB, MAIN).unwrap()).unwrap();
        allocator.free(held).unwrap();
        allocator.free(waits.join().unwrap().unwrap()).unwrap();
    });
    allocator.reports().check().unwrap();
}

/// Nobody gives anything back: the request is refused after its time, and at once where no wait could help, or by default.
#[test]
fn the_wait_has_an_end() {
    for (options, size, waits) in [("retry_ms:50", 600, true), ("retry_ms:50", 1100, false), ("", 600, false)] {
        let (gpu, allocator) = on(options);
        gpu.malloc(800 * MIB).unwrap();
        let begun = Instant::now();
        assert!(allocator.allocate(size * MIB, MAIN).unwrap_err().is_out_of_memory());
        let spent = begun.elapsed();
        assert!(!waits || spent >= Duration::from_millis(50), "{options}: {spent:?}");
        assert_eq!(allocator.stats().num_ooms, 1, "{options}");
    }
    let (gpu, allocator) = on(PATIENT);
    gpu.malloc(800 * MIB).unwrap();
    // While a capture may be under way nobody waits.
    allocator.pools().open(PoolId(0, 1)).unwrap();
    allocator.pools().begin(PoolId(0, 1), Route::stream(MAIN).capturing()).unwrap();
    allocator.allocate(MIB, MAIN).unwrap();
    assert!(allocator.allocate(600 * MIB, MAIN).unwrap_err().is_out_of_memory());
    allocator.pools().end(PoolId(0, 1)).unwrap();
}

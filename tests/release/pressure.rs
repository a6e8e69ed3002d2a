//! Callbacks for memory pressure: before a request is refused, and never under the allocator's lock.

use super::watch::Watch;
use super::{CHUNK, MAIN, MIB, balanced, on, reserved};
use seamalloc::driver::{Call, Driver};
use seamalloc::{Allocator, MemoryPressure, StrategyKind};
use std::panic::panic_any;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;

/// An allocator, full but for a little, with blocks that a callback may free.
fn full(kind: StrategyKind) -> (Arc<Watch>, Arc<Allocator>, Arc<Mutex<Vec<u64>>>) {
    let (gpu, allocator) = on(kind, "sim:h200,capacity=200MiB", "");
    let cache = (0..4).map(|_| allocator.allocate(40 * MIB, MAIN).unwrap()).collect();
    (gpu, Arc::new(allocator), Arc::new(Mutex::new(cache)))
}

/// A callback that frees a block of the cache each time, and counts its calls.
fn freeing(
    allocator: &Arc<Allocator>,
    cache: &Arc<Mutex<Vec<u64>>>,
    called: &Arc<AtomicUsize>,
) -> impl Fn(&MemoryPressure) -> bool + Send + Sync + 'static {
    let (weak, cache, called): (Weak<Allocator>, _, _) =
        (Arc::downgrade(allocator), Arc::clone(cache), Arc::clone(called));
    move |_| {
        called.fetch_add(1, Ordering::Relaxed);
        let block = cache.lock().unwrap().pop();
        block.is_some_and(|address| weak.upgrade().unwrap().free(address).is_ok())
    }
}

#[test]
fn a_callback_that_takes_what_it_frees_ends_in_a_refusal() {
    let (gpu, allocator, cache) = full(StrategyKind::Stitch);
    let (weak, blocks) = (Arc::downgrade(&allocator), Arc::clone(&cache));
    allocator.on_memory_pressure(move |_| {
        let allocator = weak.upgrade().unwrap();
        let mut blocks = blocks.lock().unwrap();
        let block = blocks.pop().unwrap();
        allocator.free(block).unwrap();
        blocks.push(allocator.allocate(40 * MIB, MAIN).unwrap());
        true
    });
    assert!(allocator.allocate(60 * MIB, MAIN).unwrap_err().is_out_of_memory());
    balanced(&gpu, &allocator);
}

#[test]
fn an_allocator_outlives_its_callbacks_and_they_it() {
    struct Last(Arc<AtomicUsize>);
    impl Drop for Last {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200", "");
    let add = |allocator: &Allocator| {
        let last = Last(Arc::clone(&dropped));
        allocator.on_memory_pressure(move |_| last.0.load(Ordering::Relaxed) > 9)
    };
    let first = add(&allocator);
    add(&allocator);
    assert!(allocator.remove_memory_callback(first));
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    drop(allocator);
    assert_eq!(dropped.load(Ordering::Relaxed), 2);
    assert!(gpu.sim.leaks().is_empty());
}

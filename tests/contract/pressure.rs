//! Callbacks for memory pressure: before a request is refused, and never under the allocator's lock.

use crate::simulated::Device;
use crate::{CHUNK, MAIN, MIB, SIDE, Subject, balanced, in_small_chunks, reserved};
use seamalloc::driver::{Call, Driver};
use seamalloc::{Allocator, MemoryPressure, StrategyKind};
use std::panic::panic_any;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;

/// An allocator, full but for a little, with blocks that a callback may free.
fn full(kind: StrategyKind) -> (Arc<Device>, Arc<Allocator>, Arc<Mutex<Vec<u64>>>) {
    let (gpu, allocator) = in_small_chunks(kind, "sim:h200,capacity=200MiB", "");
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

pub(crate) fn what_a_callback_frees_serves_the_request(Subject { kind, .. }: Subject) {
    let (gpu, allocator, cache) = full(kind);
    let told = Arc::new(Mutex::new(Vec::new()));
    let (tell, called) = (Arc::clone(&told), Arc::new(AtomicUsize::new(0)));
    let free = freeing(&allocator, &cache, &called);
    allocator.limits().on_pressure(move |pressure| {
        tell.lock().unwrap().push(*pressure);
        free(pressure)
    });
    allocator.allocate(40 * MIB, MAIN).unwrap();
    assert_eq!(called.load(Ordering::Relaxed), 0, "{kind}: there is room");
    let before = gpu.call_stats();
    allocator.allocate(40 * MIB, MAIN).unwrap();
    assert_eq!(called.load(Ordering::Relaxed), 1, "{kind}");
    let made = gpu.call_stats().since(&before);
    assert_eq!(
        [Call::EventSynchronize, Call::StreamSynchronize, Call::Free, Call::Release].map(|call| made.get(call).count),
        [0; 4],
        "{kind}: nothing was waited for or given back"
    );
    let pressure = told.lock().unwrap()[0];
    let all = 200 * MIB;
    assert_eq!((pressure.requested, pressure.stream, pressure.limit), (40 * MIB, MAIN, None));
    assert_eq!((pressure.reserved, pressure.allocated), (all, all));
    assert_eq!(allocator.stats().num_ooms, 0);
    balanced(&gpu, &allocator);
}

pub(crate) fn callbacks_are_called_in_order_until_one_helps(Subject { kind, .. }: Subject) {
    let (gpu, allocator, cache) = full(kind);
    let called: [Arc<AtomicUsize>; 4] = Default::default();
    let count = |index: usize| called[index].load(Ordering::Relaxed);
    let idle = Arc::clone(&called[0]);
    allocator.limits().on_pressure(move |_| {
        idle.fetch_add(1, Ordering::Relaxed);
        false
    });
    let second = allocator.limits().on_pressure(freeing(&allocator, &cache, &called[1]));
    allocator.limits().on_pressure(freeing(&allocator, &cache, &called[2]));
    allocator.allocate(40 * MIB, MAIN).unwrap();
    allocator.allocate(40 * MIB, MAIN).unwrap();
    assert_eq!([0, 1, 2].map(count), [1, 1, 0], "{kind}");
    assert!(allocator.limits().remove_callback(second) && !allocator.limits().remove_callback(second));
    allocator.allocate(40 * MIB, MAIN).unwrap();
    assert_eq!([0, 1, 2].map(count), [2, 1, 1], "{kind}");
    // More than one callback can free: each is called once, and then memory is short.
    let error = allocator.allocate(150 * MIB, MAIN).unwrap_err();
    assert!(error.is_out_of_memory(), "{kind}: {error}");
    assert_eq!(([0, 1, 2].map(count), allocator.stats().num_ooms), ([3, 1, 2], 1), "{kind}");
    balanced(&gpu, &allocator);
}

pub(crate) fn a_callback_that_frees_nothing_changes_nothing(Subject { kind, .. }: Subject) {
    for lies in [false, true] {
        let (gpu, allocator, cache) = full(kind);
        allocator.limits().on_pressure(move |_| lies);
        assert!(allocator.allocate(60 * MIB, MAIN).unwrap_err().is_out_of_memory());
        assert_eq!(allocator.stats().num_ooms, 1);
        // What waits for the GPU, or lies in another pool, is found after the callbacks.
        let block = cache.lock().unwrap().pop().unwrap();
        gpu.hold(SIDE);
        allocator.record_stream(block, SIDE).unwrap();
        allocator.free(block).unwrap();
        allocator.allocate(60 * MIB, MAIN).unwrap();
        balanced(&gpu, &allocator);
    }
}

pub(crate) fn a_callback_that_panics_is_removed_and_the_request_goes_on(Subject { kind, .. }: Subject) {
    /// A payload whose end is a panic too.
    struct Spiteful;
    impl Drop for Spiteful {
        fn drop(&mut self) {
            panic!("again");
        }
    }
    let (gpu, allocator, cache) = full(kind);
    let (panics, called) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&panics);
    let id = allocator.limits().on_pressure(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        panic_any(Spiteful);
    });
    allocator.limits().on_pressure(freeing(&allocator, &cache, &called));
    for _ in 0..3 {
        allocator.allocate(40 * MIB, MAIN).unwrap();
    }
    assert_eq!((panics.load(Ordering::Relaxed), called.load(Ordering::Relaxed)), (1, 2), "{kind}");
    assert!(!allocator.limits().remove_callback(id));
    balanced(&gpu, &allocator);
}

pub(crate) fn a_callback_may_use_the_allocator_as_anyone(Subject { kind, .. }: Subject) {
    let (gpu, allocator, cache) = full(kind);
    let (weak, called) = (Arc::downgrade(&allocator), Arc::new(AtomicUsize::new(0)));
    let (blocks, count) = (Arc::clone(&cache), Arc::clone(&called));
    let own = Arc::new(OnceLock::new());
    let removed = Arc::clone(&own);
    let id = allocator.limits().on_pressure(move |pressure| {
        let allocator = weak.upgrade().unwrap();
        count.fetch_add(1, Ordering::Relaxed);
        assert_eq!(allocator.stats().reserved_bytes.all.current, pressure.reserved);
        // Short itself: refused, and not by calling back here again.
        assert!(allocator.allocate(100 * MIB, MAIN).unwrap_err().is_out_of_memory());
        let block = blocks.lock().unwrap().pop().unwrap();
        assert_eq!(allocator.reports().size_of(block).unwrap(), 40 * MIB);
        allocator.free(block).unwrap();
        allocator.trim(1).unwrap();
        let again = allocator.allocate(4 * MIB, MAIN).unwrap();
        allocator.free(again).unwrap();
        allocator.empty_cache().unwrap();
        allocator.reports().check().unwrap();
        allocator.limits().remove_callback(*removed.get().unwrap())
    });
    own.set(id).unwrap();
    allocator.allocate(60 * MIB, MAIN).unwrap();
    assert_eq!((called.load(Ordering::Relaxed), allocator.stats().num_ooms), (1, 1), "{kind}");
    assert!(!allocator.limits().remove_callback(id), "it removed itself");
    balanced(&gpu, &allocator);
}

pub(crate) fn threads_may_be_short_at_the_same_time(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = in_small_chunks(kind, "sim:h200,capacity=256MiB", "");
    let allocator = Arc::new(allocator);
    let cache: Arc<Mutex<Vec<u64>>> = Arc::default();
    let called = Arc::new(AtomicUsize::new(0));
    allocator.limits().on_pressure(freeing(&allocator, &cache, &called));
    let got = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    match allocator.allocate(CHUNK, MAIN) {
                        Ok(address) => {
                            got.fetch_add(1, Ordering::Relaxed);
                            cache.lock().unwrap().push(address);
                        }
                        Err(error) => assert!(error.is_out_of_memory()),
                    }
                }
            });
        }
    });
    assert!(called.load(Ordering::Relaxed) > 0);
    assert!(got.load(Ordering::Relaxed) > 200, "{kind}: {}", got.load(Ordering::Relaxed));
    assert!(reserved(&allocator) <= 256 * MIB);
    balanced(&gpu, &allocator);
}

pub(crate) fn a_callback_that_takes_what_it_frees_ends_in_a_refusal(Subject { kind, .. }: Subject) {
    let (gpu, allocator, cache) = full(kind);
    let (weak, blocks) = (Arc::downgrade(&allocator), Arc::clone(&cache));
    allocator.limits().on_pressure(move |_| {
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

pub(crate) fn an_allocator_outlives_its_callbacks_and_they_it(Subject { kind, .. }: Subject) {
    struct Last(Arc<AtomicUsize>);
    impl Drop for Last {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let (gpu, allocator) = in_small_chunks(kind, "sim:h200", "");
    let add = |allocator: &Allocator| {
        let last = Last(Arc::clone(&dropped));
        allocator.limits().on_pressure(move |_| last.0.load(Ordering::Relaxed) > 9)
    };
    let first = add(&allocator);
    add(&allocator);
    assert!(allocator.limits().remove_callback(first));
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    drop(allocator);
    assert_eq!(dropped.load(Ordering::Relaxed), 2);
    assert!(gpu.leaks().is_empty());
}

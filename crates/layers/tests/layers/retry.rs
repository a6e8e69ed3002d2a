//! Requests that wait: woken by frees, in turns, up to a time.

use crate::fake::{Fake, broken};
use crate::{MAIN, MIB, SIDE, gpu, on};
use seamalloc::driver::sim::CaptureMode;
use seamalloc::{Allocator, Config, Error, Route};
use seamalloc_layers::{FailureCallback, Limit, MemoryResource, RawBlock, ResourceError, Retry, RetryFigures};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Far longer than anything takes that is not meant to wait for its time to be over.
const LONG_MS: u64 = 20_000;

fn until(what: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_millis(LONG_MS);
    while !what() {
        assert!(Instant::now() < end, "it never came");
        thread::yield_now();
    }
}

#[test]
fn a_request_waits_for_a_free_of_another_thread() {
    let (_, allocator) = on("sim:h200,capacity=100MiB", "");
    let memory = Retry::new(Arc::clone(&allocator), LONG_MS);
    let held = memory.allocate(80 * MIB, MAIN).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| memory.allocate(60 * MIB, SIDE));
        until(|| memory.waiting() == 1);
        memory.deallocate(held, MAIN).unwrap();
        let block = waits.join().unwrap().unwrap();
        memory.deallocate(block, SIDE).unwrap();
    });
    assert_eq!(memory.figures(), RetryFigures { waited: 1, served: 1, timed_out: 0, tries: 1 });
    assert_eq!((memory.waiting(), allocator.stats().allocated_bytes.all.current), (0, 0));
}

#[test]
fn after_its_time_a_request_tries_once_more_and_fails_as_the_resource_below_does() {
    let fake = Arc::new(Fake::new(100));
    let memory = Retry::new(Arc::clone(&fake), 40);
    fake.allocate(90, MAIN).unwrap();
    let begun = Instant::now();
    let error = memory.allocate(20, MAIN).unwrap_err();
    assert_eq!(error, ResourceError::LimitExceeded { requested: 20, allocated: 90, limit: 100 });
    assert!(begun.elapsed() >= Duration::from_millis(40));
    assert_eq!(memory.figures(), RetryFigures { waited: 1, served: 0, timed_out: 1, tries: 1 });
    // The allocator's own error is its own, too.
    let (_, allocator) = on("sim:h200,capacity=100MiB", "");
    let error = Retry::new(allocator, 1).allocate(200 * MIB, MAIN).unwrap_err();
    assert!(matches!(error, ResourceError::Allocator(Error::OutOfMemory(_))));
}

#[test]
fn memory_that_came_unseen_is_found_by_the_last_try() {
    let fake = Arc::new(Fake::new(100));
    let memory = Retry::new(Arc::clone(&fake), 60);
    let held = fake.allocate(90, MAIN).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| memory.allocate(20, MAIN));
        until(|| memory.waiting() == 1);
        // Not through the layer.
        fake.deallocate(held, MAIN).unwrap();
        assert!(waits.join().unwrap().is_ok());
    });
    assert_eq!(memory.figures(), RetryFigures { waited: 1, served: 1, timed_out: 0, tries: 1 });
}

#[test]
fn only_too_little_memory_is_waited_for() {
    let fake = Arc::new(Fake::new(100));
    let memory = Retry::new(Arc::clone(&fake), LONG_MS);
    fake.fail_allocation();
    assert_eq!(memory.allocate(20, MAIN).unwrap_err(), broken());
    assert_eq!(memory.figures().waited, 0);
    // Nor is any other error of a later try.
    let held = memory.allocate(90, MAIN).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| memory.allocate(20, MAIN));
        until(|| memory.waiting() == 1);
        fake.fail_allocation();
        memory.deallocate(held, MAIN).unwrap();
        assert_eq!(waits.join().unwrap().unwrap_err(), broken());
    });
    assert_eq!((memory.waiting(), fake.live().len()), (0, 0));
}

#[test]
fn with_no_time_and_in_a_capture_nothing_waits() {
    let fake = Arc::new(Fake::new(100));
    let held = fake.allocate(90, MAIN).unwrap();
    let begun = Instant::now();
    assert!(Retry::new(Arc::clone(&fake), 0).allocate(20, MAIN).is_err());
    let memory = Retry::new(Arc::clone(&fake), LONG_MS);
    fake.state.lock().capturing = true;
    assert!(memory.allocate(20, MAIN).is_err());
    assert_eq!(memory.figures(), RetryFigures::default());
    fake.deallocate(held, MAIN).unwrap();

    let gpu = gpu("sim:h200,capacity=100MiB");
    let allocator = Arc::new(Allocator::new(Arc::clone(&gpu) as _, Config::default()).unwrap());
    let memory = Retry::new(Arc::clone(&allocator), LONG_MS);
    memory.allocate(80 * MIB, MAIN).unwrap();
    let pool = allocator.pools().create();
    allocator.pools().begin(pool, Route::stream(SIDE).capturing()).unwrap();
    gpu.begin_capture(SIDE, CaptureMode::Global).unwrap();
    assert!(memory.allocate(60 * MIB, SIDE).unwrap_err().is_out_of_memory());
    // A stream that is not captured may wait meanwhile.
    let other = Retry::new(Arc::clone(&allocator), 1);
    assert!(other.allocate(60 * MIB, MAIN).unwrap_err().is_out_of_memory());
    assert_eq!(other.figures().timed_out, 1);
    gpu.end_capture(SIDE).unwrap();
    allocator.pools().end(pool).unwrap();
    assert!(begun.elapsed() < Duration::from_millis(LONG_MS));
    assert_eq!(memory.figures(), RetryFigures::default());
}

/// A thread that frees and allocates in turns never leaves room for others by chance: it gives way.
#[test]
fn a_waiting_request_gets_what_a_thread_frees_that_would_take_it_back() {
    for _ in 0..20 {
        let memory = Retry::new(Fake::new(100), LONG_MS);
        let stop = AtomicBool::new(false);
        let mut held = Some(memory.allocate(100, MAIN).unwrap());
        let rounds = AtomicU64::new(0);
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let block = memory.allocate(100, SIDE).unwrap();
                let served_after = rounds.load(Ordering::SeqCst);
                stop.store(true, Ordering::SeqCst);
                memory.deallocate(block, SIDE).unwrap();
                served_after
            });
            until(|| memory.waiting() == 1);
            while !stop.load(Ordering::SeqCst) {
                if let Some(block) = held.take() {
                    memory.deallocate(block, MAIN).unwrap();
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
                held = Some(memory.allocate(100, MAIN).unwrap());
            }
            // The very first free is its, or one soon after: a thread of a busy machine may wake late.
            assert!(waits.join().unwrap() <= 3);
        });
    }
}

/// Of those that wait, the one that came first is served first, whichever thread runs first. (A try that is under way at a free may
/// take what is freed, so each waits here until the others have tried.)
#[test]
fn who_waits_longer_is_served_first() {
    for _ in 0..10 {
        let memory = Retry::new(Fake::new(100), LONG_MS);
        let held = memory.allocate(100, MAIN).unwrap();
        let order = parking_lot::Mutex::new(Vec::new());
        thread::scope(|scope| {
            for at in 0..6 {
                let (memory, order) = (&memory, &order);
                scope.spawn(move || {
                    let block = memory.allocate(100, MAIN).unwrap();
                    order.lock().push(at);
                    until(|| memory.figures().tries == (0..=at as u64).map(|served| 6 - served).sum::<u64>());
                    memory.deallocate(block, MAIN).unwrap();
                });
                until(|| memory.waiting() == at + 1);
            }
            memory.deallocate(held, MAIN).unwrap();
        });
        assert_eq!(order.into_inner(), [0, 1, 2, 3, 4, 5]);
    }
}

/// A request that nothing can serve does not hold up those behind it.
#[test]
fn a_request_too_large_does_not_hold_up_others() {
    let memory = Retry::new(Fake::new(100), 400);
    let held = memory.allocate(100, MAIN).unwrap();
    thread::scope(|scope| {
        let large = scope.spawn(|| memory.allocate(101, MAIN));
        until(|| memory.waiting() == 1);
        let small = scope.spawn(|| memory.allocate(10, MAIN));
        until(|| memory.waiting() == 2);
        memory.deallocate(held, MAIN).unwrap();
        assert!(small.join().unwrap().is_ok());
        assert_eq!(memory.waiting(), 1);
        assert!(large.join().unwrap().is_err());
    });
    assert_eq!(memory.figures().timed_out, 1);
}

/// A callback below that allocates through the layer again does not wait for its own request.
#[test]
fn a_request_within_a_try_does_not_wait() {
    let fake = Arc::new(Fake::new(100));
    let of_program = Arc::new(parking_lot::Mutex::new(None::<Arc<dyn MemoryResource>>));
    let again = Arc::clone(&of_program);
    let nested = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&nested);
    let asks = FailureCallback::new(Arc::clone(&fake), move |size, _| {
        let memory = again.lock().clone();
        if let (50, Some(memory)) = (size, memory) {
            assert!(memory.allocate(60, MAIN).unwrap_err().is_out_of_memory());
            count.fetch_add(1, Ordering::SeqCst);
        }
        false
    });
    let memory: Arc<Retry<_>> = Arc::new(Retry::new(asks, LONG_MS));
    let held = memory.allocate(90, MAIN).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| memory.allocate(50, MAIN));
        until(|| memory.waiting() == 1);
        *of_program.lock() = Some(Arc::clone(&memory) as _);
        // It is woken for too little, asks again from within, and goes on waiting.
        let small = memory.allocate(10, MAIN).unwrap();
        memory.deallocate(small, MAIN).unwrap();
        until(|| nested.load(Ordering::SeqCst) == 1);
        memory.deallocate(held, MAIN).unwrap();
        assert!(waits.join().unwrap().is_ok());
    });
    *of_program.lock() = None;
    assert_eq!(memory.figures().waited, 1);
}

/// A new request lets one that is in a try finish it.
#[test]
fn a_new_request_gives_way_to_a_try_under_way() {
    let fake = Arc::new(Fake::new(100));
    let held = Arc::new(parking_lot::Mutex::new(Some(fake.allocate(90, MAIN).unwrap())));
    let in_try = Arc::new(AtomicBool::new(false));
    let (below, to_free, flag) = (Arc::clone(&fake), Arc::clone(&held), Arc::clone(&in_try));
    let wakes = Arc::new(AtomicBool::new(false));
    let woken = Arc::clone(&wakes);
    let memory = Retry::new(
        FailureCallback::new(Arc::clone(&fake), move |_, _| {
            if !woken.load(Ordering::SeqCst) {
                return false;
            }
            let Some(block) = to_free.lock().take() else { return false };
            below.deallocate(block, MAIN).unwrap();
            flag.store(true, Ordering::SeqCst);
            // There is room now, and a new request comes.
            thread::sleep(Duration::from_millis(20));
            true
        }),
        LONG_MS,
    );
    let order = parking_lot::Mutex::new(Vec::new());
    let take = |name| {
        let block = memory.allocate(60, MAIN).unwrap();
        order.lock().push(name);
        memory.deallocate(block, MAIN).unwrap();
    };
    thread::scope(|scope| {
        scope.spawn(|| take("waited"));
        until(|| memory.waiting() == 1);
        wakes.store(true, Ordering::SeqCst);
        let small = memory.allocate(1, MAIN).unwrap();
        memory.deallocate(small, MAIN).unwrap();
        until(|| in_try.load(Ordering::SeqCst));
        take("new");
    });
    assert_eq!(order.into_inner(), ["waited", "new"]);
}

/// Many threads over too little memory: each is served within its time, and in the end all is as in the beginning.
#[test]
fn many_threads_share_little_memory_without_a_refusal() {
    let (_, allocator) = on("sim:h200,capacity=200MiB", "");
    let memory = Retry::new(Limit::new(Arc::clone(&allocator), 130 * MIB), LONG_MS);
    thread::scope(|scope| {
        for at in 0..6u64 {
            let memory = &memory;
            scope.spawn(move || {
                for round in 0..60 {
                    let size = (10 + (at * 7 + round * 13) % 55) * MIB;
                    let block = memory.allocate(size, MAIN).unwrap();
                    thread::yield_now();
                    memory.deallocate(block, MAIN).unwrap();
                }
            });
        }
    });
    let figures = memory.figures();
    assert_eq!((figures.timed_out, figures.served), (0, figures.waited));
    assert!(figures.waited > 0, "the memory was never short: {figures:?}");
    assert_eq!((memory.waiting(), memory.upstream_allocated()), (0, 0));
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.stats().reserved_bytes.all.current, 0);
}

trait UpstreamAllocated {
    fn upstream_allocated(&self) -> u64;
}

impl UpstreamAllocated for Retry<Limit<Arc<Allocator>>> {
    fn upstream_allocated(&self) -> u64 {
        seamalloc_layers::Layer::upstream(self).allocated()
    }
}

/// A failed free wakes nobody, and a free of nothing neither.
#[test]
fn only_frees_wake() {
    let fake = Arc::new(Fake::new(100));
    let memory = Retry::new(Arc::clone(&fake), 80);
    let held = memory.allocate(90, MAIN).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| memory.allocate(20, MAIN));
        until(|| memory.waiting() == 1);
        fake.fail_free();
        assert_eq!(memory.deallocate(held, MAIN).unwrap_err(), broken());
        memory.deallocate(RawBlock::empty(MAIN), MAIN).unwrap();
        assert!(waits.join().unwrap().is_err());
    });
    assert_eq!(memory.figures(), RetryFigures { waited: 1, served: 0, timed_out: 1, tries: 1 });
}

/// The layers of Paddle: stream safety in a retry. The retry waits for frees, and is served once the event has passed.
#[test]
fn a_retry_around_stream_safety_is_served_when_the_event_has_passed() {
    let options = "strategy:paddle-auto-growth,FLAGS_use_stream_safe_cuda_allocator:True";
    let (gpu, allocator) = on("sim:h200,capacity=100MiB", options);
    let memory = Retry::new(allocator, LONG_MS);
    let small = memory.allocate(2 * MIB, MAIN).unwrap();
    let block = memory.allocate(90 * MIB, MAIN).unwrap();
    let hold = gpu.hold(SIDE);
    memory.record_stream(block, SIDE).unwrap();
    memory.deallocate(block, MAIN).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| memory.allocate(95 * MIB, MAIN));
        until(|| memory.waiting() == 1);
        assert!(gpu.finish_hold(hold), "the CPU does not wait for the event");
        memory.deallocate(small, MAIN).unwrap();
        assert!(waits.join().unwrap().is_ok());
    });
}

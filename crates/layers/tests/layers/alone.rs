//! Each layer by itself, over the fake and over an allocator.

use crate::fake::{AfterFree, Fake, broken};
use crate::{MAIN, MIB, SIDE, on};
use seamalloc::{Error, StreamId};
use seamalloc_layers::{
    Counter, FailureCallback, Limit, MemoryResource, RawBlock, ResourceError, Stacks, Statistics, Tracking,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn a_limit_counts_what_is_live_rounded_up() {
    let fake = Arc::new(Fake::new(1 << 30));
    let limit = Limit::new(Arc::clone(&fake), 2048);
    let blocks = [1, 512, 513].map(|size| limit.allocate(size, MAIN).unwrap());
    assert_eq!(limit.allocated(), 512 + 512 + 1024);
    let calls = fake.calls();
    let refused = limit.allocate(1, MAIN).unwrap_err();
    assert_eq!(refused, ResourceError::LimitExceeded { requested: 512, allocated: 2048, limit: 2048 });
    assert!(refused.is_out_of_memory());
    assert_eq!(fake.calls(), calls, "the resource below is not asked");
    assert!(limit.allocate(0, MAIN).unwrap().is_empty());
    limit.deallocate(blocks[2], MAIN).unwrap();
    assert_eq!(limit.allocated(), 1024);
    limit.allocate(1024, MAIN).unwrap();
    // A size that cannot be rounded up is no size that fits.
    assert!(limit.allocate(u64::MAX, MAIN).unwrap_err().is_out_of_memory());
    assert_eq!(limit.allocated(), 2048);
}

#[test]
fn threads_never_exceed_a_limit_and_none_is_refused_for_a_request_that_was() {
    let limit = Limit::with_alignment(Fake::new(1 << 40), 8 * 100, 1);
    std::thread::scope(|scope| {
        // Eight threads of 100 bytes always fit; the ninth asks for far too much all the time.
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let block = limit.allocate(100, MAIN).unwrap();
                    assert!(limit.allocated() <= 800);
                    limit.deallocate(block, MAIN).unwrap();
                }
            });
        }
        scope.spawn(|| (0..2000).for_each(|_| assert!(limit.allocate(801, MAIN).is_err())));
    });
    assert_eq!(limit.allocated(), 0);
}

/// The stack has this function's name in each build: optimised, a test may have no frame of its own.
#[inline(never)]
fn allocated_here<R: MemoryResource>(resource: &R, size: u64, stream: StreamId) -> RawBlock {
    resource.allocate(size, stream).unwrap()
}

#[test]
fn tracking_says_what_is_live_and_refuses_what_is_not() {
    let (_, allocator) = on("sim:h200,capacity=1GiB", "");
    let tracking = Tracking::new(Arc::clone(&allocator), Stacks::On);
    let first = allocated_here(&tracking, 3 * MIB, MAIN);
    let second = allocated_here(&tracking, 5 * MIB, SIDE);
    let outstanding = tracking.outstanding().unwrap();
    assert_eq!(outstanding.iter().map(|of| of.number).sum::<u64>(), 1);
    assert_eq!(tracking.allocated(), 8 * MIB);
    let report = tracking.report().unwrap();
    let place = format!("{:#x}: {} B, stream 0x8", second.address, 5 * MIB);
    assert!(report.contains(&place), "{report}");
    // The stack names who asked.
    assert!(report.contains("allocated_here"), "{report}");

    let wrong = RawBlock { size: 4 * MIB, ..second };
    let error = tracking.deallocate(wrong, SIDE).unwrap_err();
    assert_eq!(error, ResourceError::SizeMismatch { address: second.address, allocated: 5 * MIB, freed: 4 * MIB });
    let unknown = RawBlock { address: second.address + 512, ..second };
    let error = tracking.deallocate(unknown, SIDE).unwrap_err();
    assert_eq!(error, ResourceError::UnknownBlock { address: unknown.address });
    assert_eq!(tracking.outstanding().unwrap().len(), 2);
    for block in [first, second] {
        tracking.deallocate(block, block.stream).unwrap();
        assert_eq!(
            tracking.deallocate(block, block.stream).unwrap_err(),
            ResourceError::UnknownBlock { address: block.address }
        );
    }
    assert_eq!((tracking.report().unwrap(), tracking.allocated()), (String::new(), 0));
    assert_eq!(allocator.stats().allocated_bytes.all.current, 0);
}

#[test]
fn without_stacks_none_is_kept() {
    let tracking = Tracking::new(Fake::new(100), Stacks::Off);
    tracking.allocate(10, MAIN).unwrap();
    assert!(tracking.outstanding().unwrap().iter().all(|of| of.stack.is_none()));
    assert_eq!(tracking.report().unwrap().lines().count(), 1);
}

#[test]
fn two_threads_that_free_one_block_are_told_apart() {
    for _ in 0..200 {
        let tracking = Tracking::new(Fake::new(1000), Stacks::Off);
        let block = tracking.allocate(10, MAIN).unwrap();
        let freed: usize = std::thread::scope(|scope| {
            let free = || usize::from(tracking.deallocate(block, MAIN).is_ok());
            let threads = [scope.spawn(free), scope.spawn(free)];
            threads.map(|thread| thread.join().unwrap()).iter().sum()
        });
        assert_eq!((freed, tracking.allocated()), (1, 0));
    }
}

/// Memory is another thread's before the free of it has returned: that thread's entry stays.
#[test]
fn a_block_where_one_was_just_freed_is_known() {
    let below = Arc::new(AfterFree { below: Fake::new(1000), hook: parking_lot::Mutex::new(None) });
    let tracking = Arc::new(Tracking::new(Arc::clone(&below), Stacks::Off));
    let block = tracking.allocate(10, MAIN).unwrap();
    let again = Arc::downgrade(&tracking);
    *below.hook.lock() = Some(Box::new(move || {
        let tracking = again.upgrade().unwrap();
        assert_eq!(tracking.allocate(10, MAIN).unwrap(), block);
    }));
    tracking.deallocate(block, MAIN).unwrap();
    let outstanding = tracking.outstanding().unwrap();
    assert_eq!((outstanding.len(), outstanding[0].number, tracking.allocated()), (1, 1, 10));
    tracking.deallocate(block, MAIN).unwrap();
}

#[test]
fn a_failure_callback_is_asked_until_it_says_no() {
    let fake = Arc::new(Fake::new(100));
    let held = fake.allocate(90, MAIN).unwrap();
    let asked = Arc::new(AtomicU64::new(0));
    let (below, count) = (Arc::clone(&fake), Arc::clone(&asked));
    let memory = FailureCallback::new(Arc::clone(&fake), move |size, error| {
        assert!(size == 50 && error.is_out_of_memory());
        // The second time it frees something.
        let asked = count.fetch_add(1, Ordering::Relaxed);
        if asked == 1 {
            below.deallocate(held, MAIN).unwrap();
        }
        asked < 5
    });
    let block = memory.allocate(50, MAIN).unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    // Nothing is left to free: it is asked until it says no, and the error is the last one.
    let other = memory.allocate(50, MAIN).unwrap();
    assert!(memory.allocate(50, MAIN).unwrap_err().is_out_of_memory());
    assert_eq!(asked.load(Ordering::Relaxed), 6);
    // Other errors are none of its business, unless it says so.
    fake.fail_allocation();
    assert_eq!(memory.allocate(50, MAIN).unwrap_err(), broken());
    assert_eq!(asked.load(Ordering::Relaxed), 6);
    let any = FailureCallback::on(Arc::clone(&fake), |_| true, |_, error| *error == broken());
    memory.deallocate(block, MAIN).unwrap();
    fake.fail_allocation();
    any.deallocate(any.allocate(50, MAIN).unwrap(), MAIN).unwrap();
    memory.deallocate(other, MAIN).unwrap();
}

#[test]
fn a_callback_that_panics_lets_the_request_fail() {
    let memory = FailureCallback::new(Fake::new(10), |_, _| panic!("a mistake of the program's"));
    assert!(memory.allocate(11, MAIN).unwrap_err().is_out_of_memory());
    memory.allocate(10, MAIN).unwrap();
}

#[test]
fn a_callback_may_use_the_layer_below() {
    let (_, allocator) = on("sim:h200,capacity=100MiB", "");
    let cache = parking_lot::Mutex::new(vec![MemoryResource::allocate(&allocator, 80 * MIB, MAIN).unwrap()]);
    let below = Arc::clone(&allocator);
    let memory = FailureCallback::new(Arc::clone(&allocator), move |_, _| {
        let entry = cache.lock().pop();
        entry.is_some_and(|block| MemoryResource::deallocate(&below, block, MAIN).is_ok())
    });
    memory.allocate(60 * MIB, MAIN).unwrap();
    let error = memory.allocate(60 * MIB, MAIN).unwrap_err();
    assert!(matches!(error, ResourceError::Allocator(Error::OutOfMemory(_))));
}

#[test]
fn counters_have_peaks_of_their_own_inside_of_others() {
    let memory = Statistics::new(Fake::new(1 << 30));
    let first = memory.allocate(100, MAIN).unwrap();
    memory.allocate(0, MAIN).unwrap();
    assert_eq!(memory.push().unwrap().blocks, Counter { value: 2, peak: 2, total: 2 });
    let second = memory.allocate(30, MAIN).unwrap();
    memory.deallocate(first, MAIN).unwrap();
    assert_eq!(memory.counters().bytes, Counter { value: -70, peak: 30, total: 30 });
    memory.deallocate(second, MAIN).unwrap();
    let inner = memory.pop().unwrap();
    assert_eq!(inner.bytes, Counter { value: -100, peak: 30, total: 30 });
    // 100 and 30 were live at once; 130 were allocated; nothing is left.
    assert_eq!(memory.counters().bytes, Counter { value: 0, peak: 130, total: 130 });
    assert_eq!(memory.pop().unwrap_err(), ResourceError::NothingPushed);
}

#[test]
fn a_stream_that_is_named_at_the_free_or_before_is_waited_for_unless_erased() {
    let (gpu, allocator) = on("sim:h200,capacity=1GiB", "strategy:caching");
    let memory = Statistics::new(Tracking::new(Arc::clone(&allocator), Stacks::Off));
    let pending = || allocator.stats().active_bytes.all.current - allocator.stats().allocated_bytes.all.current;
    let free = |record: bool, erase: bool, at_free| {
        let block = memory.allocate(4 * MIB, MAIN).unwrap();
        if record {
            memory.record_stream(block, SIDE).unwrap();
        }
        if erase {
            memory.erase_stream(block, SIDE).unwrap();
        }
        let busy = gpu.hold(SIDE);
        memory.deallocate(block, at_free).unwrap();
        let waits = pending() > 0;
        assert!(gpu.finish_hold(busy));
        // A request looks at what was waited for.
        let next = memory.allocate(4 * MIB, MAIN).unwrap();
        memory.deallocate(next, MAIN).unwrap();
        assert_eq!(pending(), 0);
        waits
    };
    assert!(!free(false, false, MAIN));
    assert!(free(true, false, MAIN));
    assert!(!free(true, true, MAIN));
    assert!(free(false, false, SIDE));
    assert!(free(true, true, SIDE));
    assert!(!free(false, true, MAIN), "a stream that was not named cannot be taken back");
    let erased = allocator.streams().unrecord(12345, SIDE);
    assert_eq!(erased, Err(Error::InvalidAddress { address: 12345 }));
    allocator.streams().unrecord(0, SIDE).unwrap();
}

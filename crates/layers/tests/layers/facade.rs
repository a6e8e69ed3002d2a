//! Facades: which allocator serves what, when it is made, and where a block goes back to.

use crate::fake::AfterFree;
use crate::{MAIN, MIB, SIDE, gpu, on};
use seamalloc::driver::{Call, Driver, StreamId};
use seamalloc::{Allocator, ConfigError, Error, StrategyKind};
use seamalloc_layers::{
    Facade, Limit, MemoryResource, Outstanding, RawBlock, ResourceError, SharedResource, Spread, Stacks, Tracking,
};
use std::sync::{Arc, Barrier, OnceLock};
use std::thread;

fn open(strategy: &str, options: &str, spread: Spread, device: &str) -> (Arc<seamalloc::driver::sim::SimGpu>, Facade) {
    let gpu = gpu(device);
    let facade = Facade::builder(strategy, options).unwrap().spread(spread);
    let facade = facade.open([Arc::clone(&gpu) as Arc<dyn Driver>]).unwrap();
    (gpu, facade)
}

fn live(allocator: &Allocator) -> u64 {
    allocator.stats().allocated_bytes.all.current
}

#[test]
fn a_strategy_is_chosen_by_name_whatever_the_options_say() {
    for kind in StrategyKind::ALL {
        let facade = Facade::builder(kind.name(), "strategy:caching,wait_ms:5").unwrap();
        let facade = facade.open([gpu("sim:h200,capacity=8GiB") as Arc<dyn Driver>]).unwrap();
        let memory = &facade.devices()[0];
        let block = memory.allocate(3 * MIB, MAIN).unwrap();
        let made = facade.allocators(0).unwrap();
        assert_eq!((made[0].config().strategy, made[0].config().wait_ms), (kind, Some(5)));
        memory.deallocate(block, MAIN).unwrap();
    }
    let unknown = Facade::builder("stich", "").unwrap_err();
    assert!(matches!(
        &unknown,
        ResourceError::Allocator(Error::Config(ConfigError::UnknownStrategy { nearest: Some("stitch"), .. }))
    ));
    assert!(Facade::builder("stitch", "no_option:5").is_err());
    assert!(Facade::builder("stitch", "per_process_memory_fraction:7").is_err());
}

#[test]
fn allocators_are_made_when_first_used_one_a_stream() {
    let (gpu, facade) = open("caching", "", Spread::Stream, "sim:h200,capacity=1GiB");
    let memory = &facade.devices()[0];
    assert!(memory.allocate(0, StreamId(5)).unwrap().is_empty());
    memory.deallocate(RawBlock::empty(MAIN), SIDE).unwrap();
    assert_eq!((facade.allocators(0).unwrap().len(), gpu.call_stats().total_ns()), (0, 0));
    let a = memory.allocate(3 * MIB, MAIN).unwrap();
    let b = memory.allocate(3 * MIB, SIDE).unwrap();
    let c = memory.allocate(3 * MIB, SIDE).unwrap();
    assert_eq!(facade.allocators(0).unwrap().len(), 2);
    // Memory of one stream is not another's, though it is free.
    memory.deallocate(a, MAIN).unwrap();
    let d = memory.allocate(3 * MIB, SIDE).unwrap();
    assert_ne!(d.address, a.address);
    let e = memory.allocate(3 * MIB, MAIN).unwrap();
    assert_eq!(e.address, a.address);
    // A block goes back to its own, whichever stream used it last.
    memory.deallocate(b, MAIN).unwrap();
    for block in [c, d, e] {
        memory.deallocate(block, block.stream).unwrap();
    }
    assert!(facade.allocators(0).unwrap().iter().all(|of| live(of) == 0));
    let unknown = RawBlock { address: 512, size: 5, stream: StreamId(77) };
    assert_eq!(memory.deallocate(unknown, MAIN).unwrap_err(), ResourceError::UnknownBlock { address: 512 });
    assert!(facade.allocators(7).unwrap().is_empty());
}

/// Paddle: before a request is refused, all streams give back what is free, and it is tried once more.
#[test]
fn free_memory_of_other_allocators_goes_back_before_a_refusal() {
    for spread in [Spread::Stream, Spread::Thread] {
        let (gpu, facade) = open("paddle-auto-growth", "", spread, "sim:h200,capacity=100MiB");
        let memory = &facade.devices()[0];
        let first = thread::scope(|scope| {
            let other = scope.spawn(|| memory.allocate(70 * MIB, SIDE).unwrap());
            other.join().unwrap()
        });
        assert!(memory.allocate(60 * MIB, MAIN).unwrap_err().is_out_of_memory());
        memory.deallocate(first, SIDE).unwrap();
        let frees = gpu.call_stats().get(Call::Free).count;
        let second = memory.allocate(60 * MIB, MAIN).unwrap();
        // With a thread's own allocator, the memory of a thread that has ended is given back with its last block.
        assert_eq!(gpu.call_stats().get(Call::Free).count - frees, u64::from(spread == Spread::Stream));
        memory.deallocate(second, MAIN).unwrap();
    }
}

#[test]
fn each_device_has_its_own() {
    let gpus = [gpu("sim:h200,capacity=100MiB"), gpu("sim:h200,capacity=200MiB")];
    let facade = Facade::builder("stitch", "").unwrap();
    let facade = facade.open(gpus.map(|gpu| gpu as Arc<dyn Driver>)).unwrap();
    let [small, large] = [&facade.devices()[0], &facade.devices()[1]];
    assert!(small.allocate(150 * MIB, MAIN).is_err());
    large.allocate(150 * MIB, MAIN).unwrap();
    assert_eq!((small.memory_info().unwrap().total, large.memory_info().unwrap().total), (100 * MIB, 200 * MIB));
    assert_eq!(format!("{facade:?}"), "[stitch by device, stitch by device]");
}

#[test]
fn layers_stand_where_they_were_put() {
    let seen: Arc<OnceLock<Arc<Tracking<SharedResource>>>> = Arc::default();
    let keep = Arc::clone(&seen);
    let counters = Arc::new(OnceLock::new());
    let count = Arc::clone(&counters);
    let facade = Facade::builder("caching", "")
        .unwrap()
        .spread(Spread::Stream)
        .around_each(|below| Arc::new(Limit::new(below, 10 * MIB)))
        .around_all(move |below| {
            let tracking = Arc::new(Tracking::new(below, Stacks::Off));
            assert!(keep.set(Arc::clone(&tracking)).is_ok());
            tracking
        })
        .statistics(move |statistics| assert!(count.set(statistics).is_ok()))
        .retry_time_ms(1)
        .open([gpu("sim:h200,capacity=1GiB") as Arc<dyn Driver>])
        .unwrap();
    let memory = &facade.devices()[0];
    assert_eq!(format!("{memory:?}"), "retry > statistics > tracking > caching by stream");
    // Each stream has a limit of its own.
    let blocks = [MAIN, SIDE].map(|stream| memory.allocate(8 * MIB, stream).unwrap());
    let refused = memory.allocate(8 * MIB, MAIN).unwrap_err();
    assert_eq!(refused, ResourceError::LimitExceeded { requested: 8 * MIB, allocated: 8 * MIB, limit: 10 * MIB });
    let tracked: Vec<Outstanding> = seen.get().unwrap().outstanding().unwrap();
    assert_eq!(tracked.len(), 2);
    assert_eq!(counters.get().unwrap().counters().bytes.value, 16 * MIB as i64);
    for block in blocks {
        memory.deallocate(block, block.stream).unwrap();
    }
}

/// A request for one stream waits for a free on another: the retry stands around all of them.
#[test]
fn frees_of_any_stream_wake() {
    let facade = Facade::builder("paddle-auto-growth", "").unwrap().spread(Spread::Stream).retry_time_ms(20_000);
    let facade = facade.open([gpu("sim:h200,capacity=100MiB") as Arc<dyn Driver>]).unwrap();
    let memory = &facade.devices()[0];
    let held = memory.allocate(80 * MIB, SIDE).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| memory.allocate(60 * MIB, MAIN));
        thread::sleep(std::time::Duration::from_millis(20));
        memory.deallocate(held, SIDE).unwrap();
        assert!(waits.join().unwrap().is_ok());
    });
}

/// Paddle's `thread_local`: what one thread has freed does not serve another, and a block goes back to the allocator of the thread
/// that allocated it.
#[test]
fn paddles_thread_local_goes_by_thread() {
    let gpu = gpu("sim:h200,capacity=1GiB");
    let facade = Facade::builder("paddle-thread-local", "FLAGS_initial_gpu_memory_in_mb:20").unwrap();
    let facade = facade.open([Arc::clone(&gpu) as Arc<dyn Driver>]).unwrap();
    let memory = &facade.devices()[0];
    assert_eq!(format!("{memory:?}"), "paddle-thread-local by thread");
    // One stream for all.
    let own = memory.allocate(3 * MIB, MAIN).unwrap();
    memory.deallocate(own, MAIN).unwrap();
    let (ready, done) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let block = memory.allocate(3 * MIB, MAIN).unwrap();
            ready.wait();
            // It was freed by the other thread meanwhile, and is this one's again.
            done.wait();
            let again = memory.allocate(3 * MIB, MAIN).unwrap();
            memory.deallocate(again, MAIN).unwrap();
            (block, again)
        });
        ready.wait();
        let made = facade.allocators(0).unwrap();
        assert_eq!(made.len(), 2);
        // The thread took a chunk of its own although the first one's is free.
        assert_eq!(gpu.call_stats().get(Call::Malloc).count, 2);
        let lives: u64 = made.iter().map(|of| live(of)).sum();
        let of_other = made.iter().find(|of| live(of) > 0).unwrap();
        assert_eq!(live(of_other), lives);
        let block = of_other.snapshot_address();
        memory.deallocate(RawBlock { address: block, size: 3 * MIB, stream: MAIN }, MAIN).unwrap();
        assert!(made.iter().all(|of| live(of) == 0));
        drop(made);
        done.wait();
        let (first, again) = other.join().unwrap();
        assert_eq!(first.address, again.address);
        assert_ne!(first.address, own.address);
    });
    // The thread has ended and left no block: its chunk is the device's again.
    assert_eq!(facade.allocators(0).unwrap().len(), 1);
    assert_eq!(gpu.call_stats().get(Call::Free).count, 1);
    assert_eq!(memory.allocate(3 * MIB, MAIN).unwrap().address, own.address);
}

trait SnapshotAddress {
    fn snapshot_address(&self) -> u64;
}

impl SnapshotAddress for Allocator {
    /// The address of the only live block.
    fn snapshot_address(&self) -> u64 {
        let snapshot = self.reports().snapshot();
        let blocks = snapshot.segments.iter().flat_map(|segment| segment.blocks.iter());
        let mut live = blocks.filter(|block| block.requested_size > 0);
        live.next().unwrap().address
    }
}

#[test]
fn a_block_outlives_the_thread_that_allocated_it() {
    let (gpu, facade) =
        open("paddle-thread-local", "FLAGS_initial_gpu_memory_in_mb:20", Spread::Thread, "sim:h200,capacity=1GiB");
    let memory = &facade.devices()[0];
    let block = thread::scope(|scope| scope.spawn(|| memory.allocate(3 * MIB, MAIN).unwrap()).join().unwrap());
    assert_eq!(facade.allocators(0).unwrap().len(), 0, "the thread has ended");
    assert_eq!(gpu.call_stats().get(Call::Free).count, 0, "its memory lives");
    let wrong = RawBlock { address: block.address + 512, ..block };
    assert_eq!(memory.deallocate(wrong, MAIN).unwrap_err(), ResourceError::UnknownBlock { address: wrong.address });
    memory.record_stream(block, SIDE).unwrap();
    memory.deallocate(block, MAIN).unwrap();
    assert_eq!(gpu.call_stats().get(Call::Free).count, 1);
    assert_eq!(memory.deallocate(block, MAIN).unwrap_err(), ResourceError::UnknownBlock { address: block.address });
    assert!(gpu.faults().is_empty());
}

/// Memory is handed out again before the free of it has returned: the new block's owner is known.
#[test]
fn a_block_where_one_was_just_freed_has_its_owner() {
    let seen: Arc<OnceLock<Arc<AfterFree<SharedResource>>>> = Arc::default();
    let keep = Arc::clone(&seen);
    let facade = Facade::builder("caching", "").unwrap().spread(Spread::Thread);
    let facade = facade.around_each(move |below| {
        let layer = Arc::new(AfterFree { below, hook: parking_lot::Mutex::new(None) });
        assert!(keep.set(Arc::clone(&layer)).is_ok());
        layer
    });
    let facade = facade.open([gpu("sim:h200,capacity=1GiB") as Arc<dyn Driver>]).unwrap();
    let memory = Arc::clone(&facade.devices()[0]);
    let block = memory.allocate(3 * MIB, MAIN).unwrap();
    let again = Arc::downgrade(&memory);
    *seen.get().unwrap().hook.lock() = Some(Box::new(move || {
        let again = again.upgrade().unwrap().allocate(3 * MIB, MAIN).unwrap();
        assert_eq!(again, block);
    }));
    memory.deallocate(block, MAIN).unwrap();
    memory.deallocate(block, MAIN).unwrap();
    assert!(memory.deallocate(block, MAIN).is_err());
}

#[test]
fn a_failed_free_leaves_the_block_to_its_owner() {
    let (gpu, facade) = open("caching", "", Spread::Thread, "sim:h200,capacity=1GiB");
    let memory = &facade.devices()[0];
    let block = memory.allocate(3 * MIB, MAIN).unwrap();
    memory.record_stream(block, SIDE).unwrap();
    gpu.fail_nth(Call::EventRecord, 1, seamalloc::driver::Status(999));
    assert!(memory.deallocate(block, MAIN).is_err());
    gpu.fail_no_more();
    memory.deallocate(block, MAIN).unwrap();
}

#[test]
fn a_stream_that_is_forgotten_takes_its_allocator_with_it() {
    let (gpu, facade) = open("caching", "", Spread::Stream, "sim:h200,capacity=1GiB");
    let memory = &facade.devices()[0];
    let block = memory.allocate(3 * MIB, SIDE).unwrap();
    facade.forget_stream(0, SIDE).unwrap();
    assert_eq!(facade.allocators(0).unwrap().len(), 1, "a block is live");
    memory.deallocate(block, SIDE).unwrap();
    facade.forget_stream(0, SIDE).unwrap();
    assert_eq!(facade.allocators(0).unwrap().len(), 0);
    assert_eq!(gpu.call_stats().get(Call::Free).count, 1);
    let again = memory.allocate(3 * MIB, SIDE).unwrap();
    memory.deallocate(again, SIDE).unwrap();
}

#[test]
fn streams_and_threads_at_once() {
    for spread in [Spread::Device, Spread::Stream, Spread::Thread] {
        let (gpu, facade) = open("stitch", "", spread, "sim:h200,capacity=2GiB");
        let memory = &facade.devices()[0];
        thread::scope(|scope| {
            let run = |at: u64| {
                move || {
                    let mut held = Vec::new();
                    for round in 0..200u64 {
                        let stream = StreamId((at + round % 3) % 4);
                        held.push(memory.allocate((1 + (at * 31 + round * 17) % 40) << 18, stream).unwrap());
                        if held.len() > 5 {
                            let block = held.swap_remove((round % 5) as usize);
                            memory.deallocate(block, block.stream).unwrap();
                        }
                    }
                    held.into_iter().for_each(|block| memory.deallocate(block, block.stream).unwrap());
                }
            };
            // A scope alone does not wait for what threads do at their end.
            for thread in [0, 1, 2, 3].map(|at| scope.spawn(run(at))) {
                thread.join().unwrap();
            }
        });
        let made = facade.allocators(0).unwrap();
        assert!(made.iter().all(|of| live(of) == 0), "{spread:?}");
        let expected = match spread {
            Spread::Device => 1,
            Spread::Stream => 4,
            // The threads have ended.
            Spread::Thread => 0,
            other => panic!("{other:?} has no test"),
        };
        assert_eq!(made.len(), expected, "{spread:?}");
        drop((made, facade));
        assert_eq!(gpu.leaks(), Default::default(), "{spread:?}");
        assert!(gpu.faults().is_empty());
    }
}

#[test]
fn shared_behind_a_pointer_a_resource_is_one() {
    let (_, allocator) = on("sim:h200,capacity=1GiB", "");
    let memory: Arc<dyn MemoryResource> = Arc::new(Limit::new(allocator, 5 * MIB));
    let twice = Limit::new(Arc::clone(&memory), 3 * MIB);
    assert!(twice.allocate(4 * MIB, MAIN).is_err());
    assert!(memory.allocate(4 * MIB, MAIN).is_ok());
    assert_eq!(format!("{memory:?}"), "limit > stitch");
}

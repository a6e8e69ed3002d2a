//! Private pools of graphs: prepared, used in captures, removed; nothing is released meanwhile.

use crate::fake::Fake;
use crate::{MAIN, MIB, SIDE, on};
use seamalloc::Error;
use seamalloc::driver::sim::CaptureMode;
use seamalloc::driver::{Driver, StreamId};
use seamalloc_layers::{
    Capture, Facade, Limit, MemoryResource, PrivatePools, RawBlock, ResourceError, Spread, Tracking,
};
use std::sync::Arc;

#[test]
fn a_pool_lives_as_long_as_it_is_prepared() {
    let (gpu, allocator) = on("sim:h200,capacity=1GiB", "");
    let memory = Capture::new(Limit::new(Arc::clone(&allocator), 1 << 30));
    let pool = memory.prepare(5).unwrap();
    assert_eq!(memory.prepare(5).unwrap(), pool, "a second use of the same pool");
    assert_ne!(memory.prepare(6).unwrap(), pool);
    memory.begin(5, SIDE).unwrap();
    gpu.begin_capture(SIDE, CaptureMode::Global).unwrap();
    let captured = memory.allocate(10 * MIB, SIDE).unwrap();
    memory.deallocate(captured, SIDE).unwrap();
    assert!(memory.any_capturing());
    // Memory of nobody is not given back either.
    assert_eq!(memory.release().unwrap(), 0);
    gpu.end_capture(SIDE).unwrap();
    memory.end(5).unwrap();
    let outside = memory.allocate(10 * MIB, SIDE).unwrap();
    assert_ne!(outside.address, captured.address, "the graph's memory serves no one else");
    memory.deallocate(outside, SIDE).unwrap();
    // Of the graph nothing goes back while it is prepared, once or twice.
    assert_eq!(memory.release().unwrap(), 10 * MIB);
    memory.remove(5).unwrap();
    assert_eq!((memory.release().unwrap(), memory.pool(5)), (0, Some(pool)));
    memory.remove(5).unwrap();
    assert_eq!((memory.release().unwrap(), memory.pool(5)), (10 * MIB, None));
    memory.remove(6).unwrap();
    assert_eq!(memory.remove(6).unwrap_err(), ResourceError::UnknownGraph { graph: 6 });
    assert!(gpu.faults().is_empty());
}

#[test]
fn during_a_capture_nothing_below_is_asked_to_release() {
    let fake = Arc::new(Fake::new(100));
    let memory = Capture::new(Arc::clone(&fake));
    memory.prepare(1).unwrap();
    memory.prepare(2).unwrap();
    memory.begin(1, SIDE).unwrap();
    memory.begin(2, StreamId(9)).unwrap();
    memory.release().unwrap();
    memory.end(1).unwrap();
    memory.release().unwrap();
    assert_eq!(fake.state.lock().released, 0);
    memory.end(2).unwrap();
    memory.release().unwrap();
    assert_eq!(fake.state.lock().released, 1);
}

#[test]
fn what_is_out_of_order_is_refused_and_changes_nothing() {
    let (gpu, allocator) = on("sim:h200,capacity=1GiB", "");
    let memory = Capture::new(Arc::clone(&allocator));
    for refused in [memory.begin(1, SIDE), memory.end(1), memory.remove(1)] {
        assert_eq!(refused.unwrap_err(), ResourceError::UnknownGraph { graph: 1 });
    }
    memory.prepare(1).unwrap();
    assert_eq!(memory.end(1).unwrap_err(), ResourceError::GraphNotCapturing { graph: 1 });
    memory.begin(1, SIDE).unwrap();
    assert_eq!(memory.begin(1, MAIN).unwrap_err(), ResourceError::GraphCapturing { graph: 1 });
    assert_eq!(memory.remove(1).unwrap_err(), ResourceError::GraphCapturing { graph: 1 });
    assert!(memory.any_capturing());
    memory.end(1).unwrap();
    memory.remove(1).unwrap();
    // A failed wait at the beginning routes nothing.
    memory.prepare(2).unwrap();
    let held = memory.upstream_allocate_in(2, SIDE);
    allocator.free(held).unwrap();
    gpu.fail_nth(seamalloc::driver::Call::StreamSynchronize, 1, seamalloc::driver::Status(999));
    assert!(matches!(memory.begin(2, SIDE).unwrap_err(), ResourceError::Allocator(Error::Driver(_))));
    assert!(!memory.any_capturing());
    gpu.fail_no_more();
    memory.begin(2, SIDE).unwrap();
    memory.end(2).unwrap();
}

trait InPool {
    fn upstream_allocate_in(&self, graph: u64, stream: StreamId) -> u64;
}

impl InPool for Capture<Arc<seamalloc::Allocator>> {
    fn upstream_allocate_in(&self, graph: u64, stream: StreamId) -> u64 {
        let allocator = seamalloc_layers::Layer::upstream(self);
        allocator.pools().allocate(self.pool(graph).unwrap(), MIB, stream).unwrap()
    }
}

/// With one allocator a stream, all of them know of a capture: also one that is made meanwhile.
#[test]
fn every_allocator_of_a_facade_keeps_to_what_a_capture_allows() {
    for spread in [Spread::Device, Spread::Stream, Spread::Thread] {
        let (gpu, _) = on("sim:h200,capacity=1GiB", "");
        let facade = Facade::builder("stitch", "").unwrap().spread(spread);
        let facade = facade.around_all(|below| Arc::new(Tracking::new(below, Default::default())));
        let facade = facade.open([Arc::clone(&gpu) as Arc<dyn Driver>]).unwrap();
        let memory = Capture::new(Arc::clone(&facade.devices()[0]));
        let other = StreamId(9);
        let used = memory.allocate(20 * MIB, MAIN).unwrap();
        memory.record_stream(used, other).unwrap();
        memory.prepare(1).unwrap();
        memory.begin(1, SIDE).unwrap();
        gpu.begin_capture(SIDE, CaptureMode::Global).unwrap();
        // A free that waits for events, a request of a new stream, one of the capture, one that finds no memory.
        memory.deallocate(used, MAIN).unwrap();
        let new = memory.allocate(30 * MIB, other).unwrap();
        let captured = memory.allocate(40 * MIB, SIDE).unwrap();
        let again = {
            memory.deallocate(captured, SIDE).unwrap();
            memory.allocate(40 * MIB, SIDE).unwrap()
        };
        assert_eq!(again.address, captured.address);
        assert!(memory.allocate(2 << 30, other).unwrap_err().is_out_of_memory());
        assert!(memory.allocate(2 << 30, SIDE).unwrap_err().is_out_of_memory());
        assert_eq!(memory.release().unwrap(), 0);
        gpu.end_capture(SIDE).unwrap();
        memory.end(1).unwrap();
        for block in [again, new] {
            memory.deallocate(block, block.stream).unwrap();
        }
        // What the graph has stays; the rest can go.
        assert!(memory.release().unwrap() > 0);
        let held: u64 = facade.allocators(0).unwrap().iter().map(|of| of.stats().reserved_bytes.all.current).sum();
        assert_eq!(held, 40 * MIB, "{spread:?}");
        memory.remove(1).unwrap();
        assert_eq!(memory.release().unwrap(), 40 * MIB, "{spread:?}");
        assert!(gpu.faults().is_empty());
    }
}

#[test]
fn a_capture_that_cannot_begin_everywhere_begins_nowhere() {
    let (gpu, _) = on("sim:h200,capacity=1GiB", "");
    let facade = Facade::builder("stitch", "").unwrap().spread(Spread::Stream);
    let facade = facade.open([Arc::clone(&gpu) as Arc<dyn Driver>]).unwrap();
    let memory = &facade.devices()[0];
    let blocks: Vec<RawBlock> = [MAIN, SIDE].iter().map(|of| memory.allocate(MIB, *of).unwrap()).collect();
    let pool = memory.create_pool().unwrap();
    // Memory of the pool that a stream has freed outside of a capture is waited for at the beginning: one of the two fails.
    for allocator in facade.allocators(0).unwrap() {
        let address = allocator.pools().allocate(pool, MIB, SIDE).unwrap();
        allocator.free(address).unwrap();
    }
    for nth in [1, 2] {
        gpu.fail_nth(seamalloc::driver::Call::StreamSynchronize, nth, seamalloc::driver::Status(999));
        assert!(memory.begin_capture(pool, SIDE).is_err());
        gpu.fail_no_more();
        assert!(matches!(memory.end_capture(pool).unwrap_err(), ResourceError::Allocator(Error::PoolNotRouted { .. })));
        for allocator in facade.allocators(0).unwrap() {
            assert!(matches!(allocator.pools().end(pool), Err(Error::PoolNotRouted { .. })));
            let address = allocator.pools().allocate(pool, MIB, SIDE).unwrap();
            allocator.free(address).unwrap();
        }
    }
    memory.begin_capture(pool, SIDE).unwrap();
    memory.end_capture(pool).unwrap();
    memory.release_pool(pool).unwrap();
    assert!(memory.release_pool(pool).is_err());
    for block in blocks {
        memory.deallocate(block, block.stream).unwrap();
    }
}

//! Pools and routes that end by themselves.

use super::{MAIN, MIB, SIDE, device, live};
use crate::log;
use seamalloc::driver::sim::CaptureMode;
use seamalloc::{Error, Pool, PoolId, PoolRoute, Route};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

#[test]
fn the_use_of_a_pool_ends_with_it() {
    let (_, allocator) = device();
    let pool = Pool::create(&allocator).unwrap();
    let id = pool.id();
    let again = pool.try_clone().unwrap();
    assert_eq!(pool.stats().unwrap().uses, 2);
    drop(pool);
    assert_eq!(again.stats().unwrap().uses, 1);
    drop(again);
    assert!(matches!(allocator.pools().stats(id), Err(Error::UnknownPool { .. })));
}

#[test]
fn a_pool_of_an_id_is_the_same_pool() {
    let (_, allocator) = device();
    let id = PoolId(0, 9);
    let (first, second) = (Pool::of_id(&allocator, id).unwrap(), Pool::of_id(&allocator, id).unwrap());
    assert_eq!((first.id(), second.stats().unwrap().uses), (id, 2));
    assert_ne!(Pool::create(&allocator).unwrap().id(), id);
    assert!(matches!(Pool::of_id(&allocator, PoolId::NONE), Err(Error::UnknownPool { .. })));
}

#[test]
fn blocks_of_a_pool_outlive_it() {
    let (_, allocator) = device();
    let allocator = Arc::new(allocator);
    let pool = Pool::create(Arc::clone(&allocator)).unwrap();
    let block = pool.block(3 * MIB, MAIN).unwrap();
    assert_eq!(pool.stats().unwrap().allocations, 1);
    drop(pool);
    assert!(allocator.reports().owns(block.address()));
    drop(block);
    assert_eq!(live(&allocator), 0);
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.reports().reserved(), 0);
}

#[test]
fn a_route_ends_with_its_guard() {
    let (_, allocator) = device();
    let pool = Pool::create(&allocator).unwrap();
    let live_in = || pool.stats().unwrap().allocations;
    let route = pool.route(Route::stream(MAIN)).unwrap();
    assert_eq!(route.pool(), pool.id());
    assert!(matches!(pool.route(Route::stream(SIDE)), Err(Error::PoolRouted { .. })));
    let routed = allocator.block(MIB, MAIN).unwrap();
    let other = allocator.block(MIB, SIDE).unwrap();
    assert_eq!(live_in(), 1);
    drop(route);
    let after = allocator.block(MIB, MAIN).unwrap();
    assert_eq!((live_in(), pool.stats().unwrap().routed), (1, false));
    drop((routed, other, after));
}

#[test]
fn a_capture_that_unwinds_ends_its_route() {
    let (gpu, allocator) = device();
    let pool = Pool::create(&allocator).unwrap();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _capture = pool.capture(MAIN).unwrap();
        gpu.begin_capture(MAIN, CaptureMode::Global).unwrap();
        let _temporary = allocator.block(10 * MIB, MAIN).unwrap();
        gpu.end_capture(MAIN).unwrap();
        resume_unwind(Box::new("a kernel was refused"));
    }));
    assert!(unwound.is_err());
    let stats = pool.stats().unwrap();
    assert_eq!((stats.routed, stats.captured, stats.allocations, live(&allocator)), (false, true, 0, 0));
    // The next capture finds the memory.
    let capture = pool.capture(MAIN).unwrap();
    drop(allocator.block(10 * MIB, MAIN).unwrap());
    capture.end().unwrap();
    assert_eq!(pool.stats().unwrap().reserved_bytes, stats.reserved_bytes);
}

/// The route of a pool lasts to its own end, whichever of the two is dropped first.
#[test]
fn a_route_may_outlive_its_pool() {
    let (_, allocator) = device();
    let allocator = Arc::new(allocator);
    let pool = Pool::create(Arc::clone(&allocator)).unwrap();
    let route: PoolRoute = pool.route(Route::this_thread()).unwrap();
    let id = pool.id();
    assert!(log::errors(|| drop(pool)).is_empty());
    let block = allocator.block(MIB, MAIN).unwrap();
    assert_eq!(allocator.pools().stats(id).unwrap().allocations, 1);
    assert!(log::errors(|| drop(route)).is_empty());
    drop(block);
    assert_eq!(live(&allocator), 0);
}

#[test]
fn ids_leave_and_come_back() {
    let (_, allocator) = device();
    let id = Pool::create(&allocator).unwrap().into_id();
    assert_eq!(allocator.pools().stats(id).unwrap().uses, 1);
    let mut pool = Pool::from_id(&allocator, id);
    pool.release().unwrap();
    assert!(log::errors(|| drop(pool)).is_empty(), "the use has ended");
    // A use too many is a line in the log.
    let errors = log::errors(|| drop(Pool::from_id(&allocator, id)));
    assert!(matches!(&errors[..], [error] if error.contains("could not be ended")), "{errors:?}");
}

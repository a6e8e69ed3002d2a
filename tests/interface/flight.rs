//! The flight recorder says what was done, in order, and how much of it was overwritten.

use crate::simulated;
use seamalloc::driver::StreamId;
use seamalloc::observer::Action;
use seamalloc::{Allocator, Config, Error, Flight};
use std::time::{SystemTime, UNIX_EPOCH};

const MIB: u64 = 1 << 20;

fn on(options: &str) -> Allocator {
    simulated::on("sim:h200,capacity=1GiB", Config::parse(options).unwrap()).1
}

/// The blocks that were allocated and freed, in order.
fn blocks(flight: &Flight) -> Vec<(Action, u64, u64, StreamId)> {
    let of_blocks = [Action::Alloc, Action::FreeRequested, Action::FreeCompleted];
    let events = flight.events.iter().map(|timed| timed.event).filter(|event| of_blocks.contains(&event.action));
    events.map(|event| (event.action, event.address, event.size, event.stream)).collect()
}

fn now_us() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

#[test]
fn it_is_on_by_default_and_keeps_requests_as_they_were_made() {
    let before = now_us();
    let allocator = on("");
    let (side, size) = (StreamId(7), 3 * MIB + 5);
    let one = allocator.allocate(size, side).unwrap();
    let two = allocator.allocate(100, StreamId::DEFAULT).unwrap();
    allocator.free(one).unwrap();
    let flight = allocator.reports().flight().unwrap();
    let freed = [Action::FreeRequested, Action::FreeCompleted].map(|action| (action, one, size, side));
    let made = [(Action::Alloc, one, size, side), (Action::Alloc, two, 100, StreamId::DEFAULT), freed[0], freed[1]];
    assert_eq!(blocks(&flight), made);
    assert_eq!((flight.overwritten, flight.capacity), (0, 16 << 10));
    // The free is one operation and two events.
    assert_eq!(flight.operations, flight.events.len() as u64 - 1);
    assert_eq!(flight.snapshot, allocator.reports().snapshot());
    assert!(flight.events.iter().all(|timed| (before..=now_us()).contains(&timed.time_us)));
}

#[test]
fn what_it_loses_is_counted() {
    let allocator = on("flight_recorder:100");
    let warm = allocator.allocate(8 * MIB, StreamId::DEFAULT).unwrap();
    allocator.free(warm).unwrap();
    let at_first = allocator.reports().flight().unwrap().operations;
    for nth in 1..=250 {
        let again = allocator.allocate(2 * MIB + nth, StreamId::DEFAULT).unwrap();
        allocator.free(again).unwrap();
    }
    let flight = allocator.reports().flight().unwrap();
    assert_eq!(flight.operations, at_first + 500);
    assert_eq!(flight.overwritten, at_first + 400);
    let sizes: Vec<u64> = blocks(&flight).iter().step_by(3).map(|block| block.2 - 2 * MIB).collect();
    assert_eq!(sizes, (201..=250).collect::<Vec<_>>());
}

#[test]
fn off_it_keeps_nothing() {
    let allocator = on("flight_recorder:0");
    for _ in 0..200 {
        let address = allocator.allocate(MIB, StreamId::DEFAULT).unwrap();
        allocator.free(address).unwrap();
    }
    let flight = allocator.reports().flight().unwrap();
    assert_eq!((flight.events.len(), flight.operations, flight.overwritten, flight.capacity), (0, 0, 0, 0));
    assert_eq!(flight.snapshot, allocator.reports().snapshot());
}

#[test]
fn a_refusal_is_its_last_event() {
    let allocator = on("");
    let _held = allocator.allocate(600 * MIB, StreamId::DEFAULT).unwrap();
    let refused = allocator.allocate(700 * MIB, StreamId::DEFAULT).unwrap_err();
    assert!(matches!(refused, Error::OutOfMemory(_)));
    let last = allocator.reports().flight().unwrap().events.pop().unwrap().event;
    assert_eq!((last.action, last.size), (Action::Oom, 700 * MIB));
    assert_eq!(last.address, allocator.driver().memory_info().unwrap().free & !15);
}

#[test]
fn a_pool_that_another_stream_has_now_was_of_the_stream_that_had_it() {
    let allocator = on("flight_recorder:20000");
    let streams = (1..200).map(StreamId);
    for stream in streams.clone() {
        let address = allocator.allocate(3 * MIB, stream).unwrap();
        allocator.free(address).unwrap();
        allocator.streams().forget(stream).unwrap();
        allocator.empty_cache().unwrap();
    }
    let seen = blocks(&allocator.reports().flight().unwrap());
    let made: Vec<StreamId> = streams.flat_map(|stream| [stream; 3]).collect();
    assert_eq!(seen.iter().map(|block| block.3).collect::<Vec<_>>(), made);
}

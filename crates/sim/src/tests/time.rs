//! Tests of the simulated GPU's clock, streams, events and held work.

use super::{S, Status};
use crate::{SimConfig, SimGpu};
use seamalloc_driver::prelude::*;
use seamalloc_driver::{Call, EventId, StreamId};

const T: StreamId = StreamId(2);

/// Makes a GPU whose clock advances by waits and `advance` alone.
fn gpu() -> SimGpu {
    SimGpu::new(SimConfig { calls_advance_clock: false, ..SimConfig::default() }).unwrap()
}

fn recorded(gpu: &SimGpu, stream: StreamId) -> EventId {
    let event = gpu.event_create().unwrap();
    gpu.event_record(event, stream).unwrap();
    event
}

#[test]
fn a_stream_runs_in_order_and_beside_others() {
    let gpu = gpu();
    gpu.launch(S, &[], 100).unwrap();
    let first = recorded(&gpu, S);
    gpu.launch(S, &[], 50).unwrap();
    let second = recorded(&gpu, S);
    let beside = recorded(&gpu, T);
    let done = || [first, second, beside].map(|event| gpu.event_query(event).unwrap());
    assert_eq!(done(), [false, false, true]);
    gpu.advance(99);
    assert_eq!(done(), [false, false, true]);
    gpu.advance(1);
    assert_eq!(done(), [true, false, true]);
    gpu.advance(50);
    assert_eq!(done(), [true, true, true]);
    gpu.launch(S, &[], 10).unwrap();
    gpu.event_record(first, S).unwrap();
    assert_eq!(done(), [false, true, true], "recording again forgets the earlier record");
}

#[test]
fn an_event_never_recorded_is_complete_and_one_destroyed_is_none() {
    let gpu = gpu();
    let event = gpu.event_create().unwrap();
    assert!(gpu.event_query(event).unwrap());
    gpu.event_synchronize(event).unwrap();
    gpu.stream_wait(S, event).unwrap();
    assert_eq!(gpu.now_ns(), 0);
    gpu.event_destroy(event).unwrap();
    let answers = [
        gpu.event_query(event).map(drop),
        gpu.event_record(event, S),
        gpu.event_synchronize(event),
        gpu.stream_wait(S, event),
        gpu.event_destroy(event),
    ];
    assert!(answers.into_iter().all(|answer| answer.unwrap_err().status == Status::INVALID_HANDLE));
}

#[test]
fn work_behind_a_wait_starts_after_the_event() {
    let gpu = gpu();
    gpu.launch(S, &[], 100).unwrap();
    let event = recorded(&gpu, S);
    gpu.launch(S, &[], 1000).unwrap();
    gpu.stream_wait(T, event).unwrap();
    gpu.launch(T, &[], 5).unwrap();
    gpu.stream_synchronize(T).unwrap();
    assert_eq!(gpu.now_ns(), 105, "after the event, not after all that the other stream was given");
}

#[test]
fn synchronizing_moves_the_clock_to_the_end() {
    let gpu = gpu();
    gpu.launch(S, &[], 100).unwrap();
    let event = recorded(&gpu, S);
    gpu.launch(S, &[], 100).unwrap();
    gpu.event_synchronize(event).unwrap();
    assert_eq!(gpu.now_ns(), 100);
    gpu.stream_synchronize(T).unwrap();
    assert_eq!(gpu.now_ns(), 100, "an idle stream");
    gpu.stream_synchronize(S).unwrap();
    assert_eq!(gpu.now_ns(), 200);
    gpu.launch(T, &[], 70).unwrap();
    let memory = gpu.malloc(1).unwrap();
    gpu.free(0).unwrap();
    assert_eq!(gpu.now_ns(), 200, "nothing to free, nothing to wait for");
    gpu.free(memory).unwrap();
    assert_eq!(gpu.now_ns(), 270, "free waits for the device");
}

#[test]
fn a_wait_is_time_of_the_call_where_the_clock_is_time() {
    let busy = |calls_advance_clock| {
        let gpu = SimGpu::new(SimConfig { calls_advance_clock, ..SimConfig::default() }).unwrap();
        gpu.launch(S, &[], 1_000_000).unwrap();
        gpu.stream_synchronize(S).unwrap();
        (gpu.call_stats().get(Call::StreamSynchronize), gpu.busy_ns(), gpu.now_ns())
    };
    let (stat, busy_ns, now) = busy(true);
    assert_eq!((stat.count, stat.total_ns, busy_ns, now), (1, 1_000_200, 1_000_200, 1_000_200));
    let (stat, busy_ns, now) = busy(false);
    assert_eq!((stat.count, stat.total_ns, busy_ns, now), (1, 200, 200, 1_000_000));
}

#[test]
fn events_lag_by_the_run_ahead() {
    let gpu = gpu();
    gpu.set_run_ahead(10);
    let first = recorded(&gpu, S);
    gpu.advance(4);
    let second = recorded(&gpu, S);
    gpu.set_run_ahead(0);
    let third = recorded(&gpu, S);
    let free = recorded(&gpu, T);
    let done = || [first, second, third, free].map(|event| gpu.event_query(event).unwrap());
    assert_eq!(done(), [false, false, false, true]);
    gpu.advance(6);
    assert_eq!(done(), [true, false, false, true]);
    gpu.stream_synchronize(S).unwrap();
    assert_eq!((gpu.now_ns(), done()), (14, [true; 4]), "a stream is not done before its events are");
    gpu.set_run_ahead(u64::MAX);
    gpu.event_synchronize(recorded(&gpu, S)).unwrap();
    gpu.advance(u64::MAX);
    assert!(gpu.now_ns() > 1 << 62);
}

#[test]
fn held_work_ends_when_told_and_in_order() {
    let gpu = gpu();
    assert!(!gpu.finish(S), "nothing held");
    let before = recorded(&gpu, S);
    gpu.hold(S);
    let first = recorded(&gpu, S);
    gpu.launch(S, &[], 20).unwrap();
    let hold = gpu.hold(S);
    let second = recorded(&gpu, S);
    gpu.stream_wait(T, first).unwrap();
    let other = recorded(&gpu, T);
    gpu.advance(1000);
    let done = || [before, first, second, other].map(|event| gpu.event_query(event).unwrap());
    assert_eq!(done(), [true, false, false, false]);
    assert!(gpu.finish(S));
    assert_eq!(done(), [true, true, false, true]);
    assert!(gpu.finish_hold(hold));
    assert!(!gpu.finish_hold(hold) && !gpu.finish(S), "ended already");
    assert_eq!(done(), [true, true, false, true], "the kernel between takes its time");
    gpu.advance(20);
    assert_eq!(done(), [true; 4]);
}

#[test]
fn finishing_a_hold_finishes_those_before_it() {
    let gpu = gpu();
    let first = gpu.hold(S);
    let early = recorded(&gpu, S);
    let second = gpu.hold(S);
    let late = recorded(&gpu, S);
    gpu.hold(S);
    assert!(gpu.finish_hold(second));
    assert!(gpu.event_query(early).unwrap() && gpu.event_query(late).unwrap());
    assert!(!gpu.finish_hold(first) && gpu.finish(S));
}

#[test]
fn whoever_waits_for_held_work_ends_it() {
    let wait: [fn(&SimGpu, EventId); 3] = [
        |gpu, event| gpu.event_synchronize(event).unwrap(),
        |gpu, _| gpu.stream_synchronize(S).unwrap(),
        |gpu, _| gpu.free(gpu.malloc(1).unwrap()).unwrap(),
    ];
    for wait in wait {
        let gpu = gpu();
        let hold = gpu.hold(S);
        gpu.launch(S, &[], 30).unwrap();
        let event = recorded(&gpu, S);
        let later = gpu.hold(T);
        gpu.advance(100);
        wait(&gpu, event);
        assert_eq!(gpu.now_ns(), 130);
        assert!(gpu.event_query(event).unwrap());
        assert!(!gpu.finish_hold(hold));
        gpu.finish_hold(later);
    }
}

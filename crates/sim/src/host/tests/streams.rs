//! Streams that run behind the CPU, independently of each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{CHUNK, MIB, S, T, check, chunk, device, fill, give_back, range, wrong_words};
use crate::host::{Fault, HostWork};
use seamalloc_driver::prelude::*;
use seamalloc_driver::{Call, CaptureMode, Status};

#[test]
fn a_stream_runs_in_order_and_behind_the_cpu() {
    let device = device();
    let own = chunk(&device);
    let all = range(own.1, CHUNK);
    let held = device.hold(S).unwrap();
    let event = device.event_create().unwrap();
    for first in 0..50 {
        device.launch(S, fill(all, first)).unwrap();
    }
    device.event_record(event, S).unwrap();
    assert!(!device.is_idle(S) && !device.event_query(event).unwrap());
    // No part of the work has run.
    assert!(wrong_words(&device, T, all, 49) > 0);
    assert!(device.finish_hold(held) && !device.finish_hold(held));
    device.event_synchronize(event).unwrap();
    assert!(device.event_query(event).unwrap() && device.is_idle(S));
    assert_eq!(wrong_words(&device, T, all, 49), 0, "the last one counts");
    give_back(&device, own);
}

#[test]
fn a_wait_between_streams_is_kept_and_one_that_is_missing_shows() {
    let (mut right, mut wrong) = (0, 0);
    for round in 0..20 {
        for waits in [true, false] {
            let device = device();
            let own = chunk(&device);
            let (all, event) = (range(own.1, CHUNK), device.event_create().unwrap());
            device.launch(S, HostWork::Pause { ns: 500_000 }).unwrap();
            device.launch(S, fill(all, round)).unwrap();
            device.event_record(event, S).unwrap();
            if waits {
                device.stream_wait(T, event).unwrap();
            }
            let found = wrong_words(&device, T, all, round);
            *if waits { &mut right } else { &mut wrong } += found;
            device.synchronize().unwrap();
            give_back(&device, own);
        }
    }
    assert_eq!(right, 0);
    assert!(wrong > 0, "memory that is handed on too early must show");
}

#[test]
fn a_wait_is_for_the_record_that_was_made_before_it() {
    let device = device();
    let event = device.event_create().unwrap();
    device.stream_wait(T, event).unwrap();
    let held = device.hold(S).unwrap();
    device.event_record(event, S).unwrap();
    device.stream_wait(T, event).unwrap();
    device.event_record(event, T).unwrap();
    assert!(!device.is_idle(T) && !device.event_query(event).unwrap());
    device.event_destroy(event).unwrap();
    device.finish_hold(held);
    assert!(device.is_idle(T), "an event that is destroyed after its record is waited for all the same");
    assert_eq!(device.event_query(event).unwrap_err().status, Status::INVALID_HANDLE);
}

#[test]
fn the_cpu_waits_for_what_it_names_and_ends_held_work_on_the_way() {
    let device = device();
    let [a, b] = [S, T].map(|stream| device.hold(stream).unwrap());
    let event = device.event_create().unwrap();
    device.event_record(event, S).unwrap();
    device.event_synchronize(event).unwrap();
    assert!(!device.finish_hold(a) && device.finish_hold(b), "the other stream was left alone");
    // The wait leads through a wait of another stream, and of a stream that was destroyed in the meantime.
    let a = device.hold(S).unwrap();
    device.event_record(event, S).unwrap();
    device.stream_wait(T, event).unwrap();
    device.destroy_stream(S);
    device.stream_synchronize(T).unwrap();
    assert!(!device.finish_hold(a));
    assert_eq!(device.event_record(event, S).unwrap_err().status, Status::INVALID_CONTEXT);
    device.replace_stream(S);
    device.event_record(event, S).unwrap();
}

#[test]
fn work_on_memory_that_is_not_there_is_a_fault_and_no_crash() {
    let device = device();
    let own = chunk(&device);
    let all = range(own.1, CHUNK);
    let beyond = fill(range(own.1 + CHUNK - 8, 16), 1);
    assert_eq!(device.launch(S, beyond).unwrap_err().status, Status::ILLEGAL_ADDRESS);
    let odd = device.launch(S, fill(range(own.1, 12), 1)).unwrap_err();
    assert_eq!((odd.call, odd.status), (Call::Launch, Status::INVALID_VALUE));
    // The memory is unmapped before the work on it has run.
    let held = device.hold(S).unwrap();
    device.launch(S, fill(all, 1)).unwrap();
    give_back(&device, own);
    device.finish_hold(held);
    device.synchronize().unwrap();
    let faults = device.faults();
    assert!(matches!(faults[0], Fault::UnmappedUse { stream: S, .. }), "{faults:?}");
    assert!(matches!(faults[1], Fault::UnmapInUse { stream: S, range } if range == all), "{faults:?}");
    assert!(matches!(faults[2], Fault::UnmappedUse { stream: S, .. }), "{faults:?}");
    assert_eq!(faults.len(), 3);
    device.memory_info().unwrap();
}

#[test]
fn work_that_panics_loses_the_context_and_nobody_waits_for_ever() {
    let device = device();
    let own = chunk(&device);
    let words = |_, _: &mut [u64]| std::panic::resume_unwind(Box::new(7));
    device.launch(S, HostWork::Fill { to: range(own.1, CHUNK), words: Arc::new(words) }).unwrap();
    while !device.is_idle(S) {
        std::thread::yield_now();
    }
    let error = device.memory_info().unwrap_err();
    assert!(error.is_context_lost(), "{error}");
}

#[test]
fn what_is_captured_runs_when_it_is_replayed() {
    let device = device();
    let own = chunk(&device);
    let (all, event) = (range(own.1, CHUNK), device.event_create().unwrap());
    let wrong = Arc::new(AtomicU64::new(0));
    device.launch(S, fill(all, 3)).unwrap();
    device.begin_capture(S, CaptureMode::Relaxed).unwrap();
    device.launch(S, fill(all, 7)).unwrap();
    // Another stream joins the capture.
    device.event_record(event, S).unwrap();
    device.stream_wait(T, event).unwrap();
    device.launch(T, check(all, 7, &wrong)).unwrap();
    assert_eq!(device.stream_synchronize(S).unwrap_err().status, Status::STREAM_CAPTURE_UNSUPPORTED);
    assert!(device.end_capture(S).is_err(), "the call has invalidated it");
    device.begin_capture(S, CaptureMode::Global).unwrap();
    device.launch(S, fill(all, 7)).unwrap();
    device.launch(S, check(all, 7, &wrong)).unwrap();
    let graph = device.end_capture(S).unwrap();
    assert_eq!(wrong_words(&device, S, all, 3), 0, "nothing of it has run");
    for _ in 0..3 {
        device.launch(T, fill(all, 1)).unwrap();
        device.replay(&graph, T).unwrap();
    }
    assert_eq!(wrong_words(&device, T, all, 7), 0);
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
    give_back(&device, own);
}

#[test]
fn free_waits_for_all_streams() {
    let device = device();
    let plain = device.malloc(MIB).unwrap();
    let ran = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&ran);
    device.launch(S, HostWork::Pause { ns: 2_000_000 }).unwrap();
    let see = move |_, words: &[u64]| {
        seen.fetch_add(words.len() as u64, Ordering::Relaxed);
    };
    device.launch(S, HostWork::Look { at: range(plain, MIB), see: Arc::new(see) }).unwrap();
    device.free(plain).unwrap();
    assert_eq!(ran.load(Ordering::Relaxed), MIB / 8);
    assert_eq!(device.faults(), []);
}

/// Several threads give work to streams of their own while memory is mapped and unmapped.
#[test]
fn threads_use_a_device_side_by_side() {
    let device = device();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let device = &device;
            scope.spawn(move || {
                let stream = device.create_stream();
                for round in 0..40 {
                    let own = chunk(device);
                    let first = thread * 1_000 + round;
                    device.launch(stream, fill(range(own.1, CHUNK), first)).unwrap();
                    assert_eq!(wrong_words(device, stream, range(own.1, CHUNK), first), 0);
                    give_back(device, own);
                }
                device.destroy_stream(stream);
            });
        }
    });
    assert!(device.leaks().is_empty(), "{}", device.leaks());
    assert_eq!(device.faults(), []);
}

//! Tests of calls during a capture, by its mode, by the thread, and by the thread's mode.

use crate::bookkeeping::{CAPTURED_EVENT, ILLEGAL_STATE, STREAM_CAPTURE_ISOLATION, STREAM_CAPTURE_WRONG_THREAD};
use crate::{Range, SimConfig, SimGpu};
use seamalloc_driver::prelude::*;
use seamalloc_driver::{CaptureMode, DriverResult, EventId, Status, StreamId};

const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];
const S: StreamId = StreamId(1);
const T: StreamId = StreamId(2);
const CHUNK: u64 = 2 << 20;

fn status<A>(result: &DriverResult<A>) -> Status {
    result.as_ref().err().map_or(Status::SUCCESS, |error| error.status)
}

/// Returns the statuses of `call` and of the end of the capture. `call` gets an event recorded outside of the capture,
/// and an allocation.
fn captured(mode: CaptureMode, call: impl Fn(&SimGpu, EventId, u64) -> Status) -> (Status, Status) {
    let gpu = SimGpu::new(SimConfig::default()).unwrap();
    let event = gpu.event_create().unwrap();
    gpu.event_record(event, T).unwrap();
    let memory = gpu.malloc(CHUNK).unwrap();
    gpu.begin_capture(S, mode).unwrap();
    assert!(gpu.is_capturing(S).unwrap() && !gpu.is_capturing(T).unwrap());
    let answer = call(&gpu, event, memory);
    let end = gpu.end_capture(S);
    assert!(!gpu.is_capturing(S).unwrap(), "the capture is over");
    assert!(gpu.malloc(CHUNK).is_ok(), "and forbids nothing any more");
    (answer, status(&end))
}

const LEGAL: (Status, Status) = (Status::SUCCESS, Status::SUCCESS);
const REFUSED: (Status, Status) = (Status::STREAM_CAPTURE_UNSUPPORTED, Status::STREAM_CAPTURE_INVALIDATED);

#[test]
fn virtual_memory_calls_are_legal_in_every_mode() {
    for mode in MODES {
        let answers = captured(mode, |gpu, _, _| {
            let address = gpu.reserve(2 * CHUNK, 0).unwrap();
            let handle = gpu.create(CHUNK).unwrap();
            gpu.map(address, CHUNK, 0, handle).unwrap();
            gpu.set_access(address, CHUNK).unwrap();
            gpu.launch(S, &[Range { address, size: CHUNK }], 1_000_000).unwrap();
            gpu.unmap(address, CHUNK).unwrap();
            gpu.release(handle).unwrap();
            gpu.address_free(address, 2 * CHUNK).unwrap();
            gpu.memory_info().unwrap();
            let event = gpu.event_create().unwrap();
            gpu.event_record(event, T).unwrap();
            assert!(gpu.faults().is_empty(), "captured work does not run");
            status(&gpu.event_destroy(event))
        });
        assert_eq!(answers, LEGAL, "{mode:?}");
    }
}

#[test]
fn unsafe_calls_are_refused_and_invalidate() {
    for mode in MODES {
        let expected = if mode == CaptureMode::Relaxed { LEGAL } else { REFUSED };
        assert_eq!(captured(mode, |gpu, _, _| status(&gpu.malloc(CHUNK))), expected, "{mode:?}");
        assert_eq!(captured(mode, |gpu, _, memory| status(&gpu.free(memory))), expected, "{mode:?}");
        assert_eq!(captured(mode, |gpu, event, _| status(&gpu.event_query(event))), expected, "{mode:?}");
        assert_eq!(captured(mode, |gpu, event, _| status(&gpu.event_synchronize(event))), expected, "{mode:?}");
        assert_eq!(captured(mode, |gpu, _, _| status(&gpu.stream_synchronize(T))), expected, "{mode:?}");
        assert_eq!(captured(mode, |gpu, _, _| status(&gpu.stream_synchronize(S))), REFUSED, "{mode:?}");
    }
}

#[test]
fn a_refused_call_changes_nothing_and_is_refused_again() {
    let answers = captured(CaptureMode::Global, |gpu, _, memory| {
        let free = gpu.memory_info().unwrap().free;
        assert_eq!(status(&gpu.free(memory)), Status::STREAM_CAPTURE_UNSUPPORTED);
        assert_eq!(gpu.memory_info().unwrap().free, free);
        status(&gpu.free(memory))
    });
    assert_eq!(answers, REFUSED);
}

#[test]
fn events_do_not_pass_the_border_of_a_capture() {
    for mode in MODES {
        let inside = captured(mode, |gpu, event, _| {
            gpu.event_record(event, S).unwrap();
            status(&gpu.event_query(event))
        });
        assert_eq!(inside, (CAPTURED_EVENT, Status::STREAM_CAPTURE_INVALIDATED), "{mode:?}");
        let outside = captured(mode, |gpu, event, _| {
            let wait = status(&gpu.stream_wait(S, event));
            assert_eq!(status(&gpu.stream_wait(S, event)), Status::STREAM_CAPTURE_INVALIDATED);
            assert_eq!(status(&gpu.event_record(event, S)), Status::STREAM_CAPTURE_INVALIDATED);
            assert_eq!(status(&gpu.launch(S, &[], 1)), Status::STREAM_CAPTURE_INVALIDATED);
            wait
        });
        assert_eq!(outside, (STREAM_CAPTURE_ISOLATION, Status::STREAM_CAPTURE_INVALIDATED), "{mode:?}");
        let never = captured(mode, |gpu, _, _| status(&gpu.stream_wait(S, gpu.event_create().unwrap())));
        assert_eq!(never, LEGAL, "{mode:?}: an event that was never recorded");
        let joined = captured(mode, |gpu, event, _| {
            gpu.event_record(event, S).unwrap();
            gpu.stream_wait(T, event).unwrap();
            assert!(gpu.is_capturing(T).unwrap());
            status(&gpu.stream_wait(S, event))
        });
        assert_eq!(joined, LEGAL, "{mode:?}");
    }
}

#[test]
fn another_thread_is_bound_by_a_global_capture_only() {
    for (mode, expected) in [(MODES[0], REFUSED), (MODES[1], LEGAL), (MODES[2], LEGAL)] {
        let answers = captured(mode, |gpu, event, _| {
            std::thread::scope(|scope| {
                let other = scope.spawn(|| (status(&gpu.malloc(CHUNK)), status(&gpu.event_query(event))));
                let (malloc, query) = other.join().unwrap();
                assert_eq!(malloc, query);
                malloc
            })
        });
        assert_eq!(answers, expected, "{mode:?}");
    }
}

/// All 18 statuses of each call are those of an H200.
#[test]
fn a_thread_in_another_mode_is_bound_as_it_wants() {
    for (mode, of_thread, other) in MODES
        .into_iter()
        .flat_map(|mode| MODES.map(|of_thread| (mode, of_thread)))
        .flat_map(|(mode, of_thread)| [(mode, of_thread, false), (mode, of_thread, true)])
    {
        let bound = match of_thread {
            CaptureMode::Global => mode == CaptureMode::Global || (!other && mode == CaptureMode::ThreadLocal),
            CaptureMode::ThreadLocal => !other && mode != CaptureMode::Relaxed,
            CaptureMode::Relaxed => false,
        };
        let asked = |call: &(dyn Fn(&SimGpu, EventId) -> Status + Sync)| {
            captured(mode, |gpu, event, _| {
                let calls = || {
                    assert_eq!(gpu.exchange_capture_mode(of_thread), Ok(CaptureMode::Global));
                    let answer = call(gpu, event);
                    assert_eq!(gpu.exchange_capture_mode(CaptureMode::Global), Ok(of_thread));
                    answer
                };
                if other { std::thread::scope(|scope| scope.spawn(calls).join().unwrap()) } else { calls() }
            })
        };
        let expected = if bound { REFUSED } else { LEGAL };
        let case = format!("{mode:?}, {of_thread:?}, another thread: {other}");
        assert_eq!(asked(&|gpu, event| status(&gpu.event_query(event))), expected, "query: {case}");
        assert_eq!(asked(&|gpu, _| status(&gpu.malloc(CHUNK))), expected, "malloc: {case}");
        assert_eq!(asked(&|gpu, _| status(&gpu.stream_synchronize(T))), expected, "other stream: {case}");
        assert_eq!(asked(&|gpu, _| status(&gpu.stream_synchronize(S))), REFUSED, "its stream: {case}");
        assert_eq!(asked(&|gpu, _| status(&gpu.synchronize())), REFUSED, "device: {case}");
    }
}

#[test]
fn captures_begin_and_end_in_pairs() {
    let gpu = SimGpu::new(SimConfig::default()).unwrap();
    assert_eq!(status(&gpu.end_capture(S)), ILLEGAL_STATE);
    let default = gpu.begin_capture(StreamId::DEFAULT, CaptureMode::Relaxed);
    assert_eq!(status(&default), Status::STREAM_CAPTURE_UNSUPPORTED);
    gpu.begin_capture(S, CaptureMode::Global).unwrap();
    assert_eq!(status(&gpu.begin_capture(S, CaptureMode::Global)), ILLEGAL_STATE);
    gpu.end_capture(S).unwrap();
    for (mode, expected) in [(MODES[1], STREAM_CAPTURE_WRONG_THREAD), (MODES[2], Status::SUCCESS)] {
        gpu.begin_capture(S, mode).unwrap();
        let end = std::thread::scope(|scope| scope.spawn(|| gpu.end_capture(S)).join().unwrap());
        assert_eq!(status(&end), expected);
        assert_eq!(status(&gpu.end_capture(S)), ILLEGAL_STATE, "it is over either way");
    }
}

#[test]
fn an_event_of_a_capture_that_is_over_has_no_time() {
    let gpu = SimGpu::new(SimConfig::default()).unwrap();
    let event = gpu.event_create().unwrap();
    gpu.begin_capture(S, CaptureMode::Relaxed).unwrap();
    gpu.event_record(event, S).unwrap();
    gpu.end_capture(S).unwrap();
    assert_eq!(status(&gpu.event_query(event)), CAPTURED_EVENT);
    assert_eq!(status(&gpu.stream_wait(T, event)), CAPTURED_EVENT);
    gpu.event_record(event, T).unwrap();
    assert!(gpu.event_query(event).unwrap(), "recorded again, it is an event like any other");
}

//! Tests of streams: which streams reach libcuda, and how streams are told apart.

use super::*;
use crate::cuda::CudaOpenError;
use crate::prelude::*;
use crate::{Call, StreamId};

#[test]
fn only_streams_made_here_are_destroyed_and_once() {
    let driver = open();
    let (a, b) = (driver.create_stream().unwrap(), driver.create_stream().unwrap());
    assert_ne!(a, b);
    driver.destroy_stream(a).unwrap();
    for other in [a, StreamId::DEFAULT, StreamId(77)] {
        let error = driver.destroy_stream(other).unwrap_err();
        assert!(matches!(error, CudaOpenError::Call { status: Status::INVALID_HANDLE, .. }), "{error}");
    }
    assert_eq!(with(|state| state.streams.clone()), [b.0 as usize]);
    assert_eq!(driver.busy_ns(), 0, "no calls of an allocator");
    assert_eq!(with(|state| state.misplaced), 0);
}

#[test]
fn only_streams_that_someone_vouches_for_reach_libcuda() {
    let driver = open();
    let event = driver.event_create().unwrap();
    let own = driver.create_stream().unwrap();
    let foreign = StreamId(0xdead_0000);
    for stream in [own, StreamId::DEFAULT, StreamId(STREAM_LEGACY)] {
        driver.event_record(event, stream).unwrap();
    }
    let before = driver.call_stats();
    for unknown in [foreign, StreamId(STREAM_PER_THREAD)] {
        for error in [
            driver.event_record(event, unknown).unwrap_err(),
            driver.stream_wait(unknown, event).unwrap_err(),
            driver.stream_synchronize(unknown).unwrap_err(),
            driver.is_capturing(unknown).unwrap_err(),
            driver.stream_number(unknown).unwrap_err(),
        ] {
            assert_eq!(error.status, Status::INVALID_HANDLE, "{error}");
        }
    }
    assert_eq!(driver.call_stats(), before);
    driver.destroy_stream(own).unwrap();
    assert_eq!(driver.event_record(event, own).unwrap_err().status, Status::INVALID_HANDLE);
    // SAFETY: the fake does not follow handles.
    unsafe { driver.trust_streams() };
    driver.event_record(event, foreign).unwrap();
    let error = driver.event_record(event, StreamId(STREAM_PER_THREAD)).unwrap_err();
    assert_eq!((error.call, error.status), (Call::StreamNumber, Status::INVALID_HANDLE));
}

#[test]
fn the_default_stream_has_two_names_and_that_of_threads_none() {
    let driver = open();
    assert_eq!(driver.canonical_stream(StreamId(STREAM_LEGACY)), Ok(StreamId::DEFAULT));
    assert_eq!(driver.canonical_stream(StreamId(77)), Ok(StreamId(77)));
    let error = driver.canonical_stream(StreamId(STREAM_PER_THREAD)).unwrap_err();
    assert!(error.to_string().contains("a different one in each thread"), "{error}");
}

#[test]
fn a_stream_has_a_number_of_its_own() {
    let driver = open();
    let stream = driver.create_stream().unwrap();
    let first = driver.stream_number(stream).unwrap();
    assert!(first.is_some());
    with(|state| state.generation += 1);
    assert_ne!(driver.stream_number(stream).unwrap(), first);
    assert_eq!(driver.stream_number(StreamId::DEFAULT), Ok(None), "never destroyed, never asked about");
    assert_eq!(with(|state| state.misplaced), 0);
}

//! Streams that the allocator forgets before they are destroyed.

use super::{MAIN, MIB, SIDE, device, live};
use crate::log;
use seamalloc::driver::sim::{CaptureMode, SimGpu};
use seamalloc::{Stream, StreamId};
use std::sync::Arc;

/// A stream of another library's, which destroys it when it is dropped.
struct Theirs(Arc<SimGpu>, StreamId);

impl Drop for Theirs {
    fn drop(&mut self) {
        self.0.destroy_stream(self.1);
    }
}

#[test]
fn a_stream_is_forgotten_before_what_holds_it_is_dropped() {
    let (gpu, allocator) = device();
    let stream = Stream::holding(&allocator, Theirs(Arc::clone(&gpu), MAIN), |theirs| theirs.1);
    assert_eq!((stream.id(), stream.held().1, StreamId::from(&stream)), (MAIN, MAIN, MAIN));
    drop(allocator.block(10 * MIB, &stream).unwrap());
    let before = allocator.reports().reserved();
    let errors = log::errors(|| drop(stream));
    assert!(errors.is_empty(), "{errors:?}");
    // Its memory is everybody's, and nobody names it to the driver: an event there would be refused.
    let block = allocator.block(10 * MIB, SIDE).unwrap();
    assert_eq!(allocator.reports().reserved(), before);
    drop(block);
    allocator.empty_cache().unwrap();
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
}

#[test]
fn a_handle_is_a_stream() {
    let (_, allocator) = device();
    let handle = std::ptr::without_provenance_mut::<u8>(7);
    assert_eq!(StreamId::from(handle), MAIN);
    let mut stream = Stream::new(&allocator, handle);
    let block = allocator.block(MIB, &stream).unwrap();
    assert_eq!(block.stream(), MAIN);
    stream.forget().unwrap();
    drop(block);
    assert_eq!(live(&allocator), 0);
    assert!(log::errors(|| drop(stream)).is_empty());
}

#[test]
fn a_stream_that_cannot_be_waited_for_is_let_go_with_a_line_in_the_log() {
    let (gpu, allocator) = device();
    let pool = seamalloc::Pool::create(&allocator).unwrap();
    let capture = pool.capture(MAIN).unwrap();
    gpu.begin_capture(MAIN, CaptureMode::Global).unwrap();
    let stream = Stream::new(&allocator, SIDE);
    let errors = log::errors(|| drop(stream));
    assert!(matches!(&errors[..], [error] if error.contains("could not be forgotten")), "{errors:?}");
    gpu.end_capture(MAIN).unwrap();
    capture.end().unwrap();
}

//! Streams whose kernels run for longer than a test.

use crate::simulated::Device;
use seamalloc::Allocator;
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::Range;
use std::sync::Arc;

pub(crate) const A: StreamId = StreamId(0xa0);
pub(crate) const B: StreamId = StreamId(0xb0);
/// How long a kernel runs, in nanoseconds: longer than all driver calls of a test.
pub(crate) const LONG: u64 = 1 << 40;

/// Allocates on a stream, and gives it a kernel that uses the memory for a long time.
pub(crate) fn use_long(gpu: &Device, allocator: &Allocator, size: u64, stream: StreamId) -> u64 {
    let address = allocator.allocate(size, stream).unwrap();
    gpu.launch(stream, &[Range { address, size }], LONG).unwrap();
    address
}

pub(crate) fn clean(gpu: &Arc<Device>, allocator: Allocator) {
    allocator.reports().check().unwrap();
    drop(allocator);
    assert_eq!(gpu.faults(), []);
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
}

//! Blocks that more than one stream uses.

use crate::{MAIN, MIB, SIDE, Subject, calls, on, with_options};
use seamalloc::driver::sim::Range;
use seamalloc::driver::{Call, Status, StreamId};
use seamalloc::{Allocator, Error};

/// A stream does not wait on the GPU for the uses of others.
const NO_WAITS: &str = "sharing:never";

pub(crate) fn a_recorded_stream_keeps_the_block_until_it_has_passed(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = with_options(kind, "sim:h200", NO_WAITS);
    let a = allocator.allocate(20 * MIB, MAIN).unwrap();
    gpu.hold(SIDE);
    allocator.record_stream(a, SIDE).unwrap();
    allocator.free(a).unwrap();
    let stats = allocator.stats();
    assert_eq!((stats.allocated_bytes.all.current, stats.active_bytes.all.current), (0, 20 * MIB));
    let b = allocator.allocate(20 * MIB, MAIN).unwrap();
    assert_ne!(a, b, "the side stream still uses it");
    gpu.finish(SIDE);
    assert_eq!(allocator.allocate(20 * MIB, MAIN).unwrap(), a);
    assert_eq!(allocator.stats().active.all.current, 2);
}

pub(crate) fn memory_freed_on_another_stream_waits_for_both(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = with_options(kind, "sim:h200", NO_WAITS);
    let a = allocator.allocate(20 * MIB, MAIN).unwrap();
    // Nothing changes where the event cannot be recorded.
    gpu.fail_nth(Call::EventRecord, 1, Status::UNKNOWN);
    assert!(matches!(allocator.free_on(a, SIDE), Err(Error::Driver(_))));
    assert_eq!(allocator.reports().size_of(a), Ok(20 * MIB));
    gpu.hold(SIDE);
    allocator.free_on(a, SIDE).unwrap();
    assert!(matches!(allocator.free_on(a, SIDE), Err(Error::InvalidAddress { .. })));
    let b = allocator.allocate(20 * MIB, MAIN).unwrap();
    assert_ne!(a, b, "the side stream still uses it");
    gpu.finish(SIDE);
    assert_eq!(allocator.allocate(20 * MIB, MAIN), Ok(a));
    // On its own stream it is a free like any other.
    let events = calls(&gpu, Call::EventRecord);
    allocator.free_on(a, MAIN).unwrap();
    allocator.free_on(0, SIDE).unwrap();
    assert_eq!((allocator.allocate(20 * MIB, MAIN), calls(&gpu, Call::EventRecord)), (Ok(a), events));
}

/// Whoever gets the block works on it after the streams that used it: it waits for them on the GPU, or gets it once they have passed.
pub(crate) fn work_on_a_block_follows_that_of_its_recorded_streams(Subject { kind, .. }: Subject) {
    type Free = fn(&Allocator, u64);
    let ways: [Free; 2] = [
        |allocator, block| {
            allocator.record_stream(block, SIDE).unwrap();
            allocator.free(block).unwrap();
        },
        |allocator, block| allocator.free_on(block, SIDE).unwrap(),
    ];
    for free in ways {
        for size in [700, 20 * MIB] {
            let (gpu, allocator) = on(kind, "sim:h200");
            let range = Range { address: allocator.allocate(size, MAIN).unwrap(), size };
            gpu.launch(SIDE, &[range], 1_000_000_000).unwrap();
            free(&allocator, range.address);
            for stream in [MAIN, StreamId(9)] {
                let block = Range { address: allocator.allocate(size, stream).unwrap(), size };
                gpu.launch(stream, &[block], 1000).unwrap();
                let (used, works) = (gpu.done_at(SIDE).unwrap(), gpu.done_at(stream).unwrap());
                let is_apart = block.address >= range.address + size || range.address >= block.address + size;
                assert!(is_apart || works > used, "{kind}, {stream}: it works at {works}, before {used}");
            }
            assert!(gpu.faults().is_empty(), "{kind}");
        }
    }
}

pub(crate) fn naming_the_own_stream_or_freeing_address_zero_does_nothing(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    let a = allocator.allocate(5, MAIN).unwrap();
    allocator.record_stream(a, MAIN).unwrap();
    allocator.record_stream(0, SIDE).unwrap();
    allocator.free(a).unwrap();
    assert_eq!(allocator.allocate(0, MAIN).unwrap(), 0);
    allocator.free(0).unwrap();
    assert_eq!(calls(&gpu, Call::EventRecord), 0);
}

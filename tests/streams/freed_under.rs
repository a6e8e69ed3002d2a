//! Memory freed under a stream that used it without a word: its own stream has it at once, others once both have passed.

use crate::simulated;
use seamalloc::driver::sim::{CaptureMode, Range, SimGpu};
use seamalloc::driver::{Call, Driver, Status, StreamId};
use seamalloc::{Allocator, Config, Error, Route};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const OWN: StreamId = StreamId::DEFAULT;
const USER: StreamId = StreamId(1);
const OTHER: StreamId = StreamId(2);
const KERNEL_NS: u64 = 50_000_000;

fn on(options: &str) -> (Arc<SimGpu>, Allocator) {
    simulated::on("sim:h200,capacity=100MiB", Config::parse(options).unwrap())
}

/// A block of most of the device, which a kernel of another stream than its own uses.
fn used(gpu: &SimGpu, allocator: &Allocator) -> u64 {
    let address = allocator.allocate(60 * MIB, OWN).unwrap();
    gpu.launch(USER, &[Range { address, size: 60 * MIB }], KERNEL_NS).unwrap();
    address
}

/// Where the event of the current stream cannot be recorded, nothing is left of that stream.
#[test]
fn a_free_that_fails_forgets_the_current_stream() {
    for strategy in ["expandable", "stitch", "gmlake"] {
        let (gpu, allocator) = on(&format!("strategy:{strategy}"));
        let address = used(&gpu, &allocator);
        gpu.fail_nth(Call::EventRecord, 1, Status::UNKNOWN);
        allocator.free_with_current_stream(address, USER).unwrap_err();
        allocator.free(address).unwrap();
        assert_eq!(allocator.stats().active_bytes.all.current, 0, "{strategy}");
        allocator.reports().check().unwrap();
    }
}

#[test]
fn other_streams_wait_for_both() {
    for (told, late) in [(true, true), (false, false)] {
        let (gpu, allocator) = on("sharing:wait");
        let address = used(&gpu, &allocator);
        if told { allocator.free_with_current_stream(address, USER) } else { allocator.free(address) }.unwrap();
        // Stitched of that and of what is new.
        allocator.allocate(80 * MIB, OTHER).unwrap();
        assert!(gpu.now_ns() < KERNEL_NS, "the CPU does not wait");
        let starts = gpu.done_at(OTHER).unwrap();
        assert_eq!(starts >= gpu.done_at(USER).unwrap(), late, "told {told}: it starts at {starts}");
    }
}

#[test]
fn where_streams_do_not_wait_the_memory_stays_until_both_have_passed() {
    let (gpu, allocator) = on("sharing:completed");
    let address = used(&gpu, &allocator);
    allocator.free_with_current_stream(address, USER).unwrap();
    let physical = gpu.physical(Range { address, size: 60 * MIB });
    let other = allocator.allocate(20 * MIB, OTHER).unwrap();
    let theirs = gpu.physical(Range { address: other, size: 20 * MIB });
    assert!(theirs.iter().all(|piece| physical.iter().all(|of| of.memory != piece.memory)));
    allocator.free(other).unwrap();
    gpu.advance(KERNEL_NS);
    let waits = gpu.call_stats().get(Call::Synchronize).count;
    allocator.allocate(80 * MIB, OTHER).unwrap();
    assert_eq!(gpu.call_stats().get(Call::Synchronize).count, waits);
}

#[test]
fn its_own_stream_has_it_at_once() {
    for options in ["", "sharing:never", "strategy:caching", "strategy:gmlake"] {
        let (gpu, allocator) = on(options);
        let address = used(&gpu, &allocator);
        allocator.free_with_current_stream(address, USER).unwrap();
        assert_eq!(allocator.allocate(60 * MIB, OWN).unwrap(), address, "{options}");
        // Its own stream is none that it is freed under.
        allocator.free_with_current_stream(address, OWN).unwrap();
        assert!(gpu.call_stats().get(Call::EventRecord).count <= 1);
    }
}

#[test]
fn nothing_is_unmapped_before_both_have_passed() {
    for options in ["", "strategy:gmlake", "strategy:expandable"] {
        let (gpu, allocator) = on(options);
        let address = used(&gpu, &allocator);
        allocator.free_with_current_stream(address, USER).unwrap();
        allocator.empty_cache().unwrap();
        assert_eq!((gpu.faults(), allocator.reports().reserved()), (vec![], 0), "{options}");
    }
}

#[test]
fn a_stream_that_ends_takes_its_memory_along_only_if_others_have_passed() {
    let (gpu, allocator) = on("sharing:wait");
    let address = allocator.allocate(60 * MIB, USER).unwrap();
    gpu.launch(OTHER, &[Range { address, size: 60 * MIB }], KERNEL_NS).unwrap();
    allocator.free_with_current_stream(address, OTHER).unwrap();
    allocator.streams().forget(USER).unwrap();
    assert!(gpu.now_ns() >= KERNEL_NS, "the CPU has waited for the other stream too");
    allocator.allocate(80 * MIB, OWN).unwrap();
    // The other way round there is nothing left to wait for.
    let (gpu, allocator) = on("sharing:wait");
    let address = used(&gpu, &allocator);
    allocator.free_with_current_stream(address, USER).unwrap();
    allocator.streams().forget(USER).unwrap();
    gpu.destroy_stream(USER);
    allocator.allocate(80 * MIB, OTHER).unwrap();
    drop(allocator);
    assert!(gpu.leaks().bytes > 0, "the live block");
}

#[test]
fn an_event_that_cannot_be_recorded_leaves_the_block_live() {
    let (gpu, allocator) = on("");
    let address = used(&gpu, &allocator);
    for call in [Call::EventCreate, Call::EventRecord] {
        gpu.fail_nth(call, 1, Status::UNKNOWN);
        let error = allocator.free_with_current_stream(address, USER).unwrap_err();
        assert!(matches!(&error, Error::Driver(error) if error.call == call), "{error}");
        assert_eq!(allocator.reports().size_of(address), Ok(60 * MIB));
    }
    allocator.free_with_current_stream(address, USER).unwrap();
    assert_eq!(allocator.free_with_current_stream(address, USER), Err(Error::InvalidAddress { address }));
    allocator.free_with_current_stream(0, USER).unwrap();
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
}

/// Frees a block of most of the device that a kernel of [`USER`] uses: another stream gets it, and the driver, later.
fn frees_late(gpu: &SimGpu, allocator: &Allocator, address: u64, free: impl FnOnce()) {
    gpu.launch(USER, &[Range { address, size: 60 * MIB }], KERNEL_NS).unwrap();
    let ends = gpu.done_at(USER).unwrap();
    free();
    allocator.reports().check().unwrap();
    // Stitched of that and of what is new, or after all was given back.
    allocator.allocate(80 * MIB, OTHER).unwrap();
    let starts = gpu.done_at(OTHER).unwrap().max(gpu.now_ns());
    assert!(starts >= ends, "{}: it starts at {starts}, and is used until {ends}", allocator.config());
    assert_eq!(gpu.faults(), []);
}

#[test]
fn the_handle_of_a_stream_that_has_ended_is_another_streams() {
    for options in ["", "sharing:completed", "strategy:gmlake", "strategy:expandable"] {
        let (gpu, allocator) = on(options);
        let address = allocator.allocate(60 * MIB, USER).unwrap();
        allocator.streams().forget(USER).unwrap();
        gpu.replace_stream(USER);
        frees_late(&gpu, &allocator, address, || allocator.free_with_current_stream(address, USER).unwrap());
    }
}

#[test]
fn a_private_pool_ends_only_once_they_have_passed() {
    for options in ["", "sharing:completed", "strategy:gmlake", "strategy:expandable"] {
        for (own, own_ends) in [(OWN, false), (StreamId(3), true)] {
            let (gpu, allocator) = on(options);
            let pool = allocator.pools().create();
            let address = allocator.pools().allocate(pool, 60 * MIB, own).unwrap();
            frees_late(&gpu, &allocator, address, || {
                allocator.free_with_current_stream(address, USER).unwrap();
                if own_ends {
                    allocator.streams().forget(own).unwrap();
                }
                allocator.pools().release(pool).unwrap();
            });
            assert!(allocator.pools().ids().is_empty());
        }
    }
}

#[test]
fn what_was_a_private_pools_is_as_any_other() {
    let (gpu, allocator) = on("sharing:wait");
    let pool = allocator.pools().create();
    let address = allocator.pools().allocate(pool, 60 * MIB, OWN).unwrap();
    allocator.pools().release(pool).unwrap();
    frees_late(&gpu, &allocator, address, || allocator.free_with_current_stream(address, USER).unwrap());
}

#[test]
fn so_is_what_a_stream_used_that_has_ended() {
    let (gpu, allocator) = on("sharing:wait");
    let address = allocator.allocate(60 * MIB, OWN).unwrap();
    allocator.record_stream(address, OTHER).unwrap();
    allocator.streams().forget(OTHER).unwrap();
    frees_late(&gpu, &allocator, address, || allocator.free_with_current_stream(address, USER).unwrap());
}

#[test]
fn streams_that_are_not_captured_run_on_in_a_capture() {
    for options in ["", "sharing:completed", "strategy:gmlake", "strategy:expandable"] {
        let (gpu, allocator) = on(options);
        let address = allocator.allocate(60 * MIB, OWN).unwrap();
        frees_late(&gpu, &allocator, address, || {
            let (pool, captured) = (allocator.pools().create(), StreamId(3));
            allocator.pools().begin(pool, Route::stream(captured).capturing()).unwrap();
            gpu.begin_capture(captured, CaptureMode::Global).unwrap();
            allocator.free_with_current_stream(address, USER).unwrap();
            gpu.end_capture(captured).unwrap();
            allocator.pools().end(pool).unwrap();
        });
    }
}

/// Nobody else ever has memory, or shares any: no epoch is ended.
#[test]
fn streams_that_come_and_go_leave_no_events_behind() {
    for options in ["", "sharing:never", "strategy:gmlake"] {
        let (gpu, allocator) = on(options);
        for number in 0..1000 {
            let address = allocator.allocate(1000, OWN).unwrap();
            allocator.free_with_current_stream(address, StreamId(1000 + number)).unwrap();
            gpu.advance(KERNEL_NS);
        }
        assert!(gpu.leaks().events <= 64, "{options}: {}", gpu.leaks());
        drop(allocator);
        assert!(gpu.leaks().is_empty(), "{options}: {}", gpu.leaks());
    }
}

/// One epoch, and two streams that were current while memory was freed in it.
#[test]
fn every_stream_that_was_current_is_waited_for() {
    for late in [USER, OTHER] {
        let (gpu, allocator) = on("sharing:wait");
        let blocks = [USER, OTHER].map(|user| {
            let address = allocator.allocate(4 * MIB, OWN).unwrap();
            let for_ns = if user == late { KERNEL_NS } else { KERNEL_NS / 10 };
            gpu.launch(user, &[Range { address, size: 4 * MIB }], for_ns).unwrap();
            (address, user)
        });
        blocks.into_iter().for_each(|(address, user)| allocator.free_with_current_stream(address, user).unwrap());
        allocator.limits().set_bytes(Some(allocator.reports().reserved())).unwrap();
        let taker = StreamId(3);
        allocator.allocate(8 * MIB, taker).unwrap();
        let starts = gpu.done_at(taker).unwrap().max(gpu.now_ns());
        assert!(starts >= gpu.done_at(late).unwrap(), "{late}");
    }
}

/// A stream is forgotten in an epoch that is still open.
#[test]
fn who_forgets_a_stream_waits_for_others_only_if_they_used_its_memory() {
    for under in [USER, OTHER] {
        let (gpu, allocator) = on("");
        let address = allocator.allocate(4 * MIB, USER).unwrap();
        gpu.launch(OTHER, &[Range { address, size: 4 * MIB }], KERNEL_NS).unwrap();
        allocator.free_with_current_stream(address, under).unwrap();
        allocator.streams().forget(USER).unwrap();
        assert_eq!(gpu.now_ns() >= KERNEL_NS, under == OTHER);
    }
}

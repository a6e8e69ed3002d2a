//! Freed memory that recorded streams still use: who gets it behind GPU-side waits, and who does not.

use crate::log;
use crate::simulated;
use seamalloc::driver::sim::{CaptureMode, Range, SimGpu};
use seamalloc::driver::{Call, Status, StreamId};
use seamalloc::{Allocator, Config, Error, Route};
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 40 * MIB;
const OWN: StreamId = StreamId(1);
const USER: StreamId = StreamId(2);
const OTHER: StreamId = StreamId(3);
const KERNEL_NS: u64 = 1_000_000_000;
/// More than the room that memory has to grow before a request waits for new work.
const MANY: u64 = 20;

fn on(options: &str) -> (Arc<SimGpu>, Allocator) {
    simulated::on("sim:h200,capacity=8GiB", Config::parse(options).unwrap())
}

/// Allocates on a stream, has the user work on the memory for a while, and frees it.
fn used(gpu: &SimGpu, allocator: &Allocator, size: u64, stream: StreamId) -> u64 {
    let address = allocator.allocate(size, stream).unwrap();
    gpu.launch(USER, &[Range { address, size }], KERNEL_NS).unwrap();
    allocator.record_stream(address, USER).unwrap();
    allocator.free(address).unwrap();
    address
}

/// How long until a stream has done all that it was given.
fn busy_ns(gpu: &SimGpu, stream: StreamId) -> u64 {
    gpu.done_at(stream).map_or(0, |done| done.saturating_sub(gpu.now_ns()))
}

/// The CPU is ahead of the GPU by all of these blocks. Without waits each would have memory of its own.
#[test]
fn a_program_far_ahead_of_the_gpu_holds_a_few_blocks() {
    for (options, most) in [("", 6), ("sharing:never", MANY)] {
        let (gpu, allocator) = on(options);
        for _ in 0..MANY {
            used(&gpu, &allocator, SIZE, OWN);
        }
        let held = allocator.reports().reserved() / SIZE;
        assert!(held <= most && (most < MANY || held == MANY), "{options}: {held} blocks");
        let waits = allocator.stats().waits;
        assert_eq!(waits.recorded_bytes, if most < MANY { (MANY - held) * SIZE } else { 0 }, "{options}");
        assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
        allocator.reports().check().unwrap();
    }
}

/// A copy into the next buffer overlaps with the work on the last ones.
#[test]
fn the_newest_buffers_are_not_waited_for() {
    let (gpu, allocator) = on("");
    // There is room to grow.
    allocator.allocate(2 << 30, OTHER).unwrap();
    let mut buffers = Vec::new();
    for _ in 0..MANY {
        let address = allocator.allocate(SIZE, OWN).unwrap();
        // What the own stream waits for is older than the last two buffers.
        let waits = busy_ns(&gpu, OWN);
        assert!(waits + 2 * KERNEL_NS <= busy_ns(&gpu, USER).max(2 * KERNEL_NS), "{waits} of {}", busy_ns(&gpu, USER));
        gpu.launch(USER, &[Range { address, size: SIZE }], KERNEL_NS).unwrap();
        allocator.record_stream(address, USER).unwrap();
        allocator.free(address).unwrap();
        if !buffers.contains(&address) {
            buffers.push(address);
        }
    }
    assert_eq!(buffers.len(), 3, "one that is filled, and two whose use has just been given to the GPU");
    let stats = allocator.stats();
    assert_eq!(stats.waits.grown_bytes, 2 * SIZE);
}

/// As two ranks do that each begin a send, free its memory, and then allocate for a receive that lets the other's send end.
#[test]
fn a_message_of_a_fifth_of_live_memory_does_not_wait_for_that_of_its_own_round() {
    let (gpu, allocator) = on("");
    let size = 256 * MIB;
    allocator.allocate(4 * size, OTHER).unwrap();
    for _ in 0..MANY {
        for stream in [OWN, USER] {
            let address = allocator.allocate(size, stream).unwrap();
            if stream == USER {
                // The send of this round is not awaited, but for those before it.
                assert!(busy_ns(&gpu, USER) + KERNEL_NS / 2 <= busy_ns(&gpu, OWN));
            }
            gpu.launch(stream, &[Range { address, size }], KERNEL_NS).unwrap();
            allocator.free(address).unwrap();
        }
    }
    assert_eq!(allocator.reports().reserved(), 6 * size, "one message more than is live");
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
}

/// Rather than a refusal, a wait for any work.
#[test]
fn where_memory_cannot_grow_new_work_is_waited_for() {
    let (gpu, allocator) = on("");
    allocator.allocate(2 << 30, OTHER).unwrap();
    allocator.limits().set_bytes(Some((2 << 30) + SIZE)).unwrap();
    let first = used(&gpu, &allocator, SIZE, OWN);
    for _ in 0..MANY {
        assert_eq!(used(&gpu, &allocator, SIZE, OWN), first);
    }
    assert_eq!(allocator.stats().pending_waits.requests, 0, "the CPU waits for nothing");
    assert_eq!(allocator.stats().num_ooms, 0);
}

/// Everyone who gets memory from a stream waits for the uses that the stream has waited for.
#[test]
fn the_next_one_waits_for_the_use_too() {
    let (gpu, allocator) = on("");
    let limit = 2 * SIZE;
    allocator.limits().set_bytes(Some(limit)).unwrap();
    let [first, second] = [OWN, OWN].map(|stream| allocator.allocate(SIZE, stream).unwrap());
    for address in [first, second] {
        gpu.launch(USER, &[Range { address, size: SIZE }], KERNEL_NS).unwrap();
        allocator.record_stream(address, USER).unwrap();
        allocator.free(address).unwrap();
    }
    let again = allocator.allocate(SIZE, OWN).unwrap();
    allocator.free(again).unwrap();
    let done = gpu.done_at(USER).unwrap();
    assert!(done > gpu.now_ns());
    let both = allocator.allocate(limit, OTHER).unwrap();
    assert!(gpu.done_at(OTHER).unwrap() >= done);
    gpu.launch(OTHER, &[Range { address: both, size: limit }], KERNEL_NS).unwrap();
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
}

/// Another stream than its own waits for the recorded use, and for the work of the own stream.
#[test]
fn another_stream_waits_for_both() {
    // A small one is no long epoch, and ends none at its free.
    for (last, size) in [(OWN, SIZE), (USER, SIZE), (OWN, 4 * MIB), (USER, 4 * MIB)] {
        let (gpu, allocator) = on("");
        allocator.limits().set_bytes(Some(size)).unwrap();
        let address = allocator.allocate(size, OWN).unwrap();
        let work = |stream: StreamId, times: u64| {
            gpu.launch(stream, &[Range { address, size }], times * KERNEL_NS).unwrap();
        };
        // Both read it.
        work(OWN, if last == OWN { 5 } else { 1 });
        work(USER, if last == USER { 5 } else { 1 });
        allocator.record_stream(address, USER).unwrap();
        allocator.free(address).unwrap();
        let done = gpu.done_at(last).unwrap();
        assert_eq!(allocator.allocate(size, OTHER).unwrap(), address);
        assert!(gpu.done_at(OTHER).unwrap() >= done, "{last}");
        assert_eq!(allocator.stats().pending_waits.requests, 0);
        allocator.reports().check().unwrap();
    }
}

#[test]
fn small_blocks_serve_again_behind_waits() {
    let (gpu, allocator) = on("");
    const SMALL: u64 = 64 << 10;
    allocator.limits().set_bytes(Some(2 * MIB)).unwrap();
    for _ in 0..200 {
        used(&gpu, &allocator, SMALL, OWN);
    }
    assert_eq!(allocator.reports().reserved(), 2 * MIB);
    assert!(allocator.stats().waits.recorded_bytes > 100 * SMALL);
    assert!(gpu.faults().is_empty());
}

#[test]
fn several_blocks_serve_one_request() {
    let (gpu, allocator) = on("chunk_size_mb:2");
    allocator.limits().set_bytes(Some(4 * SIZE)).unwrap();
    let blocks: Vec<u64> = (0..4).map(|_| allocator.allocate(SIZE, OWN).unwrap()).collect();
    for &address in &blocks {
        gpu.launch(USER, &[Range { address, size: SIZE }], KERNEL_NS).unwrap();
        allocator.record_stream(address, USER).unwrap();
    }
    for at in [2, 0, 3] {
        allocator.free(blocks[at]).unwrap();
    }
    let done = gpu.done_at(USER).unwrap();
    let joined = allocator.allocate(3 * SIZE, OWN).unwrap();
    assert!(gpu.done_at(OWN).unwrap() >= done);
    // Such a block is one of a view, and serves again.
    gpu.launch(USER, &[Range { address: joined, size: 3 * SIZE }], KERNEL_NS).unwrap();
    allocator.record_stream(joined, USER).unwrap();
    allocator.free(joined).unwrap();
    let before = allocator.stats().views_built;
    assert_eq!(allocator.allocate(3 * SIZE, OWN).unwrap(), joined);
    assert_eq!(allocator.stats().views_built, before);
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
    allocator.reports().check().unwrap();
}

/// With `free_on` the own stream has to pass as well.
#[test]
fn a_stream_named_at_the_free_is_waited_for() {
    let (gpu, allocator) = on("");
    allocator.limits().set_bytes(Some(SIZE)).unwrap();
    let address = allocator.allocate(SIZE, OWN).unwrap();
    gpu.launch(USER, &[Range { address, size: SIZE }], KERNEL_NS).unwrap();
    allocator.free_on(address, USER).unwrap();
    let done = gpu.done_at(USER).unwrap();
    assert_eq!(allocator.allocate(SIZE, OWN).unwrap(), address);
    assert!(gpu.done_at(OWN).unwrap() >= done);
}

/// A private pool takes its own blocks so, outside of captures, and no others.
#[test]
fn a_private_pool_has_its_own_blocks_again() {
    let (gpu, allocator) = on("");
    let pool = allocator.pools().create();
    let used_in = |pool| {
        let address = allocator.pools().allocate(pool, SIZE, OWN).unwrap();
        gpu.launch(USER, &[Range { address, size: SIZE }], KERNEL_NS).unwrap();
        allocator.record_stream(address, USER).unwrap();
        allocator.free(address).unwrap();
        address
    };
    let first = used_in(pool);
    allocator.limits().set_bytes(Some(SIZE)).unwrap();
    assert_eq!(used_in(pool), first);
    assert_eq!(allocator.stats().waits.recorded_bytes, SIZE);
    assert!(matches!(allocator.allocate(SIZE, OWN), Err(Error::OutOfMemory(_))), "a public request takes none of it");
    // A captured stream waits for nothing: the CPU has waited when the capture began.
    allocator.pools().begin(pool, Route::stream(OWN).capturing()).unwrap();
    let done = gpu.done_at(USER).unwrap_or(0);
    gpu.begin_capture(OWN, CaptureMode::Global).unwrap();
    let waits = allocator.stats().stream_waits;
    assert!(allocator.allocate(SIZE, OWN).is_err() || gpu.now_ns() >= done);
    assert_eq!(allocator.stats().stream_waits, waits);
    gpu.end_capture(OWN).unwrap();
    allocator.pools().end(pool).unwrap();
    allocator.reports().check().unwrap();
}

/// A wait that fails hands nothing over; the next request has the memory.
#[test]
fn a_wait_that_fails_leaves_the_block_where_it_was() {
    for nth in [1, 2] {
        let (gpu, allocator) = on("");
        allocator.limits().set_bytes(Some(SIZE)).unwrap();
        let address = allocator.allocate(SIZE, OWN).unwrap();
        for user in [USER, OTHER] {
            gpu.launch(user, &[Range { address, size: SIZE }], KERNEL_NS).unwrap();
            allocator.record_stream(address, user).unwrap();
        }
        allocator.free(address).unwrap();
        let before = allocator.stats();
        gpu.fail_nth(Call::StreamWait, nth, Status::LAUNCH_FAILED);
        let failed = allocator.allocate(SIZE, OWN).unwrap_err();
        assert!(matches!(&failed, Error::Driver(error) if error.call == Call::StreamWait), "{failed}");
        let after = allocator.stats();
        assert_eq!(after.active_bytes, before.active_bytes);
        assert_eq!(after.reserved_bytes, before.reserved_bytes);
        assert_eq!(after.waits.recorded_bytes, 0);
        allocator.reports().check().unwrap();
        assert_eq!(allocator.allocate(SIZE, OWN).unwrap(), address);
        assert!(gpu.done_at(OWN) >= gpu.done_at(USER).max(gpu.done_at(OTHER)));
        allocator.reports().check().unwrap();
    }
}

/// Waiting blocks are shown as pending until somebody has them.
#[test]
fn snapshots_show_it_as_pending_until_it_is_taken() {
    let (gpu, allocator) = on("");
    let held = gpu.hold(USER);
    let address = allocator.allocate(SIZE, OWN).unwrap();
    allocator.record_stream(address, USER).unwrap();
    allocator.free(address).unwrap();
    let pending = |stats: seamalloc::Stats| stats.active_bytes.all.current - stats.allocated_bytes.all.current;
    assert_eq!(pending(allocator.stats()), SIZE);
    allocator.limits().set_bytes(Some(SIZE)).unwrap();
    assert_eq!(allocator.allocate(SIZE, OWN).unwrap(), address);
    assert_eq!(pending(allocator.stats()), 0);
    gpu.finish_hold(held);
}

/// The pools of a stream count their epochs each for themselves. What waits in a private pool is public once the pool is released.
#[test]
fn blocks_of_a_released_pool_are_waited_for_on_their_stream() {
    let (gpu, allocator) = on("");
    // The stream has passed several epochs of its public memory.
    for _ in 0..4 {
        for stream in [OWN, OTHER] {
            let address = allocator.allocate(SIZE, stream).unwrap();
            allocator.free(address).unwrap();
        }
        allocator.empty_cache().unwrap();
    }
    let pool = allocator.pools().create();
    let address = allocator.pools().allocate(pool, SIZE, OWN).unwrap();
    allocator.record_stream(address, USER).unwrap();
    for (stream, times) in [(OWN, 5), (USER, 1)] {
        gpu.launch(stream, &[Range { address, size: SIZE }], times * KERNEL_NS).unwrap();
    }
    let done = gpu.done_at(OWN).unwrap();
    allocator.free(address).unwrap();
    allocator.pools().release(pool).unwrap();
    allocator.limits().set_bytes(Some(allocator.reports().reserved())).unwrap();
    let again = allocator.allocate(SIZE, OTHER).unwrap();
    assert!(gpu.done_at(OTHER).unwrap_or(0).max(gpu.now_ns()) >= done);
    gpu.launch(OTHER, &[Range { address: again, size: SIZE }], KERNEL_NS).unwrap();
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
}

/// A stream that waits for work of the present round is named once if it stays waiting, and not if it has gone on.
#[test]
fn a_wait_for_new_work_that_stays_pending_is_warned_of_once() {
    let (gpu, allocator) = on("");
    allocator.limits().set_bytes(Some(SIZE)).unwrap();
    for stays in [false, true] {
        let hold = stays.then(|| gpu.hold(USER));
        used(&gpu, &allocator, SIZE, OWN);
        let again = allocator.allocate(SIZE, OWN).unwrap();
        if !stays {
            gpu.advance(10 * KERNEL_NS);
        }
        let mut warned = [0; 2];
        let lines = log::warnings(|| {
            assert_eq!(allocator.streams().warn_of_pending_waits(Duration::MAX).unwrap(), 0, "no wait is so old");
            // A wait that is over is not asked for again.
            gpu.fail_nth(Call::EventQuery, 1, Status::UNKNOWN);
            assert_eq!(allocator.streams().warn_of_pending_waits(Duration::ZERO).is_err(), stays);
            gpu.fail_no_more();
            warned = [(); 2].map(|()| allocator.streams().warn_of_pending_waits(Duration::ZERO).unwrap());
        });
        assert_eq!(warned, [usize::from(stays), 0]);
        let names =
            |line: &String| [&OWN.to_string(), &USER.to_string(), "sharing:never"].iter().all(|of| line.contains(*of));
        assert_eq!(lines.iter().filter(|line| names(line)).count(), usize::from(stays), "{lines:?}");
        hold.into_iter().for_each(|hold| assert!(gpu.finish_hold(hold)));
        allocator.free(again).unwrap();
        allocator.reports().check().unwrap();
    }
}

/// Work of earlier rounds closes no circle: no event is recorded behind a wait for it.
#[test]
fn waits_for_old_work_are_not_watched() {
    let (gpu, allocator) = on("");
    allocator.allocate(2 << 30, OTHER).unwrap();
    for _ in 0..MANY {
        used(&gpu, &allocator, SIZE, OWN);
    }
    assert!(allocator.stats().stream_waits > 0);
    assert_eq!(allocator.streams().warn_of_pending_waits(Duration::ZERO).unwrap(), 0);
}

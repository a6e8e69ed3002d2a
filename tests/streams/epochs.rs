//! Epochs, when the GPU is far behind: memory that is passed on is passed on late enough, however many epochs there are.

use crate::simulated;
use seamalloc::driver::sim::{CaptureMode, Range, SimGpu};
use seamalloc::driver::{Call, Driver, DriverResult, ForwardingDriver, StreamId};
use seamalloc::{Allocator, Config, Route};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// More than an epoch is long, so that each free of so much ends one.
const LONG: u64 = 40 * MIB;
/// More than the epochs that are kept apart (1,024).
const EPOCHS: u64 = 1500;
const KERNEL_NS: u64 = 1_000_000;
const OWN: StreamId = StreamId(1);
const USER: StreamId = StreamId(2);
const OTHER: StreamId = StreamId(3);

/// One block again and again, used for a while by a kernel of `user` and freed under it: an epoch each time. Then memory
/// is so short that the other stream gets this block.
fn far_behind(user: StreamId, epochs: u64) -> (Arc<SimGpu>, Allocator) {
    let (gpu, allocator) = simulated::on("sim:h200,capacity=4GiB", Config::default());
    allocator.allocate(2 * MIB, OTHER).unwrap();
    for _ in 0..epochs {
        let address = allocator.allocate(LONG, OWN).unwrap();
        gpu.launch(user, &[Range { address, size: LONG }], KERNEL_NS).unwrap();
        allocator.free_with_current_stream(address, user).unwrap();
    }
    allocator.limits().set_bytes(Some(allocator.reports().reserved())).unwrap();
    (gpu, allocator)
}

#[test]
fn the_last_of_too_many_epochs_is_passed_last() {
    for user in [OWN, USER] {
        let (gpu, allocator) = far_behind(user, EPOCHS);
        let done = gpu.done_at(user).unwrap();
        assert!(done > gpu.now_ns() + 2 * KERNEL_NS, "the GPU is behind");
        allocator.allocate(LONG, OTHER).unwrap();
        let starts = gpu.done_at(OTHER).unwrap().max(gpu.now_ns());
        assert!(starts >= done, "user {user}: it starts at {starts}, and is used until {done}");
        // Nobody is asked to wait for more than the last epoch, of the own stream and of the user.
        assert_eq!(allocator.stats().stream_waits, if user == OWN { 1 } else { 2 });
        allocator.reports().check().unwrap();
    }
}

/// Calls that mark the end of an epoch, or ask for it.
fn events(gpu: &SimGpu) -> [u64; 2] {
    [Call::EventRecord, Call::EventQuery].map(|call| gpu.call_stats().get(call).count)
}

/// With so many epochs kept, the end of one makes room by queries, and these invalidate a capture.
#[test]
fn in_a_capture_no_epoch_ends_and_none_is_asked_for() {
    let (gpu, allocator) = far_behind(OWN, EPOCHS / 2);
    let (pool, captured) = (allocator.pools().create(), StreamId(9));
    allocator.pools().begin(pool, Route::stream(captured).capturing()).unwrap();
    gpu.begin_capture(captured, CaptureMode::Global).unwrap();
    let before = events(&gpu);
    for _ in 0..3 {
        let address = allocator.allocate(LONG, OWN).unwrap();
        allocator.free(address).unwrap();
    }
    assert_eq!(events(&gpu), before);
    gpu.end_capture(captured).unwrap();
    allocator.pools().end(pool).unwrap();
    allocator.reports().check().unwrap();
}

/// Nobody else gets the memory, so no event is spent on it.
#[test]
fn where_streams_share_nothing_no_epoch_ends() {
    let (gpu, allocator) = simulated::on("sim:h200", Config::parse("sharing:never").unwrap());
    allocator.allocate(2 * MIB, OTHER).unwrap();
    for _ in 0..3 {
        let address = allocator.allocate(LONG, OWN).unwrap();
        allocator.free(address).unwrap();
    }
    assert_eq!(events(&gpu), [0, 0]);
}

/// Allocates on a stream that runs a kernel over the memory for a while.
fn used(gpu: &SimGpu, allocator: &Allocator, size: u64, stream: StreamId, for_ns: u64) -> u64 {
    let address = allocator.allocate(size, stream).unwrap();
    gpu.launch(stream, &[Range { address, size }], for_ns).unwrap();
    address
}

#[test]
fn memory_of_several_streams_is_waited_for_on_each() {
    for late in [OWN, USER] {
        let (gpu, allocator) = simulated::on("sim:h200,capacity=4GiB", Config::parse("sharing:wait").unwrap());
        let run = |stream| if stream == late { 100 * KERNEL_NS } else { 10 * KERNEL_NS };
        let freed = [OWN, USER].map(|stream| used(&gpu, &allocator, LONG, stream, run(stream)));
        freed.into_iter().for_each(|address| allocator.free(address).unwrap());
        allocator.limits().set_bytes(Some(allocator.reports().reserved())).unwrap();
        allocator.allocate(2 * LONG, OTHER).unwrap();
        let done = gpu.done_at(late).unwrap();
        assert!(gpu.now_ns() < done, "the CPU does not wait");
        assert!(gpu.done_at(OTHER).unwrap() >= done, "{late}");
        let stats = allocator.stats();
        assert_eq!((stats.stream_waits, stats.waits.bytes), (2, 2 * LONG));
    }
}

/// Memory that is not needed stays with its stream, which may have it at once.
#[test]
fn no_more_is_waited_for_than_is_missing() {
    let (gpu, allocator) = simulated::on("sim:h200,capacity=4GiB", Config::parse("sharing:wait").unwrap());
    let blocks: Vec<u64> = (0..6).map(|_| used(&gpu, &allocator, LONG, OWN, KERNEL_NS)).collect();
    blocks.iter().step_by(2).for_each(|address| allocator.free(*address).unwrap());
    allocator.limits().set_bytes(Some(allocator.reports().reserved())).unwrap();
    for taken in 1..=2 {
        allocator.allocate(LONG, OTHER).unwrap();
        assert_eq!(allocator.stats().waits.bytes, taken * LONG);
    }
    allocator.reports().check().unwrap();
}

/// The rest of a free block that its own stream takes a part of waits as the whole did.
#[test]
fn a_part_of_freed_memory_is_passed_no_earlier_than_the_whole() {
    let (gpu, allocator) = simulated::on("sim:h200,capacity=4GiB", Config::parse("sharing:wait").unwrap());
    // Epochs before it are passed.
    for stream in [OWN, OTHER, OWN, OTHER] {
        let address = allocator.allocate(LONG, stream).unwrap();
        allocator.free(address).unwrap();
    }
    allocator.empty_cache().unwrap();
    let kept = allocator.allocate(2 * MIB, OTHER).unwrap();
    let address = used(&gpu, &allocator, LONG, OWN, 100 * KERNEL_NS);
    allocator.free(address).unwrap();
    assert_eq!(allocator.allocate(4 * MIB, OWN).unwrap(), address);
    allocator.limits().set_bytes(Some(allocator.reports().reserved())).unwrap();
    allocator.allocate(LONG - 4 * MIB, OTHER).unwrap();
    assert!(gpu.done_at(OTHER).unwrap().max(gpu.now_ns()) >= gpu.done_at(OWN).unwrap());
    allocator.free(kept).unwrap();
    allocator.reports().check().unwrap();
}

/// Long epochs are kept apart: who wants memory of the first does not wait for the second.
#[test]
fn an_epoch_is_passed_before_the_next_one() {
    let (gpu, allocator) = simulated::on("sim:h200,capacity=4GiB", Config::parse("sharing:wait").unwrap());
    let kept = allocator.allocate(2 * MIB, OTHER).unwrap();
    let [early, apart, late] = [(); 3].map(|()| allocator.allocate(LONG, OWN).unwrap());
    gpu.launch(OWN, &[Range { address: early, size: LONG }], KERNEL_NS).unwrap();
    allocator.free(early).unwrap();
    let passed = gpu.done_at(OWN).unwrap();
    gpu.launch(OWN, &[Range { address: late, size: LONG }], 100 * KERNEL_NS).unwrap();
    allocator.free(late).unwrap();
    allocator.limits().set_bytes(Some(allocator.reports().reserved())).unwrap();
    gpu.advance(passed.saturating_sub(gpu.now_ns()));
    allocator.allocate(LONG, OTHER).unwrap();
    let starts = gpu.done_at(OTHER).unwrap().max(gpu.now_ns());
    assert!(starts < gpu.done_at(OWN).unwrap(), "it starts at {starts}");
    [apart, kept].into_iter().for_each(|address| allocator.free(address).unwrap());
}

/// Whatever was freed until an epoch is the stream's to take once it has waited for that epoch.
#[test]
fn an_epoch_is_waited_for_once() {
    let size = 8 * MIB;
    for other in [OTHER, StreamId::DEFAULT] {
        let (gpu, allocator) = simulated::on("sim:h200,capacity=4GiB", Config::parse("sharing:wait").unwrap());
        let blocks: Vec<u64> = (0..6).map(|_| used(&gpu, &allocator, size, OWN, 100 * KERNEL_NS)).collect();
        let done = gpu.done_at(OWN).unwrap();
        let freed = |index: usize| allocator.free(blocks[index]).unwrap();
        [0, 2].into_iter().for_each(freed);
        allocator.limits().set_bytes(Some(allocator.reports().reserved())).unwrap();
        for taken in 1..=2 {
            allocator.allocate(size, other).unwrap();
            let stats = allocator.stats();
            assert_eq!((stats.stream_waits, stats.waits.bytes), (1, taken * size));
        }
        assert!(gpu.done_at(other).unwrap() >= done);
        gpu.launch(OWN, &[Range { address: blocks[4], size }], KERNEL_NS).unwrap();
        freed(4);
        allocator.allocate(size, other).unwrap();
        assert_eq!(allocator.stats().stream_waits, 2, "that was freed later");
        assert!(gpu.done_at(other).unwrap() > done);
        allocator.reports().check().unwrap();
    }
}

/// A driver that does not number its streams.
struct Nameless(Arc<SimGpu>);

impl ForwardingDriver for Nameless {
    fn inner(&self) -> &dyn Driver {
        &*self.0
    }

    fn stream_number(&self, _stream: StreamId) -> DriverResult<Option<u64>> {
        Ok(None)
    }
}

/// The new stream of a handle has not waited for anything, whether the allocator has noticed that it is new, or will never.
#[test]
fn another_stream_of_the_same_handle_waits_again() {
    let size = 8 * MIB;
    for (has_numbers, is_noticed) in [(true, false), (true, true), (false, false)] {
        let gpu = Arc::new(simulated::device("sim:h200,capacity=4GiB"));
        let driver: Arc<dyn Driver> =
            if has_numbers { Arc::<SimGpu>::clone(&gpu) } else { Arc::new(Nameless(Arc::clone(&gpu))) };
        let allocator = Allocator::new(driver, Config::parse("sharing:wait").unwrap()).unwrap();
        let blocks: Vec<u64> = (0..6).map(|_| used(&gpu, &allocator, size, OWN, 100 * KERNEL_NS)).collect();
        let done = gpu.done_at(OWN).unwrap();
        [0, 2, 4].into_iter().for_each(|index: usize| allocator.free(blocks[index]).unwrap());
        allocator.limits().set_bytes(Some(allocator.reports().reserved())).unwrap();
        let first = allocator.allocate(size, OTHER).unwrap();
        assert_eq!(allocator.stats().stream_waits, 1);
        if is_noticed {
            allocator.free(first).unwrap();
        }
        gpu.replace_stream(OTHER);
        if is_noticed {
            // Another stream asks whether the one that has freed memory is still there.
            allocator.allocate(size, USER).unwrap();
        }
        let address = allocator.allocate(size, OTHER).unwrap();
        gpu.launch(OTHER, &[Range { address, size }], 1).unwrap();
        assert!(gpu.done_at(OTHER).unwrap() >= done, "numbers: {has_numbers}, noticed: {is_noticed}");
        allocator.reports().check().unwrap();
    }
}

/// A stream does not wait for its own work.
#[test]
fn what_was_freed_under_a_stream_is_waited_for_by_others_only() {
    let (gpu, allocator) = simulated::on("sim:h200,capacity=4GiB", Config::parse("sharing:wait").unwrap());
    let address = used(&gpu, &allocator, LONG, OWN, 100 * KERNEL_NS);
    gpu.launch(OTHER, &[Range { address, size: LONG }], KERNEL_NS).unwrap();
    allocator.free_with_current_stream(address, OTHER).unwrap();
    allocator.limits().set_bytes(Some(allocator.reports().reserved())).unwrap();
    assert_eq!(allocator.allocate(LONG, OTHER).unwrap(), address);
    assert_eq!(allocator.stats().stream_waits, 1);
    allocator.reports().check().unwrap();
}

/// Memory of another stream, of several ranges where it has to be.
#[test]
fn of_several_ranges_no_more_are_waited_for_than_are_needed() {
    let size = 8 * MIB;
    let (gpu, allocator) = simulated::on("sim:h200,capacity=4GiB", Config::parse("sharing:wait").unwrap());
    let blocks: Vec<u64> = (0..8).map(|_| used(&gpu, &allocator, size, OWN, 100 * KERNEL_NS)).collect();
    blocks.iter().step_by(2).for_each(|address| allocator.free(*address).unwrap());
    allocator.limits().set_bytes(Some(allocator.reports().reserved())).unwrap();
    allocator.allocate(2 * size, OTHER).unwrap();
    assert_eq!(allocator.stats().waits.bytes, 2 * size);
    allocator.reports().check().unwrap();
}

/// Of a long range the other stream keeps a part, which it has without a wait.
#[test]
fn of_a_long_range_a_part_is_taken() {
    let (gpu, allocator) = simulated::on("sim:h200,capacity=4GiB", Config::parse("sharing:wait").unwrap());
    let range = used(&gpu, &allocator, LONG, OWN, 100 * KERNEL_NS);
    allocator.free(range).unwrap();
    allocator.limits().set_bytes(Some(allocator.reports().reserved())).unwrap();
    assert_eq!(allocator.allocate(2 * MIB, OTHER).unwrap(), range);
    assert_eq!(allocator.allocate(8 * MIB, OWN).unwrap(), range + 32 * MIB);
    let stats = allocator.stats();
    assert_eq!((stats.stream_waits, stats.waits.bytes), (1, 32 * MIB));
    allocator.reports().check().unwrap();
}

/// Of the ranges that suffice, the one for which the stream waits for the oldest event. Only what is taken of it counts.
#[test]
fn of_ranges_the_one_that_was_freed_first_is_taken() {
    let on = || simulated::on("sim:h200,capacity=4GiB", Config::parse("sharing:wait").unwrap());
    let busy = 100 * KERNEL_NS;
    // A range of two streams, and one of the first stream, with the order in which their blocks are freed.
    for (sizes, taken) in [([LONG, LONG, LONG], 0), ([LONG, 30 * MIB, LONG + 30 * MIB], 2)] {
        let (gpu, allocator) = on();
        let [first, second] = [(0, OWN), (1, USER)].map(|(index, of)| used(&gpu, &allocator, sizes[index], of, busy));
        allocator.allocate(2 * MIB, OTHER).unwrap();
        let third = used(&gpu, &allocator, sizes[2], OWN, busy);
        allocator.limits().set_bytes(Some(allocator.reports().reserved())).unwrap();
        for address in [first, third, second] {
            allocator.free(address).unwrap();
        }
        let got = allocator.allocate(sizes[2], OTHER).unwrap();
        assert_eq!(got, [first, second, third][taken]);
        assert_eq!(allocator.stats().views_built, 0);
        allocator.reports().check().unwrap();
    }
}

/// So it is for views, and of equals the smallest is taken.
#[test]
fn of_views_the_one_that_was_freed_first_is_taken() {
    // With large blocks each free ends an epoch, with small ones both are of one epoch.
    for (size, parts, taken) in [(LONG, [2, 2], 1), (8 * MIB, [3, 2], 1)] {
        let (gpu, allocator) = simulated::on("sim:h200,capacity=4GiB", Config::parse("sharing:wait").unwrap());
        // A stream alone ends no epochs.
        allocator.allocate(2 * MIB, OTHER).unwrap();
        let count = 2 * (parts[0] + parts[1]) - 1;
        let blocks: Vec<u64> = (0..count).map(|_| allocator.allocate(size, OWN).unwrap()).collect();
        allocator.limits().set_bytes(Some(allocator.reports().reserved())).unwrap();
        let mut apart = blocks.iter().step_by(2);
        let views = parts.map(|parts| {
            apart.by_ref().take(parts).for_each(|address| allocator.free(*address).unwrap());
            used(&gpu, &allocator, parts as u64 * size, OWN, 100 * KERNEL_NS)
        });
        assert_eq!(allocator.stats().views_built, 2);
        views.iter().rev().for_each(|view| allocator.free(*view).unwrap());
        assert_eq!(allocator.allocate(2 * size, OTHER).unwrap(), views[taken], "{parts:?}");
        assert_eq!(allocator.stats().views_built, 2);
        allocator.reports().check().unwrap();
    }
}

/// Of a view only what the request gets is waited for: not a block that begins before the next chunk at home, and reaches into it.
#[test]
fn of_a_view_no_more_is_waited_for_than_is_needed() {
    let (gpu, allocator) = simulated::on("sim:h200,capacity=4GiB", Config::parse("sharing:wait").unwrap());
    let [mut apart, mut before, mut parts] = [(); 3].map(|()| Vec::new());
    for _ in 0..3 {
        for (list, mib) in [(&mut apart, 4), (&mut before, 4), (&mut parts, 8)] {
            list.push(allocator.allocate(mib * MIB, OWN).unwrap());
        }
    }
    allocator.limits().set_bytes(Some(allocator.reports().reserved())).unwrap();
    parts.iter().for_each(|address| allocator.free(*address).unwrap());
    let view = used(&gpu, &allocator, 24 * MIB, OWN, KERNEL_NS);
    assert_eq!(allocator.stats().views_built, 1);
    before.iter().chain([&view]).for_each(|address| allocator.free(*address).unwrap());
    assert_eq!(allocator.allocate(16 * MIB, OTHER).unwrap(), view);
    let stats = allocator.stats();
    assert_eq!((stats.views_built, stats.stream_waits, stats.waits.bytes), (1, 1, 16 * MIB));
    allocator.reports().check().unwrap();
}

/// Three blocks of `OTHER`, apart from one another, and the memory that the allocator holds is all there is.
fn apart(gpu: &SimGpu, allocator: &Allocator, size: u64) -> Vec<u64> {
    let blocks: Vec<u64> = (0..5).map(|_| used(gpu, allocator, size, OTHER, KERNEL_NS)).collect();
    allocator.limits().set_bytes(Some(allocator.reports().reserved())).unwrap();
    blocks.into_iter().step_by(2).collect()
}

/// A range of which another stream has a part needs a wait, and no view.
#[test]
fn a_range_of_several_streams_is_taken_before_a_view_is_built() {
    // Two of them are more than a quarter of what is live: memory may not grow by them rather than wait.
    let size = 80 * MIB;
    let (gpu, allocator) = simulated::on("sim:h200,capacity=4GiB", Config::parse("sharing:wait").unwrap());
    let [first, second] = [OTHER, OWN].map(|stream| used(&gpu, &allocator, size, stream, 100 * KERNEL_NS));
    let blocks = apart(&gpu, &allocator, size);
    let done = gpu.done_at(OWN).unwrap();
    [first, second].into_iter().chain(blocks).for_each(|address| allocator.free(address).unwrap());
    assert_eq!(allocator.allocate(2 * size, OTHER).unwrap(), first);
    let stats = allocator.stats();
    assert_eq!((stats.views_built, stats.stream_waits, stats.waits.bytes), (0, 1, size));
    assert!(gpu.now_ns() < done && gpu.done_at(OTHER).unwrap() >= done);
    allocator.reports().check().unwrap();
}

/// So does a view.
#[test]
fn a_view_over_memory_of_several_streams_is_found_before_one_is_built() {
    // Two of them are more than a quarter of what is live: memory may not grow by them rather than wait.
    let size = 80 * MIB;
    let (gpu, allocator) = simulated::on("sim:h200,capacity=4GiB", Config::parse("sharing:wait").unwrap());
    let blocks = apart(&gpu, &allocator, size);
    blocks[..2].iter().for_each(|address| allocator.free(*address).unwrap());
    let view = allocator.allocate(2 * size, OTHER).unwrap();
    assert_eq!(allocator.stats().views_built, 1);
    allocator.free(view).unwrap();
    let part = used(&gpu, &allocator, size, OWN, 100 * KERNEL_NS);
    assert_eq!(part, blocks[0]);
    let done = gpu.done_at(OWN).unwrap();
    allocator.free(part).unwrap();
    blocks[2..].iter().for_each(|address| allocator.free(*address).unwrap());
    assert_eq!(allocator.allocate(2 * size, OTHER).unwrap(), view);
    assert_eq!(allocator.stats().views_built, 1);
    assert!(gpu.now_ns() < done && gpu.done_at(OTHER).unwrap() >= done);
    allocator.reports().check().unwrap();
}

//! Memory that other streams use by `record_stream`: each of them is waited for, once, and none that has ended.

use crate::simulated;
use seamalloc::driver::sim::{Range, SimGpu};
use seamalloc::driver::{Call, Driver, Status, StreamId};
use seamalloc::{Allocator, Config, Error};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 40 * MIB;
const OWN: StreamId = StreamId::DEFAULT;
const USERS: [StreamId; 2] = [StreamId(1), StreamId(2)];
const KERNEL_NS: u64 = 1 << 40;

fn on(options: &str) -> (Arc<SimGpu>, Allocator) {
    simulated::on("sim:h200", Config::parse(options).unwrap())
}

/// Returns the bytes that are live or wait for other streams, after a request that misses: it asks who has passed.
fn active(allocator: &Allocator) -> u64 {
    let address = allocator.allocate(2 * SIZE, OWN).unwrap();
    allocator.free(address).unwrap();
    allocator.empty_cache().unwrap();
    allocator.stats().active_bytes.all.current
}

#[test]
fn each_stream_that_was_named_is_waited_for() {
    for strategy in ["stitch", "caching", "expandable", "gmlake"] {
        for late in USERS {
            // Nobody waits on the GPU.
            let (gpu, allocator) = on(&format!("strategy:{strategy},sharing:never"));
            let address = allocator.allocate(SIZE, OWN).unwrap();
            for user in USERS {
                allocator.record_stream(address, user).unwrap();
                // Twice is the same as once.
                allocator.record_stream(address, user).unwrap();
            }
            let held = gpu.hold(late);
            let before = gpu.call_stats();
            allocator.free(address).unwrap();
            assert_eq!(gpu.call_stats().since(&before).get(Call::EventRecord).count, 2, "{strategy}");
            let other = allocator.allocate(SIZE, OWN).unwrap();
            assert_ne!(other, address, "{strategy}: {late} still uses it");
            assert_eq!(allocator.stats().active_bytes.all.current, 2 * SIZE, "{strategy}");
            gpu.finish_hold(held);
            allocator.free(other).unwrap();
            assert_eq!(active(&allocator), 0, "{strategy}");
            allocator.reports().check().unwrap();
        }
    }
}

/// One block of each user waits, and one is live that the first user has used.
#[test]
fn a_stream_that_is_forgotten_is_waited_for_no_more_and_others_are() {
    let (gpu, allocator) = on("");
    let [first, second] = USERS;
    let blocks = [(SIZE, first), (2 * SIZE, second), (4 * SIZE, first)].map(|(size, user)| {
        let address = allocator.allocate(size, OWN).unwrap();
        allocator.record_stream(address, user).unwrap();
        address
    });
    let held = gpu.hold(second);
    for address in &blocks[..2] {
        allocator.free(*address).unwrap();
    }
    allocator.streams().forget(first).unwrap();
    assert_eq!(allocator.stats().active_bytes.all.current, 6 * SIZE, "one is live, and one waits for the second");
    gpu.destroy_stream(first);
    let before = gpu.call_stats();
    allocator.free(blocks[2]).unwrap();
    let made = gpu.call_stats().since(&before);
    assert_eq!([Call::IsCapturing, Call::EventRecord].map(|call| made.get(call).count), [0, 0], "it is not named");
    assert_eq!(allocator.stats().active_bytes.all.current, 2 * SIZE);
    gpu.finish_hold(held);
    assert_eq!(active(&allocator), 0);
}

/// The driver's answer for a stream that does not exist may also be its answer for one that exists, for another reason.
#[test]
fn a_stream_that_exists_is_not_taken_for_one_that_is_gone() {
    let (gpu, allocator) = on("");
    let address = allocator.allocate(SIZE, OWN).unwrap();
    allocator.record_stream(address, USERS[0]).unwrap();
    gpu.launch(USERS[0], &[Range { address, size: SIZE }], KERNEL_NS).unwrap();
    gpu.fail_nth(Call::EventRecord, 1, Status::INVALID_HANDLE);
    let refused = allocator.free(address);
    assert!(matches!(&refused, Err(Error::Driver(error)) if error.status == Status::INVALID_HANDLE), "{refused:?}");
    assert!(gpu.now_ns() < KERNEL_NS, "nothing is waited for");
    assert_eq!(allocator.reports().size_of(address), Ok(SIZE), "the block stays live");
    allocator.free(address).unwrap();
}

/// A driver that knows no such stream says so at the question whether it is being captured.
#[test]
fn a_stream_that_cannot_be_asked_is_told_by_its_number() {
    let (gpu, allocator) = on("");
    // Less than a long epoch, so that the request below ends it.
    let blocks = [OWN, USERS[0]].map(|stream| allocator.allocate(4 * MIB, stream).unwrap());
    blocks.into_iter().for_each(|address| allocator.free(address).unwrap());
    gpu.fail_nth(Call::IsCapturing, 1, Status::INVALID_HANDLE);
    allocator.allocate(2 * SIZE, OWN).unwrap();
    allocator.reports().check().unwrap();
}

/// The block of a private pool is freed by the slow path, whatever failed before.
#[test]
fn a_free_that_fails_leaves_a_private_pools_block_as_it_was() {
    let (gpu, allocator) = on("");
    let pool = allocator.pools().create();
    let address = allocator.pools().allocate(pool, SIZE, USERS[0]).unwrap();
    allocator.streams().forget(USERS[0]).unwrap();
    gpu.fail_nth(Call::EventRecord, 1, Status::UNKNOWN);
    allocator.free_with_current_stream(address, USERS[1]).unwrap_err();
    allocator.reports().check().unwrap();
    allocator.free(address).unwrap();
    assert_eq!(allocator.stats().active_bytes.all.current, 0);
    allocator.reports().check().unwrap();
}

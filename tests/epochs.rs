//! Epochs, when the GPU is far behind: memory that is passed on is passed on late enough, however many epochs there are.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod simulated;

use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{Range, SimGpu};
use seamalloc::{Allocator, Config};
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
fn far_behind(user: StreamId) -> (Arc<SimGpu>, Allocator) {
    let (gpu, allocator) = simulated::on("sim:h200,capacity=4GiB", Config::default());
    allocator.allocate(2 * MIB, OTHER).unwrap();
    for _ in 0..EPOCHS {
        let address = allocator.allocate(LONG, OWN).unwrap();
        gpu.launch(user, &[Range { address, size: LONG }], KERNEL_NS).unwrap();
        allocator.free_under(address, user).unwrap();
    }
    allocator.set_memory_limit(Some(allocator.reserved())).unwrap();
    (gpu, allocator)
}

#[test]
fn the_last_of_too_many_epochs_is_passed_last() {
    for user in [OWN, USER] {
        let (gpu, allocator) = far_behind(user);
        let done = gpu.done_at(user).unwrap();
        assert!(done > gpu.now_ns() + 2 * KERNEL_NS, "the GPU is behind");
        allocator.allocate(LONG, OTHER).unwrap();
        let starts = gpu.done_at(OTHER).unwrap().max(gpu.now_ns());
        assert!(starts >= done, "user {user}: it starts at {starts}, and is used until {done}");
        // Nobody is asked to wait for more than the last epoch, of the own stream and of the user.
        assert_eq!(allocator.stats().stream_waits, if user == OWN { 1 } else { 2 });
        allocator.check().unwrap();
    }
}

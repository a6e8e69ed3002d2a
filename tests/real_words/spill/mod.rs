//! Live memory that does not fit the device is spilled to the machine's: a job that would die runs, contents are equal to the
//! bit, addresses stay, and memory is accounted to the byte.

mod bounds;
mod contents;
mod failures;
mod frees;
mod growth;
mod jobs;
mod kept;
mod refused;
mod return_trip;
mod rules;
mod views;

use crate::device::{MAIN, MIB, SIDE};
use crate::world::World;
use seamalloc::driver::Call;
use seamalloc::driver::host::{HostWork, Range};

/// Bytes of the device of [`furnished`], and of a request that is too large for what it has left.
const FURNISHED: u64 = 18 * MIB;
const TOO_LARGE: u64 = 12 * MIB;

/// The calls of spilling and coming back.
const OF_SPILLING: [Call; 10] = [
    Call::Synchronize,
    Call::Reserve,
    Call::AddressFree,
    Call::Create,
    Call::CreateOnHost,
    Call::Release,
    Call::Map,
    Call::Unmap,
    Call::SetAccess,
    Call::Copy,
];

/// Fills a device: blocks at home, some of which end inside of a chunk, one that is stitched, and small ones. Returns the large
/// ones, the oldest first.
fn furnished(options: &str) -> (World, Vec<u64>) {
    let mut world = World::new(FURNISHED, &format!("chunk_size_mb:2,{options}"));
    let mut large: Vec<u64> = [3, 7, 5, 4, 5].map(|half| world.allocate(half * MIB / 2, MAIN).unwrap()).to_vec();
    world.allocate(512, MAIN).unwrap();
    world.allocate(900 << 10, SIDE).unwrap();
    for index in [3, 1] {
        world.free(large.remove(index));
    }
    world.device.settle();
    large.push(world.allocate(5 * MIB, MAIN).unwrap());
    assert!(world.views() > 0, "nothing was stitched");
    (world, large)
}

/// A step of a program that needs little: three requests, which kernels use, and which are freed.
fn small_step(world: &World) {
    let blocks = [(); 3].map(|()| world.allocator.allocate(5 * MIB, MAIN).unwrap());
    for address in blocks {
        let range = Range { address, size: 5 * MIB };
        world.device.host.launch(MAIN, HostWork::Use { range }).unwrap();
    }
    blocks.into_iter().for_each(|address| world.allocator.free(address).unwrap());
}

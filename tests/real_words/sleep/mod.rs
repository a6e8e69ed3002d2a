//! Tags sleep and wake: contents are equal to the bit, addresses stay, and memory is accounted to the byte.

mod contents;
mod ends;
mod failures;
mod links;
mod rules;
mod told;

use crate::device::{MAIN, MIB, SIDE};
use crate::world::World;
use seamalloc::driver::Call;
use seamalloc::{Backup, PoolId};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// The calls of sleeping and waking.
const OF_SLEEP: [Call; 12] = [
    Call::Synchronize,
    Call::Reserve,
    Call::Create,
    Call::Release,
    Call::Map,
    Call::Unmap,
    Call::SetAccess,
    Call::HostMalloc,
    Call::HostFree,
    Call::CopyOut,
    Call::CopyIn,
    Call::HostWait,
];

/// Makes a tag with blocks at home, small ones, blocks that are stitched, free memory, and two streams.
fn furnished(world: &mut World) -> PoolId {
    let tag = world.allocator.tags().create().unwrap();
    let large: Vec<u64> = (0..5).map(|_| world.allocate_in(tag, 2 * MIB, MAIN).unwrap()).collect();
    for size in [512, 4096, 900 << 10] {
        world.allocate_in(tag, size, MAIN).unwrap();
    }
    world.allocate_in(tag, 3 * MIB / 2, SIDE).unwrap();
    [large[0], large[2], large[4]].into_iter().for_each(|address| world.free(address));
    world.allocate_in(tag, 7 * MIB / 2, MAIN).unwrap();
    assert!(world.views() > 0, "nothing was stitched");
    tag
}

/// Returns each kind of backup.
fn backups(name: &str) -> [Backup; 4] {
    [Backup::Host, Backup::Pinned, Backup::Discard, Backup::File(file(name))]
}

/// Returns the name of a file that does not exist, another one each time.
pub(crate) fn file(name: &str) -> PathBuf {
    static FILES: AtomicU64 = AtomicU64::new(0);
    let (number, process) = (FILES.fetch_add(1, Ordering::Relaxed), std::process::id());
    let path = std::env::temp_dir().join(format!("seamalloc-sleep-{name}-{process}-{number}"));
    drop(std::fs::remove_file(&path));
    path
}

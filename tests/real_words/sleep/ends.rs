//! A tag that is released while it sleeps leaves nothing, as soon as nothing of it is live.

use super::furnished;
use crate::device::{MAIN, MIB, SIDE};
use crate::world::{CAPACITY, World};
use seamalloc::Backup;

fn nothing_is_left(world: &World) {
    let parts = world.allocator.reports().fragmentation();
    assert_eq!((parts.asleep, world.views(), world.allocator.pools().ids()), (0, 0, Vec::new()), "{parts:?}");
    assert_eq!(world.allocator.stats().sleep.asleep_bytes, 0);
    assert!(world.allocator.tags().release_backups().unwrap() > 0, "its backup serves nobody");
    world.check_all();
}

#[test]
fn a_tag_that_is_released_asleep_ends_with_its_last_block() {
    for named in [false, true] {
        let mut world = World::new(CAPACITY, "chunk_size_mb:4");
        let tag = furnished(&mut world);
        world.allocator.tags().sleep(tag, &Backup::Pinned).unwrap();
        world.allocator.pools().release(tag).unwrap();
        assert_eq!(world.allocator.pools().ids(), [tag], "its blocks are live");
        let live: Vec<u64> = world.live.keys().copied().collect();
        for address in live {
            if named {
                world.allocator.record_stream(address, SIDE).unwrap();
            }
            world.free(address);
        }
        if named {
            // A request looks which frees are complete.
            world.device.settle();
            let new = world.allocate(3 * MIB, MAIN).unwrap();
            world.free(new);
        }
        nothing_is_left(&world);
        world.end(&[]);
    }
}

#[test]
fn a_tag_of_which_nothing_is_live_ends_at_once() {
    let mut world = World::new(CAPACITY, "chunk_size_mb:4");
    let tag = furnished(&mut world);
    world.allocator.tags().sleep(tag, &Backup::Pinned).unwrap();
    let live: Vec<u64> = world.live.keys().copied().collect();
    live.into_iter().for_each(|address| world.free(address));
    assert!(world.views() > 0);
    world.allocator.pools().release(tag).unwrap();
    nothing_is_left(&world);
    world.end(&[]);
}

//! Backups of many bytes: through the stage and back, and at the speed of the simulated link.

use super::backups;
use crate::device::{MAIN, MIB};
use crate::world::World;
use seamalloc::driver::sim::{Profile, SimConfig, SimGpu};
use seamalloc::driver::{Call, Driver, Status};
use seamalloc::{Allocator, Backup, Config, Error};
use std::sync::Arc;

const GIB: u64 = 1 << 30;

#[test]
fn a_backup_that_is_larger_than_the_stage_keeps_every_word() {
    for backup in backups("large") {
        if backup == Backup::Discard {
            continue;
        }
        let mut world = World::new(512 * MIB, "strategy:stitch,chunk_size_mb:32");
        let tag = world.allocator.tags().create().unwrap();
        let blocks: Vec<u64> =
            [66, 3, 41, 5, 30].map(|size| world.allocate_in(tag, size * MIB, MAIN).unwrap()).to_vec();
        // Holes between what is live, so that no copy is of whole stages.
        world.free(blocks[1]);
        world.free(blocks[3]);
        for _ in 0..2 {
            world.allocator.tags().sleep(tag, &backup).unwrap();
            assert_eq!(world.device.used(), 0);
            world.allocator.tags().wake(tag).unwrap();
        }
        world.check_all();
        let locked = world.allocator.stats().sleep.page_locked_bytes;
        let expected = if backup == Backup::Pinned { 138 * MIB } else { 128 * MIB };
        assert_eq!(locked, expected, "{backup:?}: the second sleep has made none");
        world.end(&[tag]);
    }
}

#[test]
fn page_locked_memory_is_copied_at_the_speed_of_the_link() {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h100").unwrap()).unwrap());
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::default()).unwrap();
    let tag = allocator.tags().create().unwrap();
    let blocks: Vec<u64> = (0..120).map(|_| allocator.pools().allocate(tag, GIB / 4, MAIN).unwrap()).collect();
    let link = Profile::H100.link(30 * GIB);
    for turn in 0..2 {
        let begin = gpu.now_ns();
        assert_eq!(allocator.tags().sleep(tag, &Backup::Pinned), Ok(30 * GIB));
        let asleep = gpu.now_ns();
        assert_eq!(gpu.memory_info().unwrap().free, gpu.properties().total_memory);
        let stats = allocator.stats().sleep;
        assert_eq!((stats.asleep_bytes, stats.sleeps, stats.wakes), (30 * GIB, turn + 1, turn));
        assert_eq!(stats.page_locked_bytes, 30 * GIB);
        assert_eq!(allocator.tags().wake(tag), Ok(30 * GIB));
        let (fell, woke) = (asleep - begin, gpu.now_ns() - asleep);
        if turn > 0 {
            assert!(link * 10 > fell * 9, "{fell} ns, of which the link takes {link}");
        } else {
            let locking = gpu.call_stats().get(Call::HostMalloc).total_ns;
            assert!(
                fell < locking + link / 10,
                "copies run while memory is locked: {fell} ns, {locking} of them locking"
            );
        }
        assert!(link * 10 > woke * 9, "{woke} ns, of which the link takes {link}");
    }
    assert_eq!(gpu.call_stats().get(Call::HostMalloc).count, 120, "only the first sleep locks memory");
    assert_eq!(allocator.tags().release_backups(), Ok(30 * GIB));
    assert_eq!((allocator.tags().release_backups(), allocator.stats().sleep.page_locked_bytes), (Ok(0), 0));
    blocks.into_iter().for_each(|address| allocator.free(address).unwrap());
    drop(allocator);
    assert!(gpu.leaks().is_empty());
}

/// The option bounds what is kept for the next backup, of those that lie in it and of the stage.
#[test]
fn an_option_bounds_the_page_locked_memory_that_is_kept() {
    for (options, pinned, staged) in [("backup_cache:0B", 0, 0), ("backup_cache:600MiB", 512, 128), ("", 1024, 128)] {
        for (backup, kept) in [(Backup::Pinned, pinned), (Backup::Host, staged)] {
            let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap());
            let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::parse(options).unwrap()).unwrap();
            let [tag, small] = [(); 2].map(|()| allocator.tags().create().unwrap());
            // Bytes of the host are touched, where they are not page-locked: little more than the stage.
            let size = if backup == Backup::Pinned { GIB } else { 80 * MIB };
            let block = allocator.pools().allocate(tag, size, MAIN).unwrap();
            let other = allocator.pools().allocate(small, 80 * MIB, MAIN).unwrap();
            let locked = || allocator.stats().sleep.page_locked_bytes / MIB;
            for _ in 0..2 {
                allocator.tags().sleep(tag, &backup).unwrap();
                assert_eq!(
                    locked(),
                    if backup == Backup::Pinned { 1024 } else { kept },
                    "{options}: {backup:?} serves"
                );
                allocator.tags().wake(tag).unwrap();
                assert_eq!(locked(), kept, "{options}: {backup:?}");
            }
            // What cannot be given back stays, and is counted.
            if options == "backup_cache:0B" {
                gpu.fail_nth(Call::HostFree, 1, Status::UNKNOWN);
                allocator.tags().sleep(small, &Backup::Host).unwrap();
                assert_eq!(locked(), 128, "{backup:?}");
                allocator.tags().wake(small).unwrap();
                assert_eq!(locked(), 0, "{backup:?}");
            }
            [block, other].into_iter().for_each(|address| allocator.free(address).unwrap());
            drop(allocator);
            assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
        }
    }
}

#[test]
fn a_tag_that_ends_asleep_leaves_its_page_locked_memory_to_others() {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap());
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::default()).unwrap();
    let [first, second] = [0, 1].map(|_| allocator.tags().create().unwrap());
    let [a, b] = [first, second].map(|tag| allocator.pools().allocate(tag, 300 * MIB, MAIN).unwrap());
    allocator.tags().sleep(first, &Backup::Pinned).unwrap();
    assert_eq!(allocator.tags().release_backups(), Ok(0), "it serves");
    allocator.free(a).unwrap();
    allocator.pools().release(first).unwrap();
    allocator.empty_cache().unwrap();
    let made = gpu.call_stats().get(Call::HostMalloc).count;
    allocator.tags().sleep(second, &Backup::Pinned).unwrap();
    assert_eq!(gpu.call_stats().get(Call::HostMalloc).count, made, "it has what the first one had");
    // The end of the allocator, with a tag that sleeps and a live block of it.
    drop(allocator);
    assert_eq!(gpu.leaks().host_buffers, 0);
    let _ = b;
}

#[test]
fn a_host_without_memory_to_lock_leaves_the_tag_awake_and_keeps_none() {
    for (backup, size) in [(Backup::Pinned, 700 * MIB), (Backup::Host, 80 * MIB)] {
        let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap());
        let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::default()).unwrap();
        let tag = allocator.tags().create().unwrap();
        let block = allocator.pools().allocate(tag, size, MAIN).unwrap();
        gpu.fail_nth(Call::HostMalloc, 2, Status::OUT_OF_MEMORY);
        assert_eq!(allocator.tags().sleep(tag, &backup), Err(Error::HostMemory), "it is not the device that has none");
        assert!(!allocator.tags().is_asleep(tag) && allocator.reports().reserved() == size);
        if backup == Backup::Pinned {
            assert_eq!((gpu.leaks().host_buffers, allocator.stats().sleep.page_locked_bytes), (0, 0));
        }
        allocator.tags().sleep(tag, &backup).unwrap();
        allocator.tags().wake(tag).unwrap();
        allocator.free(block).unwrap();
    }
}

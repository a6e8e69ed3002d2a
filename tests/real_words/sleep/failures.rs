//! Each call of the driver fails in turn, once or from then on, while a tag goes to sleep or wakes.

use super::{OF_SLEEP, backups, file, furnished};
use crate::device::{Calls, Fault, MAIN, MIB};
use crate::failures::fail_each;
use crate::world::{CAPACITY, World};
use seamalloc::driver::{Call, Status};
use seamalloc::{Backup, Error};

const OPTIONS: &str = "strategy:stitch,chunk_size_mb:2";

/// Lets calls fail in one step of the way to sleep and back.
fn attempt(backup: &Backup, waking: bool, fault: Fault) -> Calls {
    let mut world = World::new(CAPACITY, OPTIONS);
    let tag = furnished(&mut world);
    let other = world.allocate(3 * MIB / 2, MAIN).unwrap();
    let held = world.device.used();
    if waking {
        world.allocator.tags().sleep(tag, backup).unwrap();
    }
    let before = world.device.used();
    world.device.fail(&OF_SLEEP, fault);
    let answer = if waking { world.allocator.tags().wake(tag) } else { world.allocator.tags().sleep(tag, backup) };
    // Nothing is healed yet: whatever is left to undo is counted.
    world.check_books();
    let calls = world.device.heal();
    let failed = &calls.failed;
    assert!(answer.is_ok() || !failed.is_empty(), "{answer:?}");
    if answer.is_err() {
        assert_eq!(world.allocator.tags().is_asleep(tag), waking, "{failed:?}: neither as before nor done");
    }
    // The next request undoes what could not be undone.
    let small = world.allocate(512, MAIN).unwrap();
    world.free(small);
    world.allocator.trim(u64::MAX).unwrap();
    world.check_books();
    if answer.is_err() {
        assert_eq!(world.device.used(), before, "{failed:?}: memory is left, or is gone");
    }
    if *backup != Backup::Discard || !waking && answer.is_err() {
        world.check_all();
    }
    world.check(other);
    // And the way goes on.
    world.allocator.tags().sleep(tag, backup).unwrap();
    assert_eq!(world.device.used(), 2 * MIB, "{failed:?}: only the block outside of the tag has memory");
    world.allocator.tags().wake(tag).unwrap();
    assert_eq!(world.device.used(), held, "{failed:?}");
    if *backup != Backup::Discard {
        world.check_all();
    }
    world.end(&[tag]);
    calls
}

/// How many calls fail one behind the other.
fn counts(backup: &Backup) -> &'static [u64] {
    match backup {
        Backup::Host => &[1, 2, u64::MAX],
        Backup::Pinned => &[1, u64::MAX],
        _ => &[1],
    }
}

#[test]
fn every_call_that_fails_on_the_way_to_sleep_leaves_all_as_it_was() {
    for backup in backups("falling") {
        for count in counts(&backup) {
            let failed = fail_each(*count, Status::UNKNOWN, |fault| attempt(&backup, false, fault));
            let mut expected = vec![Call::Synchronize, Call::Unmap, Call::Release];
            if backup != Backup::Discard {
                expected.extend([Call::HostMalloc, Call::CopyOut, Call::HostWait]);
            }
            assert!(expected.iter().all(|call| failed.contains(call)), "{backup:?}: {failed:?}");
        }
    }
}

#[test]
fn every_call_that_fails_while_waking_leaves_a_tag_that_sleeps() {
    for backup in backups("waking") {
        for count in counts(&backup) {
            let failed = fail_each(*count, Status::UNKNOWN, |fault| attempt(&backup, true, fault));
            let mut expected = vec![Call::Create, Call::Map, Call::SetAccess];
            if backup != Backup::Discard {
                expected.extend([Call::CopyIn, Call::HostWait]);
            }
            assert!(expected.iter().all(|call| failed.contains(call)), "{backup:?}: {failed:?}");
        }
    }
}

#[test]
fn a_device_that_has_too_little_memory_halfway_is_asked_again() {
    let failed = fail_each(1, Status::OUT_OF_MEMORY, |fault| attempt(&Backup::Host, true, fault));
    assert!(failed.contains(&Call::Create));
    fail_each(u64::MAX, Status::OUT_OF_MEMORY, |fault| attempt(&Backup::Host, true, fault));
}

#[test]
fn a_file_that_cannot_be_made_is_named() {
    let mut world = World::new(CAPACITY, OPTIONS);
    let tag = furnished(&mut world);
    let held = world.device.used();
    let existing = file("existing");
    std::fs::write(&existing, "precious").unwrap();
    for path in [existing.clone(), std::env::temp_dir().join("no-such-folder/backup")] {
        let error = world.allocator.tags().sleep(tag, &Backup::File(path.clone())).unwrap_err();
        assert!(matches!(&error, Error::Backup { path: named, .. } if *named == path), "{error}");
        assert_eq!(world.device.used(), held);
        world.check_all();
    }
    // A full disk, where there is a device that plays one.
    assert_eq!(std::fs::read_to_string(&existing).unwrap(), "precious");
    std::fs::remove_file(existing).unwrap();
    world.end(&[tag]);
}

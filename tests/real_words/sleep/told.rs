//! Who is told of sleep, and several threads with one tag.

use super::{OF_SLEEP, file};
use crate::device::{Fault, MAIN, MIB};
use crate::world::World;
use seamalloc::driver::{Call, Status};
use seamalloc::{Allocator, Backup, Error, Pool, Route, SleepStage};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

/// The next call fails.
const FAULT: Fault = Fault { nth: 1, count: 1, status: Status::UNKNOWN };

/// The messages that callbacks received: who, and when.
type Told = Arc<Mutex<Vec<(u8, SleepStage)>>>;

fn tell(allocator: &Allocator, told: &Told, who: u8, agrees: &Arc<AtomicBool>) -> seamalloc::CallbackId {
    let (told, agrees) = (Arc::clone(told), Arc::clone(agrees));
    let told = move |notice: &seamalloc::SleepNotice| {
        assert_eq!(notice.bytes, 8 * MIB);
        told.lock().unwrap().push((who, notice.stage));
        agrees.load(Ordering::Relaxed)
    };
    allocator.tags().on_change(told).unwrap()
}

#[test]
fn callbacks_are_told_before_and_after_and_how_it_came_out() {
    use SleepStage::{Asleep, Awake, BeforeSleep, BeforeWake};
    let mut world = World::new(64 * MIB, "");
    let tag = world.allocator.tags().create().unwrap();
    world.allocate_in(tag, 8 * MIB, MAIN).unwrap();
    let (told, agrees) = (Told::default(), Arc::new(AtomicBool::new(true)));
    let always = Arc::new(AtomicBool::new(true));
    tell(&world.allocator, &told, 1, &always);
    let second = tell(&world.allocator, &told, 2, &agrees);
    let taken = || std::mem::take(&mut *told.lock().unwrap());
    world.allocator.tags().sleep(tag, &Backup::Host).unwrap();
    assert_eq!(taken(), [(1, BeforeSleep), (2, BeforeSleep), (2, Asleep), (1, Asleep)]);
    world.allocator.tags().sleep(tag, &Backup::Host).unwrap();
    assert_eq!(taken(), [], "nothing changes");
    world.allocator.tags().wake(tag).unwrap();
    assert_eq!(taken(), [(1, BeforeWake), (2, BeforeWake), (2, Awake), (1, Awake)]);
    // A refusal, and a failure.
    agrees.store(false, Ordering::Relaxed);
    let refused = world.allocator.tags().sleep(tag, &Backup::Host);
    assert!(matches!(refused, Err(Error::NotSleepable { why, .. }) if why.contains("refused")), "{refused:?}");
    assert_eq!(taken(), [(1, BeforeSleep), (2, BeforeSleep), (1, Awake)]);
    agrees.store(true, Ordering::Relaxed);
    world.device.fail(&OF_SLEEP, FAULT);
    world.allocator.tags().sleep(tag, &Backup::Host).unwrap_err();
    assert_eq!(world.device.heal().failed, [Call::Synchronize]);
    assert_eq!(taken(), [(1, BeforeSleep), (2, BeforeSleep), (2, Awake), (1, Awake)]);
    world.allocator.tags().sleep(tag, &Backup::File(file("told"))).unwrap();
    taken();
    world.device.fail(&OF_SLEEP, FAULT);
    world.allocator.tags().wake(tag).unwrap_err();
    world.device.heal();
    assert_eq!(taken(), [(1, BeforeWake), (2, BeforeWake), (2, Asleep), (1, Asleep)]);
    assert!(world.allocator.tags().remove_callback(second) && !world.allocator.tags().remove_callback(second));
    world.allocator.tags().wake(tag).unwrap();
    assert_eq!(taken(), [(1, BeforeWake), (1, Awake)]);
    world.check_all();
    world.end(&[tag]);
}

#[test]
fn a_callback_may_call_the_allocator_but_change_nothing_twice() {
    let allocator = Arc::new(Allocator::open("host:64MiB", "").unwrap());
    let tag = allocator.tags().create().unwrap();
    let block = allocator.pools().allocate(tag, 8 * MIB, MAIN).unwrap();
    let (weak, seen) = (Arc::downgrade(&allocator), Arc::new(AtomicBool::new(false)));
    let saw = Arc::clone(&seen);
    let looks = move |notice: &seamalloc::SleepNotice| {
        let allocator = weak.upgrade().unwrap();
        let blocks = allocator.pools().blocks(notice.tag).unwrap();
        let nested = [allocator.tags().sleep(notice.tag, &Backup::Host), allocator.tags().wake(notice.tag)];
        // One of both has something to do, and is refused.
        let refused = nested.iter().filter(|answer| matches!(answer, Err(Error::NotSleepable { .. }))).count();
        saw.store(blocks.len() == 1 && refused == 1, Ordering::Relaxed);
        true
    };
    allocator.tags().on_change(looks).unwrap();
    let panics = allocator.tags().on_change(|_| std::panic::resume_unwind(Box::new(1))).unwrap();
    assert!(allocator.tags().sleep(tag, &Backup::Host).is_err(), "who panics does not agree");
    assert!(allocator.tags().remove_callback(panics));
    assert_eq!(allocator.tags().sleep(tag, &Backup::Host), Ok(8 * MIB));
    assert!(seen.load(Ordering::Relaxed));
    assert_eq!(allocator.tags().wake(tag), Ok(8 * MIB));
    allocator.free(block).unwrap();
}

#[test]
fn threads_have_one_tag_at_once_and_all_of_it_sleeps() {
    let allocator = Arc::new(Allocator::open("host:256MiB", "").unwrap());
    let (tag, other) = (allocator.tags().create().unwrap(), allocator.tags().create().unwrap());
    let (begun, ended) = (Barrier::new(4), Barrier::new(4));
    let blocks = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..3_u64 {
            let (allocator, blocks, begun, ended) = (&allocator, &blocks, &begun, &ended);
            scope.spawn(move || {
                let pool = Pool::from_id(Arc::clone(allocator), if number == 2 { other } else { tag });
                let route = pool.route(Route::this_thread()).unwrap();
                begun.wait();
                blocks.lock().unwrap().push(allocator.block(4 * MIB, MAIN).unwrap());
                ended.wait();
                route.end().unwrap();
                let _ = pool.into_id();
            });
        }
        begun.wait();
        // This thread has no route: it is a backward pass's.
        allocator.pools().begin(tag, Route::other_threads()).unwrap();
        blocks.lock().unwrap().push(allocator.block(4 * MIB, MAIN).unwrap());
        ended.wait();
    });
    allocator.pools().end(tag).unwrap();
    let held = [tag, other].map(|tag| allocator.pools().stats(tag).unwrap().allocated_bytes);
    assert_eq!(held, [12 * MIB, 4 * MIB], "the third thread has its own");
    assert_eq!(allocator.tags().sleep(tag, &Backup::Pinned), Ok(12 * MIB));
    assert_eq!(allocator.reports().reserved(), 4 * MIB);
    assert_eq!(allocator.tags().wake(tag), Ok(12 * MIB));
    drop(blocks);
}

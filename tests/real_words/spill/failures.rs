//! Each call of the driver fails in turn, once or from then on, while memory is spilled, comes back, or goes.

use super::{OF_SPILLING, TOO_LARGE, furnished};
use crate::device::{Calls, Fault, MAIN, MIB, SIDE};
use crate::failures::fail_each;
use seamalloc::driver::{Call, Status};
use seamalloc::{Advice, Error};

const SPILL: &str = "spill:host=1GiB";

/// A step of a program in which calls fail.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// A request for which memory is spilled.
    Spill,
    /// All that fits comes back.
    Return,
    /// One block comes back.
    Hot,
    /// The memory of a freed block goes.
    Go,
}

/// Lets calls fail in one step.
fn attempt(step: Step, fault: Fault) -> Calls {
    let (mut world, large) = furnished(SPILL);
    let mut gone = None;
    if step != Step::Spill {
        let new = world.allocate(TOO_LARGE, MAIN).unwrap();
        assert!(world.spilled() > 0);
        if step != Step::Go {
            world.free(new);
        } else {
            gone = large.iter().copied().max_by_key(|address| world.live[address].size);
        }
    }
    world.device.settle();
    let before = world.used();
    world.device.fail(&OF_SPILLING, fault);
    let answer = match step {
        Step::Spill => world.allocate(TOO_LARGE, MAIN).map(drop),
        Step::Return => world.allocator.spill().restore().map(drop),
        Step::Hot => large.iter().try_for_each(|address| world.allocator.spill().advise(*address, Advice::Hot)),
        Step::Go => {
            gone.into_iter().for_each(|address| world.free(address));
            world.allocator.empty_cache().map(drop)
        }
    };
    // Nothing is healed yet: whatever is left to undo is counted.
    world.check_books();
    let calls = world.device.heal();
    let when = format!("{step:?}: {fault:?}, {:?}: {answer:?}", calls.failed);
    if let Err(error) = &answer {
        assert!(matches!(error, Error::Driver(_) | Error::OutOfMemory(_)) && !calls.failed.is_empty(), "{when}");
    }
    // The next operation undoes what could not be undone.
    let small = world.allocate(512, MAIN).unwrap_or_else(|error| panic!("{when}: {error}"));
    world.free(small);
    world.check_all();
    if step == Step::Spill && answer.is_err() {
        world.allocator.trim(u64::MAX).unwrap();
        world.check_books();
        let (device, host) = world.used();
        assert!(device + host <= before.0 + before.1 + 2 * MIB, "{when}: {before:?}, {device}, {host}");
        // And it can be tried again.
        world.allocate(TOO_LARGE, MAIN).unwrap_or_else(|error| panic!("{when}, then: {error}"));
        world.check_all();
    }
    if matches!(step, Step::Return | Step::Hot) && answer.is_err() {
        world.allocator.spill().restore().unwrap();
        assert_eq!(world.spilled(), 0, "{when}");
        world.check_all();
    }
    // The way goes on.
    let side = world.allocate(3 * MIB, SIDE).unwrap();
    world.check(side);
    world.end_empty(&[]);
    calls
}

#[test]
fn every_call_that_fails_while_memory_is_spilled_leaves_contents_and_accounts() {
    for (count, status) in [(1, Status::UNKNOWN), (2, Status::UNKNOWN), (u64::MAX, Status::UNKNOWN)] {
        let failed = fail_each(count, status, |fault| attempt(Step::Spill, fault));
        for call in OF_SPILLING.into_iter().filter(|call| *call != Call::AddressFree || count == u64::MAX) {
            assert!(failed.contains(&call), "{count}: {call} never failed, only {failed:?}");
        }
    }
    let failed = fail_each(1, Status::OUT_OF_MEMORY, |fault| attempt(Step::Spill, fault));
    assert!(failed.contains(&Call::CreateOnHost), "{failed:?}");
    fail_each(u64::MAX, Status::OUT_OF_MEMORY, |fault| attempt(Step::Spill, fault));
}

#[test]
fn every_call_that_fails_on_the_way_back_leaves_contents_and_accounts() {
    for step in [Step::Return, Step::Hot] {
        let ways = [(1, Status::UNKNOWN), (u64::MAX, Status::UNKNOWN), (1, Status::OUT_OF_MEMORY)];
        // One block comes back by the same calls as all.
        let ways = if step == Step::Return { &ways[..] } else { &ways[..1] };
        for (count, status) in ways.iter().copied() {
            let failed = fail_each(count, status, |fault| attempt(step, fault));
            for call in [Call::Create, Call::Copy, Call::Unmap, Call::Map, Call::Release] {
                assert!(failed.contains(&call), "{step:?}, {count}: {call} never failed, only {failed:?}");
            }
        }
    }
}

#[test]
fn every_call_that_fails_where_host_memory_goes_back_is_tried_again() {
    for count in [1, 2, u64::MAX] {
        let failed = fail_each(count, Status::UNKNOWN, |fault| attempt(Step::Go, fault));
        for call in [Call::Unmap, Call::Release] {
            assert!(failed.contains(&call), "{count}: {call} never failed, only {failed:?}");
        }
    }
}

/// Kernels may use live memory as soon as a call has failed, without a request in between.
#[test]
fn live_memory_is_at_its_addresses_after_a_call_whose_undoing_failed_too() {
    for step in [Step::Spill, Step::Return] {
        fail_each(2, Status::UNKNOWN, |fault| {
            let (mut world, large) = furnished(SPILL);
            if step != Step::Spill {
                let new = world.allocate(TOO_LARGE, MAIN).unwrap();
                world.free(new);
            }
            world.device.settle();
            world.device.fail(&OF_SPILLING, fault);
            let answer = match step {
                Step::Spill => world.allocator.allocate(TOO_LARGE, MAIN).map(drop),
                _ => world.allocator.spill().restore().map(drop),
            };
            let calls = world.device.heal();
            large.iter().for_each(|address| world.check(*address));
            assert_eq!(world.device.host.faults(), [], "{step:?}: {fault:?}, {:?}: {answer:?}", calls.failed);
            calls
        });
    }
}

//! `trim` gives back what was asked for, and hardly more.

use crate::length::is_tried;
use crate::random::Random;
use crate::simulated::Device;
use crate::step::step;
use crate::{MAIN, MIB, SIDE, Subject, balanced, calls, in_small_chunks, reserved};
use seamalloc::driver::{Call, Driver, Status, StreamId};
use seamalloc::observer::{Action, Event, Observer};
use seamalloc::{Allocator, Error, StrategyKind};
use std::sync::{Arc, Mutex};

pub(crate) fn freed_blocks_that_other_streams_use_are_waited_for_only_where_needed(
    Subject { kind, maps, .. }: Subject,
) {
    let (gpu, allocator) = in_small_chunks(kind, "sim:h200", "");
    let [a, b] = [0, 1].map(|_| allocator.allocate(40 * MIB, MAIN).unwrap());
    gpu.hold(SIDE);
    allocator.record_stream(a, SIDE).unwrap();
    allocator.free(a).unwrap();
    allocator.free(b).unwrap();
    assert_eq!(allocator.trim(40 * MIB).unwrap(), 40 * MIB, "{kind}");
    assert_eq!(calls(&gpu, Call::EventSynchronize), 0, "{kind}");
    assert_eq!(allocator.trim(40 * MIB).unwrap(), 40 * MIB, "{kind}");
    // `cudaFree` has waited for everything already.
    let waits = u64::from(maps);
    assert_eq!(calls(&gpu, Call::EventSynchronize), waits, "{kind}");
    balanced(&gpu, &allocator);
}

/// Notes the sizes of what is given back.
struct Given(Arc<Mutex<Vec<u64>>>);

impl Observer for Given {
    fn event(&mut self, event: &Event) {
        if matches!(event.action, Action::SegmentFree | Action::SegmentUnmap) {
            self.0.lock().unwrap().push(event.size);
        }
    }
}

pub(crate) fn no_piece_is_given_back_that_could_have_been_kept(Subject { kind, unit, .. }: Subject) {
    for seed in 0..6 {
        let (gpu, allocator) =
            in_small_chunks(kind, "sim:h200", ["", "sharing:never", "sharing:completed"][seed as usize % 3]);
        let given = Arc::new(Mutex::new(Vec::new()));
        allocator.reports().set_observer(Some(Box::new(Given(Arc::clone(&given)))));
        let (mut random, mut live) = (Random(seed), Vec::new());
        for _ in 0..400 {
            step(&allocator, &mut random, &mut live).unwrap();
            if random.below(8) > 0 {
                continue;
            }
            let asked = random.below(200 * MIB);
            let before = reserved(&allocator);
            given.lock().unwrap().clear();
            let said = allocator.trim(asked).unwrap();
            assert_eq!(said, before - reserved(&allocator));
            let pieces = std::mem::take(&mut *given.lock().unwrap());
            assert_eq!(pieces.iter().sum::<u64>(), said);
            balanced(&gpu, &allocator);
            match unit {
                _ if said < asked => assert_eq!(allocator.empty_cache().unwrap(), 0, "{kind}: there was no more"),
                Some(unit) => assert!(said - asked < unit, "{kind}: {asked} {pieces:?}"),
                None => assert!(pieces.iter().all(|piece| said - piece < asked), "{kind}: {asked} {pieces:?}"),
            }
        }
    }
}

/// Live and free blocks of several sizes on several streams, some freed under running work, and views over them.
fn scene(kind: StrategyKind) -> (Arc<Device>, Allocator, Vec<u64>) {
    let (gpu, allocator) = in_small_chunks(kind, "sim:h200", "sharing:never");
    let mut live: Vec<u64> = Vec::new();
    for step in 0..30u64 {
        let size = [30 * MIB, 3 * MIB, 700, 45 * MIB][(step % 4) as usize] + step * 4096;
        live.push(allocator.allocate(size, StreamId(step % 3)).unwrap());
    }
    for index in (0..30).rev().filter(|index| index % 5 != 0) {
        allocator.free(live.remove(index)).unwrap();
    }
    for size in [70, 95, 120] {
        let address = allocator.allocate(size * MIB, MAIN).unwrap();
        allocator.record_stream(address, SIDE).unwrap();
        allocator.free(address).unwrap();
    }
    gpu.hold(StreamId(1));
    (gpu, allocator, live)
}

pub(crate) fn any_call_of_a_trim_may_fail(Subject { kind, .. }: Subject) {
    for bytes in [50 * MIB, 250 * MIB, u64::MAX] {
        let (gpu, plain, _) = scene(kind);
        let before = gpu.call_stats();
        let expected = plain.trim(bytes).unwrap();
        let made = gpu.call_stats().since(&before);
        assert!(bytes == u64::MAX || expected >= bytes);
        // How much a pool holds is asked for again.
        for call in Call::ALL.into_iter().filter(|call| *call != Call::PoolAttribute) {
            let count = made.get(call).count;
            for nth in (1..=count).filter(|nth| is_tried(*nth, count, 4, bytes / (50 * MIB) + kind as u64)) {
                let name = format!("{kind}, {bytes} bytes: {call} number {nth}");
                let (gpu, allocator, live) = scene(kind);
                let held = reserved(&allocator);
                let active = allocator.stats().active_bytes.all.current;
                gpu.fail_nth(call, nth, Status::UNKNOWN);
                let error = allocator.trim(bytes).unwrap_err();
                assert!(matches!(&error, Error::Driver(error) if error.call == call), "{name}: {error}");
                balanced(&gpu, &allocator);
                let given = held - reserved(&allocator);
                assert!(given <= expected, "{name}: {given}");
                assert!(allocator.stats().active_bytes.all.current <= active, "{name}");
                // What was given back stays given back, and the rest can be.
                let rest = allocator.trim(bytes.saturating_sub(given)).unwrap();
                assert!(bytes == u64::MAX || given + rest >= bytes, "{name}: {given} and {rest}");
                balanced(&gpu, &allocator);
                live.iter().for_each(|address| allocator.free(*address).unwrap());
                allocator.empty_cache().unwrap();
                assert_eq!(reserved(&allocator), 0, "{name}");
                drop(allocator);
                assert!(gpu.leaks().is_empty(), "{name}: {}", gpu.leaks());
                assert!(gpu.faults().is_empty(), "{name}");
            }
        }
    }
}

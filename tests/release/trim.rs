//! `trim` gives back what was asked for, and hardly more.

use super::random::Random;
use super::watch::Watch;
use super::{CHUNK, MAIN, MIB, SIDE, balanced, on, reserved};
use seamalloc::driver::{Call, Driver, Status, StreamId};
use seamalloc::observer::{Action, Event, Observer};
use seamalloc::{Allocator, Error, StrategyKind};
use std::sync::{Arc, Mutex};

fn calls(gpu: &Watch, call: Call) -> u64 {
    gpu.call_stats().get(call).count
}

fn cpu_waits(gpu: &Watch) -> u64 {
    [Call::StreamSynchronize, Call::EventSynchronize, Call::Synchronize].map(|call| calls(gpu, call)).iter().sum()
}

/// `count` blocks of whole chunks each, one behind the other at home.
fn chunks(allocator: &Allocator, count: usize, stream: StreamId) -> Vec<u64> {
    (0..count).map(|_| allocator.allocate(CHUNK, stream).unwrap()).collect()
}

#[test]
fn chunks_go_one_by_one_from_the_end_of_home() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200", "");
    let held = chunks(&allocator, 4, MAIN);
    for address in &held[1..] {
        allocator.free(*address).unwrap();
    }
    let freed = allocator.stats().num_device_free;
    assert_eq!(allocator.trim(1).unwrap(), CHUNK / 2, "a chunk is the least");
    assert_eq!(allocator.trim(CHUNK).unwrap(), CHUNK);
    assert_eq!(allocator.stats().num_device_free - freed, 3);
    assert_eq!((calls(&gpu, Call::Release), cpu_waits(&gpu)), (3, 0), "the GPU has passed");
    assert_eq!(allocator.allocate(CHUNK, MAIN).unwrap(), held[1], "the end of home went first");
    assert_eq!(allocator.trim(0).unwrap(), 0);
    assert_eq!(allocator.trim(u64::MAX).unwrap(), CHUNK / 2);
    assert_eq!(allocator.trim(u64::MAX).unwrap(), 0);
    assert_eq!(reserved(&allocator), 2 * CHUNK);
    balanced(&gpu, &allocator);
}

#[test]
fn what_fits_goes_before_what_is_larger() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200", "chunk_size_mb:64");
    let held: Vec<u64> = [4, 6, 10, 20].iter().map(|size| allocator.allocate(size * MIB, MAIN).unwrap()).collect();
    held.iter().for_each(|address| allocator.free(*address).unwrap());
    for (bytes, given) in [(6, 6), (24, 24), (1, 10)] {
        assert_eq!(allocator.trim(bytes * MIB).unwrap() / MIB, given, "{bytes}");
        balanced(&gpu, &allocator);
    }
    assert_eq!(reserved(&allocator), 0);
}

#[test]
fn what_the_gpu_has_passed_goes_without_a_wait() {
    for kind in [StrategyKind::Expandable, StrategyKind::Gmlake, StrategyKind::Stitch] {
        for sharing in ["never", "completed", "wait"] {
            let (gpu, allocator) = on(kind, "sim:h200", &format!("sharing:{sharing}"));
            let main = allocator.allocate(40 * MIB, MAIN).unwrap();
            let side = allocator.allocate(40 * MIB, SIDE).unwrap();
            gpu.sim.hold(MAIN);
            allocator.free(main).unwrap();
            allocator.free(side).unwrap();
            assert_eq!(allocator.trim(40 * MIB).unwrap(), 40 * MIB);
            assert_eq!((cpu_waits(&gpu), allocator.stats().num_sync_all_streams), (0, 0), "{kind} {sharing}");
            assert!(gpu.sim.physical(seamalloc::driver::sim::Range { address: side, size: 40 * MIB }).is_empty());
            // The rest is still in use, so that the CPU has to wait.
            assert_eq!(allocator.trim(40 * MIB).unwrap(), 40 * MIB);
            assert!(cpu_waits(&gpu) > 0 && allocator.stats().num_sync_all_streams == 1, "{kind} {sharing}");
            balanced(&gpu, &allocator);
        }
    }
}

#[test]
fn freed_blocks_that_other_streams_use_are_waited_for_only_where_needed() {
    for kind in StrategyKind::ALL {
        let (gpu, allocator) = on(kind, "sim:h200", "");
        let [a, b] = [0, 1].map(|_| allocator.allocate(40 * MIB, MAIN).unwrap());
        gpu.sim.hold(SIDE);
        allocator.record_stream(a, SIDE).unwrap();
        allocator.free(a).unwrap();
        allocator.free(b).unwrap();
        assert_eq!(allocator.trim(40 * MIB).unwrap(), 40 * MIB, "{kind}");
        assert_eq!(calls(&gpu, Call::EventSynchronize), 0, "{kind}");
        assert_eq!(allocator.trim(40 * MIB).unwrap(), 40 * MIB, "{kind}");
        // `cudaFree` has waited for everything already.
        let waits = u64::from(kind != StrategyKind::Caching);
        assert_eq!(calls(&gpu, Call::EventSynchronize), waits, "{kind}");
        balanced(&gpu, &allocator);
    }
}

#[test]
fn chunks_without_views_go_first_and_then_those_of_the_view_unused_longest() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200", "");
    let held = chunks(&allocator, 9, MAIN);
    for index in [0, 2, 4, 6, 8] {
        allocator.free(held[index]).unwrap();
    }
    // Two views, each over two blocks; the ninth block has none.
    let [old, young] = [0, 1].map(|_| allocator.allocate(2 * CHUNK, MAIN).unwrap());
    allocator.free(young).unwrap();
    allocator.free(old).unwrap();
    assert_eq!(allocator.stats().views, 2);
    let mapped = allocator.stats().mappings;
    assert_eq!(allocator.trim(CHUNK).unwrap(), CHUNK);
    assert_eq!((allocator.stats().views, allocator.stats().mappings), (2, mapped - 2));
    assert_eq!(allocator.trim(2 * CHUNK).unwrap(), 2 * CHUNK);
    assert_eq!(allocator.stats().views, 1);
    assert_eq!(allocator.allocate(2 * CHUNK, MAIN).unwrap(), young, "the other view is still there");
    balanced(&gpu, &allocator);
}

#[test]
fn neighbours_that_streams_keep_to_themselves_go_together() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200", "sharing:never,chunk_size_mb:64");
    let whole = allocator.allocate(20 * MIB, MAIN).unwrap();
    allocator.free(whole).unwrap();
    let main = allocator.allocate(10 * MIB, MAIN).unwrap();
    // What is left of the one chunk belongs to all after this.
    assert_eq!(allocator.empty_cache().unwrap(), 0);
    let side = allocator.allocate(10 * MIB, SIDE).unwrap();
    assert_eq!((main, side, reserved(&allocator)), (whole, whole + 10 * MIB, 20 * MIB));
    allocator.free(main).unwrap();
    assert_eq!(allocator.trim(1).unwrap(), 0);
    allocator.free(side).unwrap();
    let waits = cpu_waits(&gpu);
    assert_eq!(allocator.trim(1).unwrap(), 20 * MIB);
    assert_eq!((reserved(&allocator), cpu_waits(&gpu)), (0, waits));
    balanced(&gpu, &allocator);
}

#[test]
fn segments_unused_longest_go_first() {
    let (gpu, allocator) = on(StrategyKind::Caching, "sim:h200", "");
    let held = [30, 30, 30, 50].map(|size| allocator.allocate(size * MIB, MAIN).unwrap());
    allocator.free(held[1]).unwrap();
    for _ in 0..3 {
        let other = allocator.allocate(20 * MIB, SIDE).unwrap();
        allocator.free(other).unwrap();
    }
    allocator.free(held[0]).unwrap();
    allocator.free(held[3]).unwrap();
    assert_eq!(allocator.trim(30 * MIB).unwrap(), 30 * MIB);
    assert_eq!(allocator.allocate(30 * MIB, MAIN).unwrap(), held[0], "the other one lay free for longer");
    assert_eq!(allocator.trim(60 * MIB).unwrap(), 70 * MIB, "two segments are the least");
    balanced(&gpu, &allocator);
}

#[test]
fn units_go_from_the_end_of_a_segment() {
    let (gpu, allocator) = on(StrategyKind::Expandable, "sim:h200", "");
    let first = allocator.allocate(30 * MIB, MAIN).unwrap();
    let second = allocator.allocate(90 * MIB, MAIN).unwrap();
    let small = allocator.allocate(1000, MAIN).unwrap();
    allocator.free(small).unwrap();
    allocator.free(second).unwrap();
    assert_eq!(reserved(&allocator), 122 * MIB);
    assert_eq!(allocator.trim(25 * MIB).unwrap(), 40 * MIB, "two units");
    assert_eq!(allocator.trim(22 * MIB).unwrap(), 22 * MIB, "with the small one");
    assert_eq!(allocator.trim(u64::MAX).unwrap(), 20 * MIB, "half of a unit is in use");
    assert_eq!(reserved(&allocator), 40 * MIB);
    assert_eq!(gpu.sim.leaks().reservations, 1, "nothing is left of the small segment");
    assert_eq!(allocator.allocate(70 * MIB, MAIN).unwrap(), first + 30 * MIB);
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

/// One operation of a random program that keeps its blocks in `live`. Errors are the caller's to judge.
pub(crate) fn step(allocator: &Allocator, random: &mut Random, live: &mut Vec<u64>) -> Result<(), Error> {
    let stream = StreamId(random.below(3));
    if random.below(5) < 3 || live.is_empty() {
        let most = [2000, 900 << 10, 9 * MIB, 60 * MIB][random.below(4) as usize];
        live.push(allocator.allocate(1 + random.below(most), stream)?);
    } else {
        let at = random.below(live.len() as u64) as usize;
        if random.below(4) == 0 {
            allocator.record_stream(live[at], stream)?;
        }
        allocator.free(live[at])?;
        live.swap_remove(at);
    }
    Ok(())
}

#[test]
fn no_piece_is_given_back_that_could_have_been_kept() {
    for kind in StrategyKind::ALL {
        for seed in 0..6 {
            let (gpu, allocator) = on(kind, "sim:h200", ["", "sharing:never", "sharing:completed"][seed as usize % 3]);
            let given = Arc::new(Mutex::new(Vec::new()));
            allocator.observe(Some(Box::new(Given(Arc::clone(&given)))));
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
                match kind {
                    _ if said < asked => assert_eq!(allocator.empty_cache().unwrap(), 0, "{kind}: there was no more"),
                    // Units that lie side by side are told of as one.
                    StrategyKind::Expandable => assert!(said - asked < 20 * MIB, "{kind}: {asked} {pieces:?}"),
                    _ => assert!(pieces.iter().all(|piece| said - piece < asked), "{kind}: {asked} {pieces:?}"),
                }
            }
        }
    }
}

/// Live and free blocks of several sizes on several streams, some freed under running work, and views over them.
fn scene(kind: StrategyKind) -> (Arc<Watch>, Allocator, Vec<u64>) {
    let (gpu, allocator) = on(kind, "sim:h200", "sharing:never");
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
    gpu.sim.hold(StreamId(1));
    (gpu, allocator, live)
}

#[test]
fn any_call_of_a_trim_may_fail() {
    for kind in StrategyKind::ALL {
        for bytes in [50 * MIB, 250 * MIB, u64::MAX] {
            let (gpu, plain, _) = scene(kind);
            let before = gpu.call_stats();
            let expected = plain.trim(bytes).unwrap();
            let made = gpu.call_stats().since(&before);
            assert!(bytes == u64::MAX || expected >= bytes);
            for call in Call::ALL {
                for nth in 1..=made.get(call).count {
                    let name = format!("{kind}, {bytes} bytes: {call} number {nth}");
                    let (gpu, allocator, live) = scene(kind);
                    let held = reserved(&allocator);
                    let active = allocator.stats().active_bytes.all.current;
                    gpu.sim.fail_nth(call, nth, Status::UNKNOWN);
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
                    assert!(gpu.sim.leaks().is_empty(), "{name}: {}", gpu.sim.leaks());
                    assert!(gpu.sim.faults().is_empty(), "{name}");
                }
            }
        }
    }
}

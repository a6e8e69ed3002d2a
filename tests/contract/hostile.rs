//! Drivers that lie, observers that panic, sizes and options at the ends of their types: the allocator may answer with an
//! error, but never panics, never loops and never breaks its own rules.

use crate::length::is_long;
use crate::liar::Liar;
use crate::random::Random;
use crate::{MAIN, MIB, SHORTER, Subject, config_of, simulated};
use seamalloc::driver::{Call, Driver, Status, StreamId};
use seamalloc::observer::{Event, Observer};
use seamalloc::rounding::ROUNDUP_INTERVALS;
use seamalloc::{Allocator, Config, Error, StrategyKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn allocator(kind: StrategyKind, driver: Arc<dyn Driver>) -> Allocator {
    Allocator::new(driver, config_of(kind, "")).unwrap()
}

pub(crate) fn an_address_that_cannot_be_is_refused_and_not_handed_out(Subject { kind, .. }: Subject) {
    for address in [0, 1, 256, (1 << 40) + 511, u64::MAX, u64::MAX - 511, u64::MAX - MIB + 1, 1 << 63 | 8] {
        let liar = Arc::new(Liar::new(move |_| Ok(address)));
        let allocator = allocator(kind, Arc::<Liar>::clone(&liar));
        let error = allocator.allocate(4096, MAIN).unwrap_err();
        assert!(matches!(error, Error::Driver(_)), "{kind}: {address:#x}: {error}");
        allocator.reports().check().unwrap();
        assert_eq!(allocator.stats().reserved_bytes.all.current, 0);
        drop(allocator);
        assert!(liar.freed.lock().unwrap().iter().all(|freed| *freed == address), "nothing else is given back");
    }
}

pub(crate) fn memory_that_is_given_twice_is_handed_out_once(Subject { kind, .. }: Subject) {
    for overlap in [0, 512, 2 * MIB - 512] {
        let liar = Arc::new(Liar::new({
            let mut calls = 0;
            move |_| {
                calls += 1;
                Ok((1 << 40) + overlap * (calls - 1))
            }
        }));
        let allocator = allocator(kind, Arc::<Liar>::clone(&liar));
        let first = allocator.allocate(MIB, MAIN).unwrap();
        match allocator.allocate(MIB, StreamId(1)) {
            // A strategy that reserves once and for all does not ask again.
            Ok(second) => assert!(first.abs_diff(second) >= MIB, "{kind}: {first:#x} and {second:#x}"),
            Err(error) => assert!(matches!(error, Error::Driver(_)), "{kind}: {error}"),
        }
        allocator.reports().check().unwrap();
        assert!(liar.freed.lock().unwrap().is_empty(), "what is in use is not given back");
        allocator.free(first).unwrap();
        allocator.reports().check().unwrap();
    }
}

pub(crate) fn a_device_of_any_size_is_no_reason_to_panic(Subject { kind, .. }: Subject) {
    let totals = [0, 1, 511, MIB, 1 << 47, 1 << 63, u64::MAX - (u64::MAX >> 3), u64::MAX - 1, u64::MAX];
    let granularities = [0, 1, 3, 512, 2 * MIB, 1 << 63, u64::MAX];
    let fractions = [None, Some(0.0), Some(0.5), Some(f64::MIN_POSITIVE), Some(1.0 - f64::EPSILON)];
    for (nth, total) in totals.into_iter().enumerate() {
        for (at, granularity) in granularities.into_iter().enumerate() {
            for (which, fraction) in fractions.into_iter().enumerate() {
                // The short form has every pair of a total and a granularity, each with one of the fractions in turn.
                if !is_long() && !(nth + at + which).is_multiple_of(fractions.len()) {
                    continue;
                }
                let config =
                    Config { memory_fraction: fraction, garbage_collection_threshold: 0.5, ..config_of(kind, "") };
                let Ok(allocator) = Allocator::new(Arc::new(Liar::of_memory(total, granularity)), config) else {
                    continue;
                };
                for size in [1, MIB, 3 * MIB, 50 * MIB, u64::MAX] {
                    for stream in [MAIN, StreamId(u64::MAX)] {
                        if let Ok(address) = allocator.allocate(size, stream) {
                            allocator.record_stream(address, StreamId(9)).unwrap();
                            allocator.free(address).unwrap();
                        }
                    }
                }
                allocator.reports().check().unwrap();
                let _ = allocator.limits().set_bytes(Some(total / 2));
                let _ = allocator.trim(total / 4);
                allocator.reports().check().unwrap();
                let _ = allocator.empty_cache();
                allocator.reports().check().unwrap();
            }
        }
    }
}

pub(crate) fn sizes_at_the_ends_are_errors(Subject { kind, .. }: Subject) {
    let sizes = [u64::MAX, u64::MAX - 511, (1 << 63) + 1, (1 << 60) + 1, 1 << 60, (1 << 60) - 1, 1 << 47];
    for divisions in [0, 1, 2, 1 << 31] {
        let config = Config {
            roundup_power2_divisions: [divisions; ROUNDUP_INTERVALS],
            max_split_size: Some(u64::MAX),
            max_non_split_rounding: u64::MAX,
            ..config_of(kind, "")
        };
        let (gpu, allocator) = simulated::on("sim:h200,capacity=16TiB", config);
        for size in sizes {
            let error = allocator.allocate(size, MAIN).unwrap_err();
            assert!(matches!(error, Error::OutOfMemory(_) | Error::RequestTooLarge { .. }), "{size}: {error}");
            assert!(!error.to_string().is_empty());
            assert!(matches!(allocator.free(size), Err(Error::InvalidAddress { .. })));
            assert!(allocator.reports().size_of(size).is_err() && allocator.record_stream(size, MAIN).is_err());
        }
        allocator.reports().check().unwrap();
        drop(allocator);
        assert!(gpu.leaks().is_empty(), "{kind}: {}", gpu.leaks());
    }
}

pub(crate) fn a_clock_that_runs_backwards_is_no_reason_to_panic(Subject { kind, .. }: Subject) {
    for step in [u64::MAX, 1 << 63, u64::MAX / 3] {
        let mut liar = Liar::of_memory(1 << 40, 2 * MIB);
        liar.busy_step = step;
        let allocator = allocator(kind, Arc::new(liar));
        for stream in 0..50 {
            let address = allocator.allocate(MIB, StreamId(stream)).unwrap();
            allocator.record_stream(address, StreamId(99)).unwrap();
            allocator.free(address).unwrap();
        }
        let _ = allocator.stats();
    }
}

/// Every answer a random one, half of the calls failing with any status.
pub(crate) fn a_driver_that_answers_at_random_breaks_nothing(Subject { kind, .. }: Subject) {
    for seed in 0..40 {
        let mut random = Random(seed);
        let mut liar = Liar::new(move |size| {
            Ok(match random.below(6) {
                0 => random.below(u64::MAX),
                1 => random.below(64) * 512,
                2 => u64::MAX - random.below(size),
                _ => (1 << 40) + random.below(100) * 64 * MIB,
            })
        });
        let mut random = Random(!seed);
        *liar.fails.get_mut().unwrap() = Box::new(move |_| {
            (random.below(100) < seed).then(|| Status([0, 1, 2, 2, 2, 700, u32::MAX][random.below(7) as usize]))
        });
        let mut random = Random(seed << 32);
        liar.busy_step = random.below(u64::MAX);
        let config = Config {
            max_split_size: [None, Some(20 * MIB)][random.below(2) as usize],
            garbage_collection_threshold: 0.5,
            memory_fraction: [None, Some(0.5)][random.below(2) as usize],
            ..config_of(kind, "")
        };
        let allocator = Allocator::new(Arc::new(liar), config).unwrap();
        let mut live = Vec::new();
        for step in 0..400 {
            match random.below(10) {
                0..5 => {
                    let size = 1u64 << random.below(28);
                    live.extend(allocator.allocate(size, StreamId(random.below(4))));
                }
                5..9 if !live.is_empty() => {
                    let at = random.below(live.len() as u64) as usize;
                    if random.below(3) == 0 {
                        allocator.record_stream(live[at], StreamId(random.below(9))).unwrap();
                    }
                    if allocator.free(live[at]).is_ok() {
                        live.swap_remove(at);
                    }
                }
                _ => drop(allocator.empty_cache()),
            }
            allocator.reports().check().unwrap_or_else(|broken| panic!("{kind}, seed {seed}, step {step}: {broken}"));
            assert_eq!(allocator.stats().allocation.all.current, live.len() as u64);
        }
    }
}

pub(crate) fn thousands_of_streams_are_served(Subject { kind, .. }: Subject) {
    let (_, allocator) = simulated::on("sim:h200,capacity=4GiB", config_of(kind, ""));
    let shared = allocator.allocate(MIB, MAIN).unwrap();
    let streams = (0..3000 / SHORTER).map(|n| StreamId(u64::MAX - n * n));
    for stream in streams {
        let address = allocator.allocate(100, stream).unwrap();
        allocator.record_stream(shared, stream).unwrap();
        allocator.free(address).unwrap();
    }
    allocator.free(shared).unwrap();
    allocator.empty_cache().unwrap();
    allocator.reports().check().unwrap();
    assert_eq!(allocator.stats().reserved_bytes.all.current, 0, "{kind}");
}

struct Panics {
    at: u64,
    seen: u64,
}

struct Counts(Arc<AtomicU64>);

impl Observer for Counts {
    fn event(&mut self, _: &Event) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Observer for Panics {
    fn event(&mut self, _: &Event) {
        self.seen += 1;
        assert!(self.seen != self.at, "the observer panics");
    }
}

pub(crate) fn an_observer_that_panics_is_dropped_and_harms_nothing(Subject { kind, .. }: Subject) {
    for at in 1..40 {
        let (gpu, allocator) = simulated::on("sim:h200,capacity=100MiB", config_of(kind, ""));
        // Two others, one before it and one after it, are told everything.
        let told: [Arc<AtomicU64>; 2] = Default::default();
        let panics = Box::new(Panics { at, seen: 0 });
        allocator.reports().add_observer(Box::new(Counts(Arc::clone(&told[0])))).unwrap();
        let added = if at % 2 == 0 {
            assert!(allocator.reports().set_observer(Some(panics)).is_none());
            None
        } else {
            Some(allocator.reports().add_observer(panics).unwrap())
        };
        let last = allocator.reports().add_observer(Box::new(Counts(Arc::clone(&told[1])))).unwrap();
        let mut live = Vec::new();
        let run = catch_unwind(AssertUnwindSafe(|| {
            for step in 0..12 {
                live.extend(allocator.allocate([30 * MIB, 700, 5 * MIB][step % 3], StreamId(step as u64 % 2)));
                if step % 3 == 2 {
                    let address = live.remove(0);
                    allocator.record_stream(address, StreamId(7)).unwrap();
                    allocator.free(address).unwrap();
                }
            }
            allocator.empty_cache().unwrap();
        }));
        assert!(run.is_ok(), "{kind}, event {at}: it reaches the program");
        let [before, after] = told.each_ref().map(|told| told.load(Ordering::Relaxed));
        assert!(before == after && before > 20, "{kind}, event {at}: {before} and {after} events");
        let is_there = added.map(|id| allocator.reports().remove_observer(id).is_some());
        assert_eq!(
            is_there.unwrap_or_else(|| allocator.reports().set_observer(None).is_some()),
            at > before,
            "{kind}, event {at}"
        );
        assert!(
            allocator.reports().remove_observer(last).is_some() && allocator.reports().remove_observer(last).is_none()
        );
        allocator.reports().check().unwrap();
        assert_eq!(gpu.leaks().bytes, allocator.stats().reserved_bytes.all.current);
        for address in live {
            allocator.free(address).unwrap();
        }
        drop(allocator);
        assert!(gpu.leaks().is_empty(), "{kind}, event {at}: {}", gpu.leaks());
    }
}

pub(crate) fn a_wait_that_fails_at_the_end_leaks_what_it_must_and_no_more(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = simulated::on("sim:h200,capacity=1GiB", config_of(kind, ""));
    let used = allocator.allocate(20 * MIB, MAIN).unwrap();
    let unused = allocator.allocate(200 * MIB, StreamId(1)).unwrap();
    allocator.record_stream(used, StreamId(7)).unwrap();
    gpu.hold(StreamId(7));
    allocator.free(used).unwrap();
    allocator.free(unused).unwrap();
    gpu.fail_nth(Call::EventSynchronize, 1, Status::UNKNOWN);
    drop(allocator);
    assert_eq!(gpu.leaks().bytes, 20 * MIB, "{kind}");
    assert_eq!(gpu.leaks().events, 0);
}

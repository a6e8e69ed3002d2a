//! The limits in bytes: never exceeded, and growth reaches them.

use crate::random::Random;
use crate::simulated::{Device, device as device_of};
use crate::step::step;
use crate::{MAIN, MIB, SMALL_CHUNKS, Subject, balanced, config_of, reserved};
use seamalloc::driver::{Call, Driver, DriverResult, ForwardingDriver, Handle, Status};
use seamalloc::{Allocator, Error, StrategyKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A simulated GPU that knows the most bytes that were held at any moment, and the fewest that were free after a growth.
struct Peak {
    sim: Device,
    most: AtomicU64,
    least_free: AtomicU64,
}

impl Peak {
    fn most_held(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    fn note(&self) {
        let info = Driver::memory_info(&self.sim).unwrap();
        self.most.fetch_max(info.total - info.free, Ordering::Relaxed);
        self.least_free.fetch_min(info.free, Ordering::Relaxed);
    }
}

impl ForwardingDriver for Peak {
    fn inner(&self) -> &dyn Driver {
        &self.sim
    }
    fn create(&self, size: u64) -> DriverResult<Handle> {
        let handle = self.inner().create(size)?;
        self.note();
        Ok(handle)
    }
    fn malloc(&self, size: u64) -> DriverResult<u64> {
        let address = self.inner().malloc(size)?;
        self.note();
        Ok(address)
    }
}

fn on(kind: StrategyKind, device: &str, options: &str) -> (Arc<Peak>, Allocator) {
    let sim = device_of(device);
    let gpu = Arc::new(Peak { sim, most: AtomicU64::new(0), least_free: AtomicU64::new(u64::MAX) });
    let config = config_of(kind, &format!("{SMALL_CHUNKS},{options}"));
    let allocator = Allocator::new(Arc::<Peak>::clone(&gpu), config).unwrap();
    (gpu, allocator)
}

pub(crate) fn growth_reaches_the_limit_and_no_further(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200", "memory_limit:100MiB");
    assert!(allocator.allocate(100 * MIB + 1, MAIN).unwrap_err().is_out_of_memory());
    let all = allocator.allocate(100 * MIB, MAIN).unwrap();
    assert_eq!(reserved(&allocator), 100 * MIB, "{kind}");
    let created = [Call::Create, Call::Malloc].map(|call| Driver::call_stats(&gpu.sim).get(call).count);
    let Err(Error::OutOfMemory(report)) = allocator.allocate(1, MAIN) else { panic!("{kind}: beyond the limit") };
    assert_eq!(report.limit, Some(100 * MIB));
    assert_eq!(
        [Call::Create, Call::Malloc].map(|call| Driver::call_stats(&gpu.sim).get(call).count),
        created,
        "{kind}"
    );
    allocator.free(all).unwrap();
    // What is free in another pool makes room.
    allocator.allocate(1, MAIN).unwrap();
    balanced(&gpu.sim, &allocator);
    assert!(gpu.most_held() <= 100 * MIB);
}

pub(crate) fn of_two_limits_the_lower_counts(Subject { kind, .. }: Subject) {
    for (options, limit) in [
        ("per_process_memory_fraction:0.5,memory_limit:300MiB", 300),
        ("per_process_memory_fraction:0.25,memory_limit:300MiB", 250),
        ("per_process_memory_fraction:1.0,memory_limit:300MiB", 300),
    ] {
        let (gpu, allocator) = on(kind, "sim:h200,capacity=1000MiB", options);
        allocator.allocate((limit - 2) / 20 * 20 * MIB, MAIN).unwrap();
        let Err(Error::OutOfMemory(report)) = allocator.allocate(21 * MIB, MAIN) else { panic!("{kind} {options}") };
        assert_eq!(report.limit, Some(limit * MIB), "{kind} {options}");
        assert!(gpu.most_held() <= limit * MIB);
        allocator.limits().set_bytes(None).unwrap();
        let fraction = options.starts_with("per_process_memory_fraction:1.0");
        assert_eq!(allocator.allocate(600 * MIB, MAIN).is_ok(), fraction, "{kind} {options}");
    }
}

pub(crate) fn a_lower_limit_gives_back_what_is_free_beyond_it(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200", "");
    let held: Vec<u64> = (0..6).map(|_| allocator.allocate(40 * MIB, MAIN).unwrap()).collect();
    allocator.free(held[5]).unwrap();
    allocator.free(held[2]).unwrap();
    allocator.limits().set_bytes(Some(220 * MIB)).unwrap();
    assert!(reserved(&allocator) <= 220 * MIB && reserved(&allocator) >= 200 * MIB, "{kind}");
    allocator.limits().set_bytes(Some(100 * MIB)).unwrap();
    assert_eq!(reserved(&allocator), 160 * MIB, "{kind}: what is in use stays");
    assert!(allocator.allocate(2 * MIB, MAIN).is_err());
    assert_eq!(allocator.config().memory_limit, Some(100 * MIB));
    for index in [0, 1, 3] {
        allocator.free(held[index]).unwrap();
    }
    allocator.allocate(60 * MIB, MAIN).unwrap();
    assert!(reserved(&allocator) <= 160 * MIB);
    balanced(&gpu.sim, &allocator);
    // In force even where memory cannot be given back.
    allocator.limits().set_bytes(None).unwrap();
    let more = allocator.allocate(200 * MIB, MAIN).unwrap();
    allocator.free(more).unwrap();
    for call in [Call::Free, Call::Release] {
        gpu.sim.fail_nth(call, 1, Status::UNKNOWN);
    }
    assert!(allocator.limits().set_bytes(Some(2 * MIB)).is_err(), "{kind}");
    assert_eq!(allocator.config().memory_limit, Some(2 * MIB));
    assert!(allocator.allocate(500 * MIB, MAIN).is_err());
    balanced(&gpu.sim, &allocator);
}

pub(crate) fn no_moment_of_any_program_is_beyond_the_limit(Subject { kind, .. }: Subject) {
    let mut refused = 0;
    for seed in 0..12 {
        let mut random = Random(seed);
        let limit = (60 + random.below(200)) * MIB + random.below(2);
        let sharing = ["never", "completed", "wait"][seed as usize % 3];
        let options = format!("memory_limit:{limit}B,sharing:{sharing}");
        let (gpu, allocator) = on(kind, "sim:h200,capacity=1GiB", &options);
        let mut live = Vec::new();
        for _ in 0..300 {
            // Failed calls leave memory behind that could not be undone yet: it counts.
            if seed % 2 == 1 && random.below(10) == 0 {
                let call = [Call::Map, Call::SetAccess, Call::Release, Call::Unmap][random.below(4) as usize];
                gpu.sim.fail_nth(call, 1, Status::UNKNOWN);
            }
            match step(&allocator, &mut random, &mut live) {
                Ok(()) => {}
                Err(Error::OutOfMemory(_)) => refused += 1,
                Err(Error::Driver(_)) if seed % 2 == 1 => {}
                Err(error) => panic!("{kind}: {error}"),
            }
            if reserved(&allocator) + 20 * MIB > limit && random.below(3) == 0 && !live.is_empty() {
                allocator.free(live.swap_remove(0)).unwrap();
            }
            assert!(reserved(&allocator) <= limit);
            balanced(&gpu.sim, &allocator);
        }
        assert!(gpu.most_held() <= limit, "{kind}: {} held of {limit}", gpu.most_held());
    }
    assert!(refused > 40, "{kind}: the limit was met {refused} times");
}

/// Others take and give memory without a word. No growth takes of the headroom, and all that is live can be given back.
pub(crate) fn growth_leaves_the_headroom_free_whatever_others_take(Subject { kind, .. }: Subject) {
    let mut refused = 0;
    for seed in 0..12 {
        let mut random = Random(seed);
        let headroom = (100 + random.below(300)) * MIB + random.below(2);
        let sharing = ["never", "completed", "wait"][seed as usize % 3];
        let (gpu, allocator) =
            on(kind, "sim:h200,capacity=1GiB", &format!("headroom:{headroom}B,sharing:{sharing},split:last_resort"));
        let (mut live, mut others) = (Vec::new(), Vec::new());
        for _ in 0..300 {
            if random.below(12) == 0 {
                // They need nobody's leave, and take of the headroom as well.
                let free = Driver::memory_info(&gpu.sim).unwrap().free;
                let wanted = (1 + random.below(100)) * MIB;
                if wanted <= free {
                    others.push((gpu.inner().malloc(wanted).unwrap(), wanted.next_multiple_of(2 * MIB)));
                }
            } else if random.below(12) == 0 && !others.is_empty() {
                let (address, _) = others.swap_remove(random.below(others.len() as u64) as usize);
                gpu.inner().free(address).unwrap();
            }
            gpu.least_free.store(u64::MAX, Ordering::Relaxed);
            let held = reserved(&allocator);
            match step(&allocator, &mut random, &mut live) {
                Ok(()) => {}
                Err(Error::OutOfMemory(report)) => {
                    assert_eq!(report.headroom, headroom);
                    refused += 1;
                }
                Err(error) => panic!("{kind}: {error}"),
            }
            // The driver's own pool may grow for a moment, before that is undone.
            if reserved(&allocator) > held {
                gpu.note();
            }
            let least = gpu.least_free.load(Ordering::Relaxed);
            assert!(least >= headroom, "{kind}: a growth left {least} of {headroom} free");
            if random.below(6) == 0 && live.len() > 24 {
                allocator.free(live.swap_remove(0)).unwrap();
            }
            let info = Driver::memory_info(&gpu.sim).unwrap();
            let theirs: u64 = others.iter().map(|(_, size)| size).sum();
            assert_eq!(info.total - info.free, reserved(&allocator) + theirs, "{kind}");
            allocator.reports().check().unwrap();
        }
        let looks = allocator.stats().headroom;
        assert!(looks.looks > 0 && looks.yields <= looks.short && looks.short <= looks.looks, "{looks:?}");
        live.into_iter().for_each(|address| allocator.free(address).unwrap());
        allocator.empty_cache().unwrap();
        assert_eq!(reserved(&allocator), 0, "{kind}");
    }
    assert!(refused > 10, "{kind}: the headroom was met {refused} times");
}

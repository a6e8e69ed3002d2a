//! The report of a shortage tells the truth: its figures balance, and whoever follows any of its advice is served.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod random;
mod simulated;

use random::Random;
use seamalloc::driver::sim::{CaptureMode, SimConfig, SimGpu};
use seamalloc::driver::{Call, Status, StreamId};
use seamalloc::fragmentation::Owner;
use seamalloc::out_of_memory::{Advice, Cause, Limit};
use seamalloc::{Allocator, Config, Error, Fragmentation, OutOfMemory, Route, StrategyKind};
use std::sync::Arc;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId::DEFAULT;
const SIDE: StreamId = StreamId(7);
const READER: StreamId = StreamId(9);

#[derive(Clone, Copy, Debug)]
enum Step {
    Allocate(u64, StreamId),
    /// The nth allocation of the script.
    Free(usize),
    /// Another stream uses the nth allocation, and is busy.
    Use(usize),
    /// It has finished with the oldest of them.
    Finish,
    EmptyCache,
}
use Step::{Allocate, EmptyCache, Finish, Free, Use};

/// A script on its way through an allocator.
struct Run {
    gpu: Arc<SimGpu>,
    allocator: Allocator,
    addresses: Vec<u64>,
}

impl Run {
    fn on(device: &str, options: &str) -> Self {
        let (gpu, allocator) = simulated::on(device, Config::parse(options).unwrap());
        Self { gpu, allocator, addresses: Vec::new() }
    }

    fn step(&mut self, step: Step) -> Result<(), Error> {
        match step {
            Allocate(size, stream) => self.addresses.push(self.allocator.allocate(size, stream)?),
            Free(nth) => self.allocator.free(self.addresses[nth])?,
            Use(nth) => {
                self.allocator.record_stream(self.addresses[nth], READER)?;
                self.gpu.hold(READER);
            }
            Finish => drop(self.gpu.finish(READER)),
            EmptyCache => drop(self.allocator.empty_cache()?),
        }
        Ok(())
    }

    /// All of a script but its last step succeeds; the last runs out of memory.
    fn short(device: &str, options: &str, script: &[Step]) -> (Self, Box<OutOfMemory>) {
        let mut run = Self::on(device, options);
        let (last, before) = script.split_last().unwrap();
        before.iter().for_each(|step| run.step(*step).unwrap());
        match run.step(*last) {
            Err(Error::OutOfMemory(report)) => (run, report),
            other => panic!("{options} on {device}: {other:?}"),
        }
    }

    /// All of a script succeeds. `false` where a step before the last runs out of memory: what was there before it lies
    /// otherwise under other options, and near the edge that may be worse.
    fn all(device: &str, options: &str, script: &[Step]) -> bool {
        let mut run = Self::on(device, options);
        for (nth, step) in script.iter().enumerate() {
            match run.step(*step) {
                Ok(()) => {}
                Err(Error::OutOfMemory(_)) if nth + 1 < script.len() => return false,
                Err(error) => panic!("{options} on {device}, step {nth}, {step:?}: {error}"),
            }
        }
        true
    }
}

fn balanced(memory: &Fragmentation) {
    let pools: u64 = memory.pools.iter().map(|pool| pool.free).sum();
    assert_eq!(memory.free, pools, "{memory:?}");
    assert_eq!(memory.reserved, memory.allocated + memory.pending + memory.free + memory.unsettled, "{memory:?}");
    assert!(memory.requested <= memory.allocated + memory.pending);
    assert!(memory.stranded() <= memory.free && memory.landlocked_bytes <= memory.partly_free_bytes);
    assert!(memory.partly_free_chunks <= memory.chunks && memory.partly_free_bytes <= memory.free);
    for pool in &memory.pools {
        assert!(pool.largest <= pool.free && pool.free <= pool.ranges * pool.largest && pool.ranges > 0, "{pool:?}");
        assert!(pool.stranded <= pool.free && !(pool.owner == Owner::Everyone && pool.stranded > 0), "{pool:?}");
    }
    for stream in &memory.streams {
        assert!(stream.largest <= stream.reachable && stream.reachable <= memory.free, "{stream:?} of {memory:?}");
    }
    assert!((0.0..=1.0).contains(&memory.external_after_stitching()) && memory.external() <= 1.0);
    assert!(memory.external_after_stitching() <= memory.external());
}

/// Follows a piece of advice after a script whose last step failed: that step must succeed now. `false` where another
/// one fails before it.
fn follow(advice: Advice, run: Run, device: &str, options: &str, script: &[Step]) -> bool {
    let Some(Allocate(size, stream)) = script.last().copied() else { panic!("only requests run out of memory") };
    let again = |option: &str| Run::all(device, format!("{options},{option}").trim_start_matches(','), script);
    match advice {
        Advice::ShareStreams { .. } => again("sharing:wait"),
        Advice::MoreViews { views, mappings, address_space } => {
            let views = views.map(|to| format!("max_views:{to}"));
            let mappings = mappings.map(|to| format!("max_view_mappings:{to}"));
            let addresses = address_space.map(|to| format!("max_view_address_space:{to}"));
            again(&[views, mappings, addresses].into_iter().flatten().collect::<Vec<_>>().join(","))
        }
        Advice::Stitch { chunk_size: None } => again("strategy:stitch"),
        Advice::Stitch { chunk_size: Some(size) } => again(&format!("strategy:stitch,chunk_size_mb:{}", size / MIB)),
        Advice::RaiseLimit { limit, to, total } => {
            if limit != Limit::Bytes {
                run.allocator.set_memory_fraction(Advice::fraction(to, total)).unwrap();
            }
            if limit != Limit::Fraction {
                run.allocator.set_memory_limit(Some(to)).unwrap();
            }
            run.allocator.allocate(size, stream).unwrap();
            true
        }
        Advice::AskLess { missing, at_most } => {
            assert!(at_most < size && (missing > 0 || at_most > 0), "{advice:?}");
            let met = run.allocator.allocate(at_most, stream);
            met.unwrap_or_else(|error| panic!("{options}: {advice:?}: {error}"));
            true
        }
        other => panic!("no test follows {other:?}"),
    }
}

fn advised(report: &OutOfMemory, wanted: fn(&Advice) -> bool) -> Advice {
    *report.advice.iter().find(|advice| wanted(advice)).unwrap_or_else(|| panic!("{report}"))
}

/// Blocks in a row, of which every other one is freed: holes that no large request fits.
fn comb(count: usize, size: u64) -> Vec<Step> {
    let blocks = (0..count).map(|_| Allocate(size, MAIN));
    blocks.chain((0..count).step_by(2).map(Free)).collect()
}

/// Five chunks of 128 MiB: the first and the last are free but for 24 MiB at the outer end, the middle one is in use, the
/// others are free.
fn in_parts_of_chunks() -> Vec<Step> {
    let mut script = vec![Allocate(640 * MIB, MAIN), Free(0)];
    script.extend([24, 232, 128, 232, 24].map(|size| Allocate(size * MIB, MAIN)));
    script.extend([Free(2), Free(4)]);
    script
}

/// The step when `by` allocations were made before the script.
fn shifted(step: Step, by: usize) -> Step {
    if let Free(nth) = step { Free(nth + by) } else { step }
}

#[test]
fn holes_apart_are_joined_by_the_strategy_that_joins() {
    // What was one block is sixteen, of which every other one is free.
    let mut wide = vec![Allocate(640 * MIB, MAIN), Free(0)];
    wide.extend([Allocate(40 * MIB, MAIN); 16]);
    wide.extend((1..17).step_by(2).map(Free));
    wide.push(Allocate(180 * MIB, MAIN));
    // Holes of less than the units in which memory grows: it takes small chunks to join them.
    let narrow = [comb(64, 9 * MIB), vec![Allocate(250 * MIB, MAIN)]].concat();
    for (options, script, device, small) in [
        ("strategy:caching", &wide, "sim:h200,capacity=704MiB", false),
        ("strategy:caching", &narrow, "sim:h200,capacity=800MiB", true),
        ("strategy:expandable", &narrow, "sim:h200,capacity=660MiB", true),
    ] {
        let (run, report) = Run::short(device, options, script);
        assert_eq!(report.cause, Cause::OneRange, "{report}");
        assert!(report.to_string().contains("strategy:stitch"), "{report}");
        let advice = advised(&report, |advice| matches!(advice, Advice::Stitch { .. }));
        assert_eq!(small, advice != Advice::Stitch { chunk_size: None }, "{report}");
        assert!(follow(advice, run, device, options, script));
    }
}

#[test]
fn a_limit_that_is_the_cause_is_named_with_the_one_that_would_do() {
    for kind in StrategyKind::ALL {
        let script = [Allocate(60 * MIB, MAIN), Allocate(50 * MIB, MAIN)];
        let device = "sim:h200,capacity=400MiB";
        for (options, bound) in [
            ("per_process_memory_fraction:0.25", Limit::Fraction),
            ("memory_limit:100MiB", Limit::Bytes),
            ("memory_limit:300MiB,per_process_memory_fraction:0.25", Limit::Fraction),
            ("memory_limit:100MiB,per_process_memory_fraction:0.9", Limit::Bytes),
            ("memory_limit:104MiB,per_process_memory_fraction:0.25", Limit::Both),
        ] {
            let options = format!("strategy:{kind},{options}");
            let (run, report) = Run::short(device, &options, &script);
            assert_eq!(report.cause, Cause::TooLittle, "{report}");
            assert_eq!(report.limit, Some(100 * MIB), "{report}");
            let advice = advised(&report, |advice| matches!(advice, Advice::RaiseLimit { .. }));
            let Advice::RaiseLimit { limit, .. } = advice else { panic!("{advice:?}") };
            assert_eq!(limit, bound, "{options}: {report}");
            let words = report.to_string();
            assert_eq!(words.contains("per_process_memory_fraction:0."), bound != Limit::Bytes, "{words}");
            assert_eq!(words.contains("memory_limit:1"), bound != Limit::Fraction, "{words}");
            assert!(follow(advice, run, device, &options, &script));
        }
        // With nothing to spare on the device, a higher limit would not help, and is not advised.
        let options = format!("strategy:{kind},per_process_memory_fraction:0.9");
        let (_, report) = Run::short("sim:h200,capacity=100MiB", &options, &script);
        assert!(!report.advice.iter().any(|advice| matches!(advice, Advice::RaiseLimit { .. })), "{report}");
    }
}

#[test]
fn memory_of_other_streams_is_passed_on_by_the_policy_that_shares() {
    let script = [in_parts_of_chunks(), vec![Allocate(300 * MIB, SIDE)]].concat();
    let (device, options) = ("sim:h200,capacity=640MiB", "strategy:stitch,sharing:never,chunk_size_mb:128");
    let (run, report) = Run::short(device, options, &script);
    assert!(matches!(report.cause, Cause::OtherStreams { .. }), "{report}");
    assert_eq!((report.free_on_other_streams, report.memory.stranded_on(MAIN)), (464 * MIB, 464 * MIB));
    assert!(report.to_string().contains("464.00 MiB on stream 0x0"), "{report}");
    let advice = advised(&report, |advice| matches!(advice, Advice::ShareStreams { .. }));
    assert_eq!(advice, Advice::ShareStreams { free: 464 * MIB });
    assert!(follow(advice, run, device, options, &script));
    // Where all that other streams have would not be enough either, it is not advised. What can be met is what the whole
    // chunks of the other stream come to.
    let script = [in_parts_of_chunks(), vec![Allocate(500 * MIB, SIDE)]].concat();
    let (run, report) = Run::short(device, options, &script);
    assert_eq!(report.advice, [Advice::AskLess { missing: 36 * MIB, at_most: 256 * MIB }], "{report}");
    assert!(follow(report.advice[0], run, device, options, &script));
    assert!(!report.advice.iter().any(|advice| matches!(advice, Advice::ShareStreams { .. })), "{report}");
}

#[test]
fn the_bounds_on_views_are_named_where_they_were_met() {
    // Three chunks in a view, of which the last resort can move but the second.
    let script = [in_parts_of_chunks(), vec![Allocate(300 * MIB, MAIN)]].concat();
    let device = "sim:h200,capacity=640MiB";
    for (bounds, named) in [
        ("max_view_mappings:2", "the option max_view_mappings:16, or more"),
        ("max_views:0", "the option max_views:4, or more"),
        ("max_view_address_space:300MiB", "the option max_view_address_space:2GiB, or more"),
        ("max_views:0,max_view_mappings:2", "the options max_views:4,max_view_mappings:16, or more"),
        // Three mappings are enough for this one, but not for views that might have been refused before it.
        ("max_views:0,max_view_mappings:3", "the options max_views:4,max_view_mappings:16, or more"),
    ] {
        let options = format!("strategy:stitch,chunk_size_mb:128,{bounds}");
        let (run, report) = Run::short(device, &options, &script);
        assert_eq!(report.cause, Cause::ViewBounds, "{report}");
        assert!(report.reachable == 464 * MIB && report.largest_free == 232 * MIB, "{report}");
        assert!(report.to_string().contains("could be joined") && report.to_string().contains(named), "{report}");
        let advice = advised(&report, |advice| matches!(advice, Advice::MoreViews { .. }));
        assert!(follow(advice, run, device, &options, &script));
        // With a request that could not be joined either, it is not advised; what the last resort can move is said.
        let script = [in_parts_of_chunks(), vec![Allocate(480 * MIB, MAIN)]].concat();
        let (run, report) = Run::short(device, &options, &script);
        assert_eq!(report.advice, [Advice::AskLess { missing: 16 * MIB, at_most: 256 * MIB }], "{report}");
        assert!(follow(report.advice[0], run, device, &options, &script));
    }
}

#[test]
fn a_bound_that_views_in_use_have_met_is_named() {
    let device = "sim:h200,capacity=1280MiB";
    let options = "strategy:stitch,chunk_size_mb:128,max_views:1";
    // The first view is over the middle of the first half, and stays in use.
    let second: Vec<Step> = in_parts_of_chunks().into_iter().map(|step| shifted(step, 7)).collect();
    let script = [in_parts_of_chunks(), vec![Allocate(300 * MIB, MAIN)], second, vec![Allocate(300 * MIB, MAIN)]];
    let script = script.concat();
    let (run, report) = Run::short(device, options, &script);
    assert_eq!(report.cause, Cause::ViewBounds, "{report}");
    let advice = advised(&report, |advice| matches!(advice, Advice::MoreViews { .. }));
    assert!(follow(advice, run, device, options, &script));
}

/// The last resort gives memory back and takes it anew in another place. Where the driver then refuses, the report is of
/// what is there afterwards.
#[test]
fn a_report_is_of_what_the_last_resort_has_left() {
    for options in ["strategy:stitch,sharing:never", "strategy:stitch,max_views:0"] {
        let mut run = Run::on("sim:h200,capacity=700MiB", options);
        comb(32, 20 * MIB).into_iter().for_each(|step| run.step(step).unwrap());
        (1..100).for_each(|nth| run.gpu.fail_nth(Call::Create, nth, Status::OUT_OF_MEMORY));
        let Err(Error::OutOfMemory(report)) = run.step(Allocate(300 * MIB, SIDE)) else { panic!("{options}") };
        assert_eq!(report.reserved, 320 * MIB, "all that is free went back: {report}");
        assert_eq!((report.device_free, report.memory.free), (380 * MIB, 0), "{report}");
        assert_eq!((report.cause, report.advice.len()), (Cause::Refused, 0), "{report}");
        assert_eq!(report.memory, run.allocator.fragmentation());
        balanced(&report.memory);
    }
}

#[test]
fn what_others_hold_of_the_device_is_named_and_its_release_helps() {
    for kind in StrategyKind::ALL {
        let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=200MiB").unwrap()).unwrap());
        let [other, allocator] =
            [(); 2].map(|()| Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::with_strategy(kind)).unwrap());
        let cached = other.allocate(120 * MIB, MAIN).unwrap();
        other.free(cached).unwrap();
        let Err(Error::OutOfMemory(report)) = allocator.allocate(150 * MIB, MAIN) else { panic!("it is not there") };
        let advice = advised(&report, |advice| matches!(advice, Advice::FreeDevice { .. }));
        let Advice::FreeDevice { missing, elsewhere } = advice else { panic!("{advice:?}") };
        assert!(missing >= 70 * MIB && missing <= elsewhere && elsewhere == 120 * MIB, "{report}");
        other.empty_cache().unwrap();
        allocator.allocate(150 * MIB, MAIN).unwrap();
    }
}

#[test]
fn live_memory_that_is_too_much_is_said_so_and_how_much() {
    for kind in StrategyKind::ALL {
        let options = format!("strategy:{kind}");
        let script = [Allocate(80 * MIB, MAIN), Allocate(40 * MIB, MAIN), Allocate(120 * MIB, MAIN)];
        let (run, report) = Run::short("sim:h200,capacity=200MiB", &options, &script);
        assert_eq!(report.cause, Cause::TooLittle);
        let Advice::AskLess { missing, at_most } = advised(&report, |_| true) else { panic!("{report}") };
        assert_eq!((report.advice.len(), missing, at_most), (1, 40 * MIB, 80 * MIB), "{report}");
        assert!(report.to_string().contains("40.00 MiB less that is live"), "{report}");
        assert!(report.to_string().contains("up to 80.00 MiB could be met now"), "{report}");
        // With exactly so much less that is live, it is met.
        run.allocator.free(run.addresses[1]).unwrap();
        run.allocator.allocate(120 * MIB, MAIN).unwrap();
    }
}

#[test]
fn a_driver_that_does_not_say_what_is_free_is_not_guessed_at() {
    let mut run = Run::on("sim:h200,capacity=100MiB", "strategy:stitch");
    run.step(Allocate(60 * MIB, MAIN)).unwrap();
    (1..10).for_each(|nth| run.gpu.fail_nth(Call::MemoryInfo, nth, Status::UNKNOWN));
    let Err(Error::OutOfMemory(report)) = run.step(Allocate(60 * MIB, MAIN)) else { panic!("there is no room") };
    assert_eq!((report.device_free, report.advice.len()), (0, 0), "{report}");
    assert!(report.cause != Cause::TooLittle);
}

#[test]
fn what_private_pools_keep_and_captures_forbid_is_said() {
    for kind in StrategyKind::ALL {
        let run = Run::on("sim:h200,capacity=200MiB", &format!("strategy:{kind}"));
        let pool = run.allocator.create_pool();
        run.allocator.begin_allocate_to_pool(pool, Route::stream(SIDE)).unwrap();
        let kept = run.allocator.allocate(100 * MIB, SIDE).unwrap();
        run.allocator.free(kept).unwrap();
        run.allocator.end_allocate_to_pool(pool).unwrap();
        let Err(Error::OutOfMemory(report)) = run.allocator.allocate(150 * MIB, MAIN) else { panic!("it is kept") };
        assert_eq!((report.cause, report.free_in_private_pools), (Cause::PrivatePools, 100 * MIB), "{report}");
        assert!(report.to_string().contains("100.00 MiB of it in other private pools"), "{report}");
        assert_eq!(report.advice, [Advice::AskLess { missing: 0, at_most: 100 * MIB }], "{report}");
        let memory = run.allocator.fragmentation();
        balanced(&memory);
        assert_eq!((memory.free_of(Owner::Pool(pool), false), memory.stranded()), (100 * MIB, 100 * MIB));
        run.allocator.release_pool(pool).unwrap();
        let large = run.allocator.allocate(150 * MIB, MAIN).unwrap();
        // What the GPU has passed, `stitch` gives to a capture too.
        run.gpu.hold(MAIN);
        run.allocator.free(large).unwrap();

        let pool = run.allocator.create_pool();
        run.allocator.begin_allocate_to_pool(pool, Route::stream(SIDE).capturing()).unwrap();
        run.gpu.begin_capture(SIDE, CaptureMode::Global).unwrap();
        let Err(Error::OutOfMemory(report)) = run.allocator.allocate(180 * MIB, SIDE) else { panic!("it is cached") };
        assert_eq!(report.cause, Cause::Capture, "{report}");
        assert_eq!(report.advice, [Advice::AskLess { missing: 0, at_most: report.device_free }], "{report}");
        let met = run.allocator.allocate(report.device_free, SIDE).unwrap();
        run.allocator.free(met).unwrap();
        run.gpu.end_capture(SIDE).unwrap();
        run.gpu.finish(MAIN);
        run.allocator.end_allocate_to_pool(pool).unwrap();
        balanced(&run.allocator.fragmentation());
    }
}

/// Random operations: what is measured balances after each of them, and where memory runs out, all advice is true.
#[test]
fn figures_balance_and_advice_is_true_whatever_was_done() {
    let (mut followed, mut lost) = ([0; 6], 0);
    let mut cases: Vec<String> = StrategyKind::ALL.map(|kind| format!("strategy:{kind}")).into();
    cases.extend(
        [
            "strategy:stitch,sharing:never",
            "strategy:stitch,sharing:completed",
            "strategy:stitch,max_view_mappings:3,chunk_size_mb:512",
            "strategy:stitch,max_views:1,chunk_size_mb:512",
            "strategy:stitch,sharing:never,chunk_size_mb:512",
            "strategy:caching,per_process_memory_fraction:0.6",
            "strategy:stitch,memory_limit:420MiB",
            "strategy:expandable,memory_limit:430MiB,per_process_memory_fraction:0.6",
            "strategy:expandable,roundup_power2_divisions:4",
            "strategy:gmlake,fragLimit:8388608",
        ]
        .map(str::to_owned),
    );
    for (options, seed) in cases.iter().flat_map(|options| (0..25).map(move |seed| (options.as_str(), seed))) {
        let large = options.contains("chunk_size_mb");
        let device = if large { "sim:h200,capacity=4GiB" } else { "sim:h200,capacity=700MiB" };
        let mut random = Random(seed);
        let mut run = Run::on(device, options);
        let (mut script, mut live) = (Vec::new(), Vec::new());
        if large {
            // So that chunks are as large as they may be.
            script.extend([Allocate(4 << 30, MAIN), Free(0)]);
            script.iter().for_each(|step| run.step(*step).unwrap());
        }
        for _ in 0..300 {
            let step = match random.below(10) {
                0..=5 => {
                    let size = match random.below(8) {
                        0 | 1 => 1 + random.below(300 * KIB),
                        2..=4 => MIB + random.below(12 * MIB),
                        5 | 6 => 8 * MIB + random.below(50 * MIB),
                        _ => 40 * MIB + random.below(180 * MIB),
                    };
                    // Advice on views keeps a margin of 64 MiB, that is, of what only the ends of a view reach.
                    let size = if large { size * 6 } else { size };
                    Allocate(size, if random.below(3) == 0 { SIDE } else { MAIN })
                }
                9 if random.below(8) == 0 => EmptyCache,
                9 if random.below(3) == 0 => Finish,
                _ if live.is_empty() => continue,
                8 if random.below(4) == 0 => Use(live[random.below(live.len() as u64) as usize]),
                _ => Free(live.swap_remove(random.below(live.len() as u64) as usize)),
            };
            script.push(step);
            let done = run.step(step);
            balanced(&run.allocator.fragmentation());
            match (step, done) {
                (Allocate(..), Ok(())) => live.push(run.addresses.len() - 1),
                (_, Ok(())) => {}
                (_, Err(Error::OutOfMemory(report))) => {
                    balanced(&report.memory);
                    assert_ne!(report.cause, Cause::Refused, "{options}, seed {seed}: {report}");
                    assert_eq!(report.memory, run.allocator.fragmentation(), "what it says is what there is");
                    for advice in &report.advice {
                        let kind = match advice {
                            Advice::ShareStreams { .. } => 0,
                            Advice::MoreViews { .. } => 1,
                            Advice::Stitch { .. } => 2,
                            Advice::RaiseLimit { .. } => 3,
                            Advice::AskLess { .. } => 4,
                            _ => 5,
                        };
                        followed[kind] += 1;
                        // Each on an allocator of its own, brought to the same state.
                        let (run, _) = Run::short(device, options, &script);
                        lost += u32::from(!follow(*advice, run, device, options, &script));
                    }
                    break;
                }
                (_, Err(error)) => panic!("{options}, seed {seed}: {error}"),
            }
        }
    }
    // Since the last resort moves whole chunks, other bounds on views and shared streams are advised too seldom to be sure.
    assert!(followed[2..5].iter().all(|times| *times > 0) && lost * 50 < followed.iter().sum(), "{followed:?}, {lost}");
}

/// What is said to be reachable is: a request of so much makes nothing grow, on every stream.
#[test]
fn what_is_said_to_be_reachable_is_met_without_growth() {
    for seed in 0..80 {
        let options = ["strategy:stitch", "strategy:stitch,sharing:never", "strategy:expandable", "strategy:gmlake"]
            [seed as usize % 4];
        let mut random = Random(seed);
        let mut run = Run::on("sim:h200", options);
        let mut live = Vec::new();
        for _ in 0..120 {
            if random.below(2) == 0 || live.is_empty() {
                let size = [50 * KIB, 5 * MIB, 30 * MIB][random.below(3) as usize] + random.below(20 * MIB);
                run.step(Allocate(size, if random.below(4) == 0 { SIDE } else { MAIN })).unwrap();
                live.push(run.addresses.len() - 1);
            } else {
                run.step(Free(live.swap_remove(random.below(live.len() as u64) as usize))).unwrap();
            }
        }
        let memory = run.allocator.fragmentation();
        let stream = memory.streams[random.below(memory.streams.len() as u64) as usize];
        if stream.reachable <= MIB {
            continue;
        }
        run.step(Allocate(stream.reachable, stream.stream)).unwrap();
        let after = run.allocator.fragmentation();
        assert_eq!(after.reserved, memory.reserved, "{options}, seed {seed}: {stream:?}");
        let of = |memory: &Fragmentation| memory.streams.iter().map(|stream| stream.reachable).max();
        assert!(of(&after) <= of(&memory));
        assert_eq!(run.gpu.faults().len(), 0);
    }
}

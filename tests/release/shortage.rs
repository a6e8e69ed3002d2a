//! The report of a shortage tells the truth: its figures balance, and whoever follows any of its advice is served.

use crate::random::Random;
use crate::script::Step::{self, Allocate, EmptyCache, Finish, Free, Use};
use crate::script::{Run, advised, balanced, follow};
use crate::simulated;
use seamalloc::driver::{Call, Status, StreamId};
use seamalloc::out_of_memory::{Advice, Cause};
use seamalloc::{Config, Error, Fragmentation, OutOfMemoryReport, Split, StrategyKind};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId::DEFAULT;
const SIDE: StreamId = StreamId(7);
/// Random programs under each of the options.
const SEEDS: u64 = 25;

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
        let options = format!("strategy:stitch,chunk_size_mb:128,split:off,{bounds}");
        let (run, report) = Run::short(device, &options, &script);
        assert_eq!(report.cause, Cause::ViewBounds, "{report}");
        // Without views each half is one range; three mappings are enough for the view that is refused, if one may be.
        assert_eq!(
            (report.joinable, report.reachable, report.largest_free),
            (464 * MIB, 232 * MIB, 232 * MIB),
            "{report}"
        );
        let words = report.to_string();
        assert!(words.contains("464.00 MiB but for the bounds on views") && words.contains(named), "{report}");
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
    let options = "strategy:stitch,chunk_size_mb:128,max_views:1,split:off";
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
        assert_eq!(report.memory, run.allocator.reports().fragmentation());
        balanced(&report.memory);
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

/// Options under which random programs run until memory is short.
fn cases() -> Vec<String> {
    let mut cases: Vec<String> = StrategyKind::MAIN.map(|kind| format!("strategy:{kind}")).into();
    cases.extend(
        [
            "strategy:stitch,split:off",
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
    cases
}

/// A random program under one of the [`cases`].
struct Program {
    run: Run,
    device: &'static str,
    options: String,
    random: Random,
    script: Vec<Step>,
    /// Which allocations of the script are live.
    live: Vec<usize>,
    /// Whether chunks are as large as they may be.
    large: bool,
}

impl Program {
    fn new(options: &str, seed: u64) -> Self {
        let large = options.contains("chunk_size_mb");
        let device = if large { "sim:h200,capacity=4GiB" } else { "sim:h200,capacity=700MiB" };
        let script = if large { vec![Allocate(4 << 30, MAIN), Free(0)] } else { Vec::new() };
        let mut run = Run::on(device, options);
        script.iter().for_each(|step| run.step(*step).unwrap());
        Self { run, device, options: options.to_owned(), random: Random(seed), script, live: Vec::new(), large }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    fn any_live(&mut self) -> usize {
        self.random.below(self.live.len() as u64) as usize
    }

    fn size(&mut self) -> u64 {
        let size = match self.below(8) {
            0 | 1 => 1 + self.below(300 * KIB),
            2..=4 => MIB + self.below(12 * MIB),
            5 | 6 => 8 * MIB + self.below(50 * MIB),
            _ => 40 * MIB + self.below(180 * MIB),
        };
        // Advice on views keeps a margin of 64 MiB, that is, of what only the ends of a view reach.
        if self.large { size * 6 } else { size }
    }

    fn next(&mut self) -> Option<Step> {
        Some(match self.below(10) {
            0..=5 => {
                let size = self.size();
                Allocate(size, if self.below(3) == 0 { SIDE } else { MAIN })
            }
            9 if self.below(8) == 0 => EmptyCache,
            9 if self.below(3) == 0 => Finish,
            _ if self.live.is_empty() => return None,
            8 if self.below(4) == 0 => {
                let at = self.any_live();
                Use(self.live[at])
            }
            _ => {
                let at = self.any_live();
                Free(self.live.swap_remove(at))
            }
        })
    }

    /// Runs until memory is short, which some programs never are: `each` looks at what every step has left.
    fn until_short(&mut self, each: impl Fn(&Run)) -> Option<OutOfMemoryReport> {
        for _ in 0..300 {
            let Some(step) = self.next() else { continue };
            self.script.push(step);
            let done = self.run.step(step);
            each(&self.run);
            match (step, done) {
                (Allocate(..), Ok(())) => self.live.push(self.run.addresses.len() - 1),
                (_, Ok(())) => {}
                (_, Err(Error::OutOfMemory(report))) => return Some(report),
                (_, Err(error)) => panic!("{}: {error}", self.options),
            }
        }
        None
    }
}

/// Random operations: what is measured balances after each of them, and in the report of a shortage.
#[test]
fn figures_balance_whatever_was_done() {
    for (options, seed) in cases().iter().flat_map(|options| (0..SEEDS).map(move |seed| (options, seed))) {
        let mut program = Program::new(options, seed);
        let short = program.until_short(|run| balanced(&run.allocator.reports().fragmentation()));
        if let Some(report) = short {
            balanced(&report.memory);
            assert_ne!(report.cause, Cause::Refused, "{options}, seed {seed}: {report}");
            assert_eq!(report.memory, program.run.allocator.reports().fragmentation(), "what it says is what there is");
        }
    }
}

/// Random operations as above: where memory runs out, whoever follows any of the advice is served.
#[test]
fn advice_is_true_whatever_was_done() {
    let (mut followed, mut lost) = ([0; 7], 0);
    for (options, seed) in cases().iter().flat_map(|options| (0..SEEDS).map(move |seed| (options, seed))) {
        let mut program = Program::new(options, seed);
        let Some(report) = program.until_short(|_| {}) else { continue };
        for advice in &report.advice {
            followed[number_of(advice)] += 1;
            // Each on an allocator of its own, brought to the same state.
            let (run, _) = Run::short(program.device, options, &program.script);
            lost += u32::from(!follow(*advice, run, program.device, options, &program.script));
        }
    }
    // Since the last resort moves whole chunks, other bounds on views and shared streams are advised too seldom to be sure.
    assert!(followed[2..5].iter().all(|times| *times > 0) && lost * 50 < followed.iter().sum(), "{followed:?}, {lost}");
}

/// Twenty chunks of 20 MiB, in each of which 8 MiB lie free between others.
#[test]
fn what_lies_free_inside_of_chunks_is_advised_to_be_split_and_then_serves() {
    let blocks = (0..20).flat_map(|_| [6, 8, 6]).map(|size| Allocate(size * MIB, StreamId::DEFAULT));
    let first = [Allocate(400 * MIB, StreamId::DEFAULT), Free(0)];
    let freed = (0..20).map(|hole| Free(2 + 3 * hole));
    let script: Vec<Step> =
        first.into_iter().chain(blocks).chain(freed).chain([Allocate(60 * MIB, StreamId::DEFAULT)]).collect();
    let device = "sim:h200,capacity=420MiB";
    let (run, report) = Run::short(device, "split:off", &script);
    let advice = advised(&report, |advice| matches!(advice, Advice::SplitChunks { .. }));
    assert_eq!(advice, Advice::SplitChunks { free: 160 * MIB, split: Split::LastResort });
    assert!(report.to_string().contains("split:last_resort"), "{report}");
    assert!(follow(advice, run, device, "split:off", &script));
    // Without a word they are split.
    assert!(Run::all(device, "", &script));
    // It is no advice for those who have it, who have given other devices access, or whose holes are too small.
    let (_, report) = Run::short(
        "sim:h200,capacity=400MiB",
        "chunk_size_mb:2,split:off",
        &script[..script.len() - 1].iter().copied().chain([Allocate(300 * MIB, StreamId::DEFAULT)]).collect::<Vec<_>>(),
    );
    assert!(!report.advice.iter().any(|advice| matches!(advice, Advice::SplitChunks { .. })), "{report}");
}

fn number_of(advice: &Advice) -> usize {
    match advice {
        Advice::ShareStreams { .. } => 0,
        Advice::MoreViews { .. } => 1,
        Advice::Stitch { .. } => 2,
        Advice::RaiseLimit { .. } => 3,
        Advice::AskLess { .. } => 4,
        Advice::SplitChunks { .. } => 5,
        _ => 6,
    }
}

/// Options under which figures of what could be served are followed, with bounds on views that come in the way.
const SERVED: [&str; 11] = [
    "strategy:stitch",
    "strategy:stitch,sharing:wait",
    "strategy:stitch,sharing:never",
    "strategy:expandable",
    "strategy:gmlake",
    "strategy:stitch,sharing:wait,max_views:0",
    "strategy:stitch,sharing:wait,max_views:1,chunk_size_mb:8",
    "strategy:stitch,sharing:wait,max_view_mappings:4",
    "strategy:stitch,sharing:wait,max_view_mappings:12,chunk_size_mb:4",
    "strategy:stitch,sharing:wait,max_view_address_space:100MiB",
    "strategy:gmlake,autoGC:0,max_view_mappings:0",
];

/// Random operations under one of these options, until some memory is free and some is not.
fn scattered(seed: u64, device: &str) -> (&'static str, Random, Run) {
    let options = SERVED[seed as usize % SERVED.len()];
    let (mut random, mut run, mut live) = (Random(seed), Run::on(device, options), Vec::new());
    for _ in 0..120 {
        if random.below(2) == 0 || live.is_empty() {
            let size = [50 * KIB, 5 * MIB, 30 * MIB][random.below(3) as usize] + random.below(20 * MIB);
            if run.step(Allocate(size, if random.below(4) == 0 { SIDE } else { MAIN })).is_ok() {
                live.push(run.addresses.len() - 1);
            }
        } else {
            run.step(Free(live.swap_remove(random.below(live.len() as u64) as usize))).unwrap();
        }
    }
    (options, random, run)
}

/// The memory that is said to be reachable is reachable: a request of so much makes nothing grow, on every stream.
#[test]
fn what_is_said_to_be_reachable_is_met_without_growth() {
    let mut joined = [0; SERVED.len()];
    for seed in 0..330 {
        let (options, mut random, mut run) = scattered(seed, "sim:h200");
        let memory = run.allocator.reports().fragmentation();
        balanced(&memory);
        let stream = memory.streams[random.below(memory.streams.len() as u64) as usize];
        if stream.reachable <= MIB {
            continue;
        }
        let longest = memory.pools.iter().map(|pool| pool.largest).max().unwrap_or(0);
        joined[seed as usize % SERVED.len()] += u32::from(stream.reachable > longest);
        run.step(Allocate(stream.reachable, stream.stream)).unwrap();
        let after = run.allocator.reports().fragmentation();
        assert_eq!(after.reserved, memory.reserved, "{options}, seed {seed}: {stream:?}");
        let of = |memory: &Fragmentation| memory.streams.iter().map(|stream| stream.reachable).max();
        assert!(options.contains("max_view") || of(&after) <= of(&memory));
        assert_eq!(run.gpu.faults().len(), 0);
    }
    // Within a bound views are still counted, and where there may be none, none is.
    for (options, joined) in SERVED.iter().zip(joined) {
        let joins = !options.contains("expandable") && !options.contains("max_views:0");
        assert_eq!(joined > 0, joins, "{options}: {joined}");
    }
}

/// The largest request, of free memory and new, is served.
#[test]
fn what_is_said_to_be_the_largest_request_is_met() {
    for seed in 0..200 {
        let (options, _, mut run) = scattered(seed, "sim:h200,capacity=600MiB");
        let memory = run.allocator.reports().fragmentation();
        let largest = run.allocator.reports().largest_request().unwrap();
        let served = memory.streams.iter().any(|stream| {
            let stream = stream.stream;
            largest > 0 && run.step(Allocate(largest, stream)).is_ok()
        });
        assert!(served || largest == 0, "{options}, seed {seed}: {largest} of {memory:?}");
    }
}

/// Of 128 MiB, 26 are free at the end of one chunk and in the next, and 32 were never taken.
#[test]
fn the_largest_request_joins_what_is_free_with_what_is_new_where_views_are_allowed() {
    for (options, largest) in [
        ("", 58),
        ("max_views:1", 58),
        ("max_views:0", 32),
        // Two free chunks and at most three new ones. As many mappings as home has chunks could become necessary.
        ("max_view_mappings:9", 58),
        ("max_view_mappings:8", 32),
        ("max_view_address_space:1GiB", 58),
    ] {
        let allocator = simulated::on("sim:h200,capacity=128MiB", Config::parse(options).unwrap()).1;
        let chunks = [(); 6].map(|()| allocator.allocate(16 * MIB, MAIN).unwrap());
        allocator.free(chunks[0]).unwrap();
        allocator.free(chunks[1]).unwrap();
        assert_eq!(allocator.allocate(6 * MIB, MAIN).unwrap(), chunks[0]);
        assert_eq!(allocator.reports().largest_request(), Ok(largest * MIB), "{options}");
        allocator.allocate(largest * MIB, MAIN).unwrap();
    }
}

/// New memory in a hole of home joins two ranges into one, of which a view uses one end: both together are not promised, unless
/// chunks can be split, so that the ranges end where chunks do.
#[test]
fn the_largest_request_is_of_one_piece_where_home_has_holes() {
    for (options, largest) in [("split:off", 48 * MIB), ("", 74 * MIB)] {
        let (_, allocator) = simulated::on("sim:h200,capacity=128MiB", Config::parse(options).unwrap());
        let chunks = [(); 6].map(|()| allocator.allocate(16 * MIB, MAIN).unwrap());
        allocator.free(chunks[3]).unwrap();
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.reports().reserved(), 80 * MIB);
        chunks[..2].iter().for_each(|address| allocator.free(*address).unwrap());
        assert_eq!(allocator.allocate(6 * MIB, MAIN).unwrap(), chunks[0]);
        assert_eq!(allocator.reports().largest_request(), Ok(largest), "{options}");
        allocator.allocate(largest, MAIN).unwrap();
    }
}

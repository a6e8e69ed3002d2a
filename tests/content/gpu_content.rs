//! The program that checks every word of a real GPU's memory (the example `gpu_content`), on the simulated one: it finds
//! nothing where nothing is wrong, and every mistake that is made on purpose.

#![allow(clippy::print_stdout, reason = "with `--nocapture` a test says what it came to")]

use crate::gpu::Gpu;
use crate::run::{self, Plan, Report, Until};
use crate::sabotage::Sabotage;
use crate::sim;
use seamalloc::{Config, StrategyKind};
use std::sync::Arc;
use std::time::Duration;

/// Fewer where each of them checks all tables.
const OPERATIONS: u64 = if cfg!(feature = "paranoid") { 3_000 } else { 5_000 };
/// A mistake shows within a second, in most runs; without it the test fails in the end.
const LONG: Duration = Duration::from_secs(100);

fn plan(options: &str, seed: u64) -> Plan {
    Plan {
        config: Config::parse(options).unwrap(),
        seed,
        threads: 1,
        streams: 3,
        live: 4 << 30,
        until: Until::Operations(OPERATIONS),
        sabotage: None,
        faults: false,
    }
}

fn run(plan: &Plan) -> Report {
    let gpu: Arc<dyn Gpu> = Arc::new(sim::SimWords::open("sim:h200").unwrap());
    run::run(&gpu, plan).unwrap()
}

#[test]
fn every_word_is_right_with_every_strategy() {
    for strategy in StrategyKind::MAIN {
        // The second limit is never near, so that streams share only where they are told to.
        for (seed, limit) in [(1, "6GiB"), (2, "9GiB,sharing:wait")] {
            let Report { tally, findings, stats, left } = {
                let report = run(&plan(&format!("strategy:{strategy},memory_limit:{limit}"), seed));
                report.verdict().unwrap_or_else(|error| panic!("{strategy}, {limit}: {error}"));
                report
            };
            assert_eq!((findings.wrong, left), (0, 0));
            // Else the program was too tame to show anything.
            assert!(tally.operations == OPERATIONS && tally.allocations > 1_000, "{strategy}: {tally:?}");
            assert!(tally.used_elsewhere > 300 && tally.freed_in_use > 100 && tally.rewrites > 50, "{tally:?}");
            assert!(tally.captures > 5 && tally.replays > 50 && tally.words > 1 << 30, "{strategy}: {tally:?}");
            let stitches = strategy == StrategyKind::Stitch;
            assert!(!stitches || (stats.views_built > 50 && stats.stream_waits > 50), "{stats:?}");
        }
    }
}

#[test]
fn two_threads_share_an_allocator() {
    for seed in 1..3 {
        let report = run(&Plan { threads: 2, ..plan("memory_limit:6GiB,chunk_size_mb:4", seed) });
        report.verdict().unwrap();
    }
}

/// Other memory comes under live addresses, those of graphs too, which are replayed afterwards.
#[test]
fn every_word_is_right_where_chunks_are_split() {
    let mut splits = 0;
    for (seed, faults, options) in [
        (1, false, "memory_limit:4200MiB,chunk_size_mb:64"),
        (2, true, "memory_limit:4200MiB,chunk_size_mb:32"),
        (3, true, "memory_limit:4200MiB,sharing:never"),
    ] {
        let report = run(&Plan { faults, ..plan(&format!("split:last_resort,{options}"), seed) });
        report.verdict().unwrap_or_else(|error| panic!("{options}: {error}"));
        assert_eq!((report.findings.wrong, report.left), (0, 0), "{options}");
        assert!(report.tally.replays > 50, "{options}: {:?}", report.tally);
        splits += report.stats.splits.chunks;
    }
    assert!(splits > 100, "{splits} chunks were split: too tame to show anything");
}

/// More is live than the device has: host memory comes under live addresses, and that of the device comes back.
#[test]
fn every_word_is_right_where_memory_is_spilled() {
    let mut chunks = 0;
    for (seed, faults, options) in [
        (1, false, "memory_limit:3GiB"),
        (2, true, "memory_limit:3GiB,chunk_size_mb:32"),
        (3, true, "memory_limit:3500MiB,sharing:never"),
        (4, true, "memory_limit:3GiB,split:last_resort,sharing:wait"),
    ] {
        let report = run(&Plan { faults, ..plan(&format!("spill:host=8GiB,{options}"), seed) });
        report.verdict().unwrap_or_else(|error| panic!("{options}: {error}"));
        assert_eq!((report.findings.wrong, report.left), (0, 0), "{options}");
        assert!(report.tally.replays > 50, "{options}: {:?}", report.tally);
        println!("{options}: {:?}, {:?}", report.stats.spills, report.stats.spilled_bytes);
        chunks += report.stats.spills.chunks;
    }
    assert!(chunks > 100, "{chunks} chunks were spilled: too tame to show anything");
}

/// Runs the same program on host memory, whose words are really written, read and compared. Driver calls fail
/// besides.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod on_the_host {
    use super::*;
    use crate::host;
    use crate::length::rounds;

    /// Of each strategy and of each thread.
    fn operations() -> u64 {
        if cfg!(feature = "paranoid") { 300 } else { rounds(450, 700) }
    }

    fn plan(options: &str, seed: u64) -> Plan {
        Plan { live: 64 << 20, until: Until::Operations(operations()), ..super::plan(options, seed) }
    }

    fn run(plan: &Plan) -> Report {
        let device: Arc<dyn Gpu> = Arc::new(host::HostWords::open("host:512MiB").unwrap());
        run::run(&device, plan).unwrap()
    }

    #[test]
    fn every_word_is_right_with_every_strategy() {
        let mut checked = 0;
        for strategy in StrategyKind::MAIN {
            for (seed, threads, faults, limit) in [(1, 1, false, "96MiB"), (2, 2, true, "160MiB")] {
                let plan = plan(&format!("strategy:{strategy},memory_limit:{limit}"), seed);
                let report = run(&Plan { threads, faults, ..plan });
                report.verdict().unwrap_or_else(|error| panic!("{strategy}, {limit}: {error}"));
                let Report { tally, findings, left, .. } = report;
                assert_eq!((findings.wrong, left), (0, 0));
                // Else the program was too tame to show anything.
                assert!(tally.used_elsewhere > 30 && tally.freed_in_use > 10 && tally.captures > 0, "{tally:?}");
                assert!(!faults || tally.failures > 5, "{tally:?}");
                checked += findings.checked;
            }
        }
        println!("{checked} words checked");
        assert!(checked > 1 << 25, "{checked}");
    }

    #[test]
    fn every_word_is_right_where_chunks_are_split() {
        let mut splits = 0;
        // How much is split depends on how fast streams are beside the CPU: more programs follow until it is enough.
        for seed in 1..=20 {
            let (faults, options) =
                [(true, "chunk_size_mb:32,sharing:wait"), (false, "chunk_size_mb:16")][seed as usize % 2];
            let plan = plan(&format!("split:last_resort,memory_limit:72MiB,{options}"), seed);
            let report = run(&Plan { faults, ..plan });
            report.verdict().unwrap_or_else(|error| panic!("{options}: {error}"));
            assert_eq!((report.findings.wrong, report.left), (0, 0), "{options}");
            splits += report.stats.splits.chunks;
            if splits > 5 && seed > 1 {
                break;
            }
        }
        assert!(splits > 5, "{splits} chunks were split: too tame to show anything");
    }

    /// Requests get memory as soon as work is done with it, and no sooner.
    #[test]
    fn every_word_is_right_where_requests_wait() {
        let mut events = 0;
        for (seed, threads, faults, options) in
            [(1, 1, false, ""), (2, 2, true, ""), (3, 1, true, "sharing:completed"), (4, 2, true, "wait_ms:3")]
        {
            let plan = plan(&format!("memory_limit:72MiB,{options}"), seed);
            let report = run(&Plan { threads, faults, ..plan });
            report.verdict().unwrap_or_else(|error| panic!("{options}: {error}"));
            assert_eq!((report.findings.wrong, report.left), (0, 0), "{options}");
            events += report.stats.pending_waits.events;
        }
        assert!(events > 50, "{events} waits: too tame to show anything");
    }

    /// With marks around live memory, fills of freed memory, and memory that is unmapped once it is passed.
    #[test]
    fn every_word_is_right_in_guard_mode() {
        for (seed, threads, strategy) in [(1, 1, "stitch"), (2, 2, "stitch"), (3, 1, "caching")] {
            let plan = plan(&format!("guard:on,strategy:{strategy}"), seed);
            let report = run(&Plan { threads, ..plan });
            report.verdict().unwrap_or_else(|error| panic!("{strategy}: {error}"));
            let guard = report.stats.guard;
            assert_eq!((guard.findings, report.left), (0, 0), "{strategy}");
            assert!(guard.guarded > 100, "{guard:?}");
        }
    }

    #[test]
    fn mistakes_are_found() {
        for sabotage in [Sabotage::Untold, Sabotage::Unwaited, Sabotage::FreedOutputs] {
            let plan = Plan { sabotage: Some(sabotage), until: Until::Passed(LONG), ..plan("memory_limit:96MiB", 1) };
            let report = run(&plan);
            let Err(verdict) = report.verdict() else { panic!("{sabotage:?} was not found: {:?}", report.tally) };
            assert!(report.findings.wrong > 0, "{sabotage:?}: {verdict}");
            assert!(verdict.contains(" held word "), "{verdict}");
        }
    }
}

#[test]
fn mistakes_are_found() {
    for sabotage in [Sabotage::Untold, Sabotage::Unwaited, Sabotage::FreedOutputs] {
        let sabotaged = Plan { sabotage: Some(sabotage), until: Until::Passed(LONG), ..plan("memory_limit:8GiB", 1) };
        let report = run(&sabotaged);
        let Err(verdict) = report.verdict() else { panic!("{sabotage:?} was not found: {:?}", report.tally) };
        assert!(report.findings.wrong > 0, "{sabotage:?}: {verdict}");
        assert!(verdict.contains(" held word "), "{verdict}");
    }
}

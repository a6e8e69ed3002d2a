//! The largest request that is said to be possible is served when it is asked right after, by whatever steps: free memory
//! joined, chunks split, free chunks given back, and new memory.

use crate::random::Random;
use crate::script::Run;
use crate::script::Step::{Allocate, EmptyCache, Finish, Free, Use};
use crate::{MAIN, MIB, SIDE};
use seamalloc::driver::StreamId;
use seamalloc::out_of_memory::Advice;
use seamalloc::{Error, OutOfMemoryReport, StrategyKind};
use std::collections::BTreeMap;

const KIB: u64 = 1 << 10;
const GIB: u64 = 1 << 30;
const GRANULE: u64 = 2 * MIB;

/// Returns what a report says could be met; 0 if it says nothing about it.
fn said(report: &OutOfMemoryReport) -> u64 {
    let at_most = |advice: &Advice| if let Advice::AskLess { at_most, .. } = advice { Some(*at_most) } else { None };
    report.advice.iter().find_map(at_most).unwrap_or(0)
}

/// Blocks of `size` bytes until the device is full, of which every other one is freed. Returns the bytes of free granules,
/// those never taken among them.
fn comb(run: &mut Run, size: u64, device: u64) -> u64 {
    while run.step(Allocate(size, MAIN)).is_ok() {}
    (0..run.addresses.len()).step_by(2).for_each(|nth| run.step(Free(nth)).unwrap());
    let mut last = (0, 0);
    let mut free = 0;
    let live: BTreeMap<u64, u64> = run
        .addresses
        .iter()
        .skip(1)
        .step_by(2)
        .map(|address| (*address, run.allocator.reports().size_of(*address).unwrap()))
        .collect();
    for (address, size) in live {
        // Blocks may share a granule.
        let granules = ((address / GRANULE).max(last.1), (address + size).div_ceil(GRANULE));
        free += granules.1 - granules.0;
        last = granules;
    }
    device - free * GRANULE
}

/// PyTorch 29554, 173049: with blocks of 12 MB and 2 GiB free between them, 33 MiB were said to be possible, of 1,670.
#[test]
fn free_granules_between_blocks_count_to_what_could_be_met() {
    for (megabytes, options) in
        [(5, ""), (12, ""), (37, ""), (12, "sharing:never"), (12, "chunk_size_mb:8"), (37, "split:ungated")]
    {
        let mut told = [false, true].map(|by_report| {
            let mut run = Run::on("sim:h100,capacity=4GiB", options);
            let free = comb(&mut run, megabytes * 1_000_000, 4 * GIB);
            let most = if by_report {
                let Err(Error::OutOfMemory(report)) = run.step(Allocate(4 * GIB, MAIN)) else {
                    panic!("it is too much")
                };
                said(&report)
            } else {
                run.allocator.reports().largest_request().unwrap()
            };
            assert!(
                most >= (free - 24 * MIB) / 100 * 95,
                "{megabytes} MB, {options:?}: {} of {} MiB",
                most / MIB,
                free / MIB
            );
            run.step(Allocate(most, MAIN))
                .unwrap_or_else(|error| panic!("{megabytes} MB, {} MiB: {error}", most / MIB));
            most
        });
        told.sort_unstable();
        assert!(told[1] - told[0] <= GRANULE, "both say about the same: {told:?}");
    }
}

/// Random programs under each of the options.
const SEEDS: u64 = 40;

/// Options under which random programs run until memory is short.
fn options() -> Vec<String> {
    let strategies = StrategyKind::ALL.map(|kind| format!("strategy:{kind}"));
    let options = [
        "",
        "split:off",
        "split:ungated,sharing:never",
        "sharing:never",
        "sharing:completed",
        "sharing:wait",
        "chunk_size_mb:2",
        "chunk_size_mb:8",
        "chunk_size_mb:64",
        "sharing:never,chunk_size_mb:64",
        "memory_limit:500MiB,chunk_size_mb:64",
        "headroom:33MiB",
        "wait_ms:1000",
        "roundup_power2_divisions:4",
        "max_views:0,sharing:never",
        "max_views:2",
        "max_view_mappings:40",
        "max_view_mappings:80,chunk_size_mb:16",
        "max_view_address_space:1GiB",
        "strategy:caching,memory_limit:300MiB",
        "strategy:caching,roundup_power2_divisions:4",
        "strategy:expandable,roundup_power2_divisions:4",
        "strategy:expandable,per_process_memory_fraction:0.6",
    ];
    strategies.into_iter().chain(options.map(str::to_owned)).collect()
}

/// A program of random sizes and lifetimes on two streams.
struct Program {
    run: Run,
    random: Random,
    live: Vec<usize>,
}

impl Program {
    fn new(options: &str, seed: u64) -> Self {
        let run = Run::on("sim:h100,capacity=700MiB", options);
        Self { run, random: Random(seed), live: Vec::new() }
    }

    fn size(&mut self) -> u64 {
        match self.random.below(8) {
            0 => 1 + self.random.below(300 * KIB),
            1..=4 => MIB + self.random.below(12 * MIB),
            5 | 6 => 8 * MIB + self.random.below(30 * MIB),
            _ => 40 * MIB + self.random.below(90 * MIB),
        }
    }

    fn step(&mut self) -> Result<(), (u64, StreamId, OutOfMemoryReport)> {
        let step = match self.random.below(10) {
            0..=5 => Allocate(self.size(), if self.random.below(4) == 0 { SIDE } else { MAIN }),
            9 if self.random.below(10) == 0 => EmptyCache,
            9 if self.random.below(3) == 0 => Finish,
            _ if self.live.is_empty() => return Ok(()),
            8 if self.random.below(8) == 0 => Use(self.live[self.random.below(self.live.len() as u64) as usize]),
            _ => Free(self.live.swap_remove(self.random.below(self.live.len() as u64) as usize)),
        };
        match (step, self.run.step(step)) {
            (Allocate(..), Ok(())) => {
                self.live.push(self.run.addresses.len() - 1);
                Ok(())
            }
            (_, Ok(())) => Ok(()),
            (Allocate(size, stream), Err(Error::OutOfMemory(report))) => Err((size, stream, report)),
            (_, Err(error)) => panic!("{error}"),
        }
    }
}

#[test]
fn what_is_said_to_be_the_largest_request_is_served_whatever_was_done() {
    for options in &options() {
        let mut wrong = Vec::new();
        for seed in 0..SEEDS {
            // Each stream on an allocator of its own, since a refusal gives memory back.
            let served = [MAIN, SIDE].into_iter().any(|stream| {
                let mut program = Program::new(options, seed);
                let steps = 20 + program.random.below(180);
                (0..steps).for_each(|_| drop(program.step()));
                let largest = program.run.allocator.reports().largest_request().unwrap();
                let served = largest == 0 || program.run.step(Allocate(largest, stream)).is_ok();
                program.run.allocator.reports().check().unwrap();
                served
            });
            if !served {
                wrong.push(seed);
            }
        }
        assert!(wrong.is_empty(), "{options:?}: seeds {wrong:?}");
    }
}

#[test]
fn what_a_refusal_says_could_be_met_is_served_whatever_was_done() {
    for options in &options() {
        let (mut wrong, mut refusals) = (Vec::new(), 0);
        for seed in 0..SEEDS {
            let mut program = Program::new(options, seed);
            let Some((size, stream, report)) = (0..300).find_map(|_| program.step().err()) else { continue };
            refusals += 1;
            let most = said(&report);
            assert!(most < size, "{report}");
            if most > 0 && program.run.step(Allocate(most, stream)).is_err() {
                wrong.push((seed, most));
            }
        }
        assert!(wrong.is_empty() && refusals > 4, "{options:?}, {refusals} refusals: {wrong:?}");
    }
}

/// Requests for private pools, which keep what they have to themselves.
#[test]
fn what_a_refusal_says_could_be_met_for_a_private_pool_is_served() {
    for options in ["", "split:off", "sharing:never", "chunk_size_mb:64", "chunk_size_mb:64,sharing:never"] {
        for seed in 0..SEEDS {
            let mut program = Program::new(options, seed);
            let steps = 20 + program.random.below(180);
            (0..steps).for_each(|_| drop(program.step()));
            let pools = program.run.allocator.pools();
            let pool = pools.create();
            let first = pools.allocate(pool, MIB + program.random.below(30 * MIB), MAIN);
            if let Ok(block) = first
                && seed % 2 == 0
            {
                program.run.allocator.free(block).unwrap();
            }
            // Nothing may be live.
            let Err(Error::OutOfMemory(report)) = pools.allocate(pool, 700 * MIB, MAIN) else { continue };
            let most = said(&report);
            if most > 0 {
                let served = pools.allocate(pool, most, MAIN);
                served.unwrap_or_else(|error| panic!("{options:?}, seed {seed}: {most} bytes: {error}"));
            }
        }
    }
}

/// While a stream may end at any time, no gate holds it, and nothing is split: what splitting would give does not count.
#[test]
fn where_no_gate_can_be_closed_splits_do_not_count() {
    let mut run = Run::on("sim:h100,capacity=4GiB", "");
    let free = comb(&mut run, 12_000_000, 4 * GIB);
    run.allocator.streams().mark_external(SIDE).unwrap();
    let largest = run.allocator.reports().largest_request().unwrap();
    assert!(largest < 100 * MIB && free > 1_600 * MIB, "{largest} of {free}");
    let Err(Error::OutOfMemory(report)) = run.step(Allocate(1_600 * MIB, MAIN)) else { panic!("nothing is split") };
    assert!(said(&report) < 100 * MIB, "{report}");
    run.step(Allocate(largest, MAIN)).unwrap();
}

//! Host memory that runs out, at every allocation of every operation, as SQLite tests it.
//!
//! For each operation of a script, and for n = 1, 2, 3, … until the operation goes through without a failure: the script
//! runs up to the operation, the n-th allocation of the library fails (once, or with all that follow), and the operation
//! runs. It succeeds, or answers the typed error; the process does not abort. Then the tables are in order, the
//! allocator and the device agree on every byte, live blocks are live, the operation succeeds once there is memory, and,
//! for the first allocations and every fourth of the others, the rest of the script runs and everything goes back.
//!
//! In the short form n is 1, 2, every eighth number from then on, and the last ones (`common/length.rs`).

#![cfg(not(feature = "paranoid"))]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a panic fails the test")]

#[path = "../common/length.rs"]
mod length;
#[path = "../common/physical.rs"]
#[allow(dead_code, reason = "the book is thrown away with what it has taken")]
mod physical;
mod script;
mod short_host;
mod world;

use length::is_long;
use script::{ASLEEP, GROWN, MANY_BLOCKS, SPLIT, Step, TAGS, script};
use seamalloc::{Error, StrategyKind};
use short_host::{Mode, arm, disarm};
use world::World;

/// More allocations than any operation makes.
const MANY: u64 = 2000;

/// The operations that were tried.
#[derive(Debug, Default)]
struct Tally {
    /// Operations with a failure at their n-th allocation.
    points: u64,
    /// Of these, the operations that went through nevertheless.
    overcome: u64,
}

fn run<'a>(world: &mut World, steps: impl IntoIterator<Item = &'a Step>, from: &str) {
    for (name, step) in steps {
        step(world).unwrap_or_else(|error| panic!("{from}, then {name}: {error}"));
    }
}

/// Tries one operation with a failure at its n-th allocation. Returns whether there was one.
fn fails_at(
    kind: StrategyKind,
    options: &str,
    steps: &[Step],
    at: usize,
    (nth, mode): (u64, Mode),
    tally: &mut Tally,
) -> bool {
    let (name, step) = steps[at];
    let when = format!("{kind},{options}: {name}, allocation {nth} failed {mode:?}");
    let mut world = World::new(kind, options);
    run(&mut world, &steps[..at], &format!("before {name}"));
    arm(nth, mode);
    let done = step(&mut world);
    let failed = disarm() > 0;
    match done {
        Ok(()) => tally.overcome += u64::from(failed),
        Err(Error::HostMemory) => assert!(failed, "{when}: nothing has failed"),
        Err(error) => panic!("{when}: {error}"),
    }
    world.check(&when);
    if done.is_err() {
        step(&mut world).unwrap_or_else(|error| panic!("{when}, and with memory again: {error}"));
        world.check(&when);
    }
    // The rest of the script is run after each of the first failures of an operation and every fourth from then on (in the
    // short form every fourth); the long way through tables that grow once for an operation, it takes as long
    // as all the rest.
    let has_rest = if is_long() { nth <= 4 || nth % 4 == 0 } else { (nth + at as u64).is_multiple_of(4) };
    if has_rest {
        let rest = steps[at + 1..].iter().filter(|step| nth == 1 || !MANY_BLOCKS.iter().any(|many| many.0 == step.0));
        run(&mut world, rest, &when);
        world.end(&when);
    }
    tally.points += u64::from(failed);
    failed
}

fn every_allocation_may_fail(kind: StrategyKind, options: &str) {
    every_allocation_of(kind, options, &script(kind, options));
}

/// Returns the allocation that fails after the `nth`: the next one, in the short form every eighth one beyond the second.
fn next(nth: u64, offset: u64) -> u64 {
    let is_tried = |nth: &u64| is_long() || *nth <= 2 || (*nth + offset).is_multiple_of(8);
    (nth + 1..).find(is_tried).unwrap_or(MANY)
}

fn every_allocation_of(kind: StrategyKind, options: &str, steps: &[Step]) {
    let mut tally = Tally::default();
    let operations = steps.len();
    for at in 0..operations {
        for mode in [Mode::Once, Mode::FromThenOn] {
            let mut fails = |nth| fails_at(kind, options, steps, at, (nth, mode), &mut tally);
            let (mut passed, mut nth) = (0, 1);
            while fails(nth) {
                (passed, nth) = (nth, next(nth, at as u64 + u64::from(mode == Mode::Once)));
                assert!(nth < MANY, "{kind}: operation {at} has no end");
            }
            // The last failures, where they were passed over.
            for nth in passed + 1..nth {
                fails(nth);
            }
        }
    }
    eprintln!("{kind},{options}: {operations} operations, {tally:?}");
    assert!(tally.points > 2 * operations as u64, "{kind}: {tally:?}, the test does not see the allocations");
}

#[test]
fn the_script_goes_where_tables_grow() {
    let figures = |kind: StrategyKind, options: &str| {
        let mut world = World::new(kind, options);
        run(&mut world, &script(kind, options), "the script");
        world.allocator.stats()
    };
    let stats = figures(StrategyKind::Stitch, "sharing:wait,chunk_size_mb:8");
    let taken = [stats.views_built, stats.views_reused, stats.views_dropped, stats.stream_waits, stats.num_ooms];
    assert!(taken.iter().all(|figure| *figure > 0), "{taken:?}");
    let splits = figures(StrategyKind::Stitch, "chunk_size_mb:32,split:last_resort").splits;
    assert!(splits.chunks > 0, "{splits:?}");
    for kind in [StrategyKind::Caching, StrategyKind::Expandable, StrategyKind::Gmlake] {
        assert!(figures(kind, "").num_alloc_retries > 0, "{kind}: nothing was given back for a request");
    }
}

#[test]
fn caching_survives_every_failure() {
    every_allocation_may_fail(StrategyKind::Caching, "");
    let collects = "garbage_collection_threshold:0.2,per_process_memory_fraction:0.99,max_split_size_mb:40";
    every_allocation_may_fail(StrategyKind::Caching, collects);
}

#[test]
fn expandable_survives_every_failure() {
    every_allocation_may_fail(StrategyKind::Expandable, "");
}

#[test]
fn gmlake_survives_every_failure() {
    every_allocation_may_fail(StrategyKind::Gmlake, "fragLimit:2097152");
}

#[test]
fn the_classics_survive_every_failure() {
    every_allocation_may_fail(StrategyKind::Exact, "exact_buffer_mb:2");
    every_allocation_may_fail(StrategyKind::Buddy, "buddy_capacity_mb:2");
    every_allocation_may_fail(StrategyKind::Slab, "");
    every_allocation_may_fail(StrategyKind::Tiny, "");
}

#[test]
fn paddles_survive_every_failure() {
    every_allocation_may_fail(StrategyKind::PaddleAutoGrowth, "");
    let flags = "FLAGS_free_idle_chunk:True,FLAGS_free_when_no_cache_hit:True";
    every_allocation_may_fail(StrategyKind::PaddleAutoGrowth, flags);
    every_allocation_may_fail(StrategyKind::PaddleAutoGrowth, "FLAGS_use_stream_safe_cuda_allocator:True");
    every_allocation_may_fail(StrategyKind::PaddleVmm, "FLAGS_use_stream_safe_cuda_allocator:True");
    let chunks = "FLAGS_initial_gpu_memory_in_mb:2,FLAGS_reallocate_gpu_memory_in_mb:2";
    every_allocation_may_fail(StrategyKind::PaddleNaiveBestFit, chunks);
    every_allocation_may_fail(StrategyKind::PaddleThreadLocal, chunks);
    every_allocation_may_fail(StrategyKind::PaddleVmm, "FLAGS_vmm_v2_large_pool_handle_size_in_mb:2");
}

#[test]
fn tags_survive_every_failure() {
    every_allocation_of(StrategyKind::Stitch, "chunk_size_mb:2", TAGS);
}

#[test]
fn a_tag_that_sleeps_survives_every_failure() {
    every_allocation_of(StrategyKind::Stitch, "chunk_size_mb:2", ASLEEP);
}

#[test]
fn chunks_that_are_split_survive_every_failure() {
    let options = "chunk_size_mb:8,split:last_resort";
    let mut world = World::new(StrategyKind::Stitch, options);
    run(&mut world, SPLIT, "the script");
    let splits = world.allocator.stats().splits;
    assert!(splits.chunks == 2 && splits.parts == 6, "{splits:?}");
    every_allocation_of(StrategyKind::Stitch, options, SPLIT);
}

#[test]
fn what_grows_and_is_spilled_survives_every_failure() {
    let options = "chunk_size_mb:16,spill:host=100MiB";
    let mut world = World::new(StrategyKind::Stitch, options);
    run(&mut world, GROWN, "the script");
    let spills = world.allocator.stats().spills;
    assert!(spills.reused_bytes > 0 && spills.returned_bytes > 0 && spills.requests > 2, "{spills:?}");
    every_allocation_of(StrategyKind::Stitch, options, GROWN);
}

#[test]
fn malloc_async_survives_every_failure() {
    every_allocation_may_fail(StrategyKind::MallocAsync, "");
}

#[test]
fn stitch_survives_every_failure() {
    every_allocation_may_fail(StrategyKind::Stitch, "chunk_size_mb:8");
    every_allocation_may_fail(StrategyKind::Stitch, "chunk_size_mb:32,split:last_resort");
    every_allocation_may_fail(StrategyKind::Stitch, "chunk_size_mb:2,sharing:completed,max_views:1");
    every_allocation_may_fail(StrategyKind::Stitch, "sharing:never,max_view_mappings:8");
}

/// The device has no memory left, so that a request takes what two other streams have freed. If that fails, the block that was found
/// is not lost.
#[test]
fn a_request_that_takes_memory_of_others_leaves_nothing_behind() {
    use seamalloc::driver::sim::{SimConfig, SimGpu};
    use seamalloc::driver::{Driver, PlainMemory, StreamId};
    use seamalloc::{Allocator, Config};
    use std::sync::Arc;
    use world::MIB;
    let [own, left_by, asks] = [StreamId(8), StreamId(9), StreamId(10)];
    let mut failures = 0;
    for nth in 1..MANY {
        let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=16GiB").unwrap()).unwrap());
        let apart = Arc::new(short_host::Apart(Arc::clone(&gpu)));
        let allocator = Allocator::new(apart, Config::default()).unwrap();
        let left = allocator.allocate(80 * MIB, left_by).unwrap();
        let whole = allocator.allocate(80 * MIB, own).unwrap();
        allocator.free(whole).unwrap();
        let live: Vec<u64> = (0..40).map(|_| allocator.allocate(2 * MIB, own).unwrap()).collect();
        allocator.record_stream(left, left_by).unwrap();
        allocator.free(left).unwrap();
        let free = gpu.memory_info().unwrap().free;
        let others = gpu.malloc(free - free % (2 * MIB)).unwrap();
        let before = allocator.stats().allocation.all.current;
        short_host::arm(nth, Mode::FromThenOn);
        let got = allocator.allocate(60 * MIB, asks);
        let failed = short_host::disarm() > 0;
        let (stats, is_served) = (allocator.stats(), got.is_ok());
        assert_eq!(stats.allocation.all.current, before + u64::from(is_served), "allocation {nth} failed: {got:?}");
        failures += u64::from(failed);
        live.into_iter().chain(got).for_each(|block| allocator.free(block).unwrap());
        gpu.free(others).unwrap();
        if !failed {
            assert!(is_served && failures > 0, "{failures} failures");
            return;
        }
    }
    panic!("the request has no end");
}

/// A stream is noted once for an allocation that grows, however often it is named.
#[test]
fn naming_a_stream_again_takes_no_memory() {
    use seamalloc::Allocator;
    use seamalloc::driver::StreamId;
    let allocator = Allocator::open("sim:h200", "").unwrap();
    let cache = allocator.growing().reserve(world::MIB, StreamId::DEFAULT).unwrap();
    allocator.record_stream(cache, StreamId(7)).unwrap();
    arm(1, Mode::FromThenOn);
    let named = (0..100).all(|at| allocator.record_stream(cache, StreamId(7 * (at % 2))).is_ok());
    assert_eq!((disarm(), named), (0, true));
    allocator.free(cache).unwrap();
}

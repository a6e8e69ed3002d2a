//! Growing, spilling, sleeping, streams, captures and private pools, all of it in one program: random operations in any order,
//! alone and between the requests of steps that repeat themselves, with calls of the driver that fail.

mod steps;

use crate::device::MIB;
use crate::program::Operation::{
    Advise, Allocate, Capture, Free, Limit, Record, Release, Reserve, Resize, Turn, Unspill,
};
use crate::program::{Mix, Tally, run_all};

const MIX: Mix = Mix {
    capacity: 48 * MIB,
    options: "spill:host=64MiB",
    operations: (400, 400),
    weights: &[
        (Allocate, 28),
        (Reserve, 6),
        (Resize, 20),
        (Free, 24),
        (Advise, 10),
        (Record, 5),
        (Unspill, 14),
        (Turn, 9),
        (Capture, 3),
        (Release, 3),
        (Limit, 2),
    ],
    tags: 2,
    pools: 1,
    share: 9,
    size: |random| match random.below(6) {
        0 => 8 * (1 + random.below(2_000)),
        1 => MIB * (8 + random.below(20)),
        _ => MIB + 4096 * random.below(2_000),
    },
    reads: 20,
    spills_at_random: false,
};

const OPTIONS: [&str; 5] = [
    "chunk_size_mb:4",
    "chunk_size_mb:8,sharing:wait",
    "chunk_size_mb:4,sharing:never,max_view_mappings:40",
    "split:last_resort,chunk_size_mb:16,headroom:2MiB",
    "chunk_size_mb:2,memory_limit:40MiB",
];

const OPTIONS_OF_STEPS: [&str; 6] = [
    "chunk_size_mb:4",
    "chunk_size_mb:8,sharing:wait,split:last_resort",
    "chunk_size_mb:4,sharing:never,max_view_mappings:60",
    "chunk_size_mb:6,headroom:2MiB",
    "chunk_size_mb:2,sharing:wait,max_views:8",
    "chunk_size_mb:16,sharing:completed,split:last_resort,backup_cache:0B",
];

#[test]
fn whatever_comes_together_no_word_is_lost() {
    let all = run_all(&MIX, (1..).zip(OPTIONS), false);
    assert!(all.spilled > 20 && all.returned > 5 && all.grown > 20 && all.slept > 5 && all.captures > 5, "{all:?}");
}

#[test]
fn nor_while_calls_fail() {
    let all = run_all(&MIX, (101..).zip(OPTIONS), true);
    assert!(all.failures > 10 && all.spilled > 10 && all.grown > 20 && all.slept > 2, "{all:?}");
}

fn run_steps(seeds: u64, fails: bool) -> Tally {
    let mut all = Tally::default();
    for (seed, options) in (seeds..).zip(OPTIONS_OF_STEPS) {
        steps::run(seed, options, fails, &mut all);
    }
    println!("{all:?}");
    all
}

#[test]
fn repeated_steps_lose_no_word_beside_all_that_moves_memory() {
    let all = run_steps(1, false);
    assert!(all.views > 50 && all.spilled > 5 && all.grown > 10 && all.slept > 5, "{all:?}");
}

#[test]
fn nor_do_repeated_steps_while_calls_fail() {
    let all = run_steps(101, true);
    assert!(all.failures > 10 && all.grown > 5 && all.slept > 2, "{all:?}");
}

//! Steps that repeat themselves, and so are planned, while all that moves memory goes on beside them: weights come and go, memory is
//! spilled and comes back, tags sleep and wake, allocations grow, streams end, captures are begun, and calls of the driver fail.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a panic fails the test"
)]

#[path = "../common/physical.rs"]
mod physical;
mod planners;
mod program;
#[path = "../common/random.rs"]
mod random;
#[path = "../real_words/mod.rs"]
mod real_words;
mod tags;
mod world;

use program::{Tally, run};

const OPTIONS: [&str; 6] = [
    "chunk_size_mb:4",
    "chunk_size_mb:8,sharing:wait,split:last_resort",
    "chunk_size_mb:4,sharing:never,max_view_mappings:60",
    "chunk_size_mb:6,split:before_growth,headroom:2MiB",
    "chunk_size_mb:2,sharing:wait,max_views:8",
    "chunk_size_mb:16,sharing:completed,split:last_resort,backup_cache:0B",
];

fn run_all(seeds: u64, fails: bool) -> Tally {
    let mut all = Tally::default();
    for (seed, options) in (seeds..).zip(OPTIONS) {
        run(seed, options, fails, &mut all);
    }
    println!("{all:?}");
    all
}

#[test]
fn planned_steps_lose_no_word_beside_all_that_moves_memory() {
    let all = run_all(1, false);
    assert!(all.placed > 10 && all.pieces > 50 && all.spilled > 5 && all.grown > 10 && all.slept > 5, "{all:?}");
}

#[test]
fn nor_while_calls_fail() {
    let all = run_all(101, true);
    assert!(all.placed > 10 && all.failures > 10 && all.grown > 5 && all.slept > 2, "{all:?}");
}

//! Growing, spilling, sleeping, streams, captures and private pools, all of it in one program: random operations in any order, with
//! calls of the driver that fail. Every word is read, and the allocator and the device agree to the byte.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a panic fails the test"
)]

mod program;
#[path = "../common/random.rs"]
mod random;
#[path = "../real_words/mod.rs"]
mod real_words;
mod world;

use program::{Tally, run};

const OPTIONS: [&str; 5] = [
    "chunk_size_mb:4",
    "chunk_size_mb:8,sharing:wait",
    "chunk_size_mb:4,sharing:never,max_view_mappings:40",
    "split:last_resort,chunk_size_mb:16,headroom:2MiB",
    "strategy:planned,chunk_size_mb:2,memory_limit:40MiB",
];

fn run_all(seeds: u64, fails: bool) -> Tally {
    let mut all = Tally::default();
    for (at, seed) in (seeds..seeds + OPTIONS.len() as u64).enumerate() {
        run(seed, OPTIONS[at], fails, &mut all);
    }
    println!("{all:?}");
    all
}

#[test]
fn whatever_comes_together_no_word_is_lost() {
    let all = run_all(1, false);
    assert!(all.spilled > 20 && all.returned > 5 && all.grown > 20 && all.slept > 5 && all.captures > 5, "{all:?}");
}

#[test]
fn nor_while_calls_fail() {
    let all = run_all(101, true);
    assert!(all.failures > 10 && all.spilled > 10 && all.grown > 20 && all.slept > 2, "{all:?}");
}

//! Random programs against what they should hold, with every word read, under options that move memory about.

use crate::device::MIB;
use crate::length::rounds;
use crate::program::Operation::{Allocate, Free, Record, Release, Reserve, Resize};
use crate::program::{Mix, run_all};

const MIX: Mix = Mix {
    capacity: 56 * MIB,
    options: "strategy:stitch",
    operations: (200, 200),
    weights: &[(Allocate, 17), (Reserve, 8), (Resize, 60), (Free, 17), (Record, 3), (Release, 5)],
    tags: 0,
    pools: 0,
    share: 1,
    size: |random| (1 + random.below(8 * MIB)).next_multiple_of(512),
    reads: 6,
    spills_at_random: false,
};

/// The options under which memory moves between streams, splits, goes back early, or is bounded.
const OPTIONS: [&str; 6] = [
    "chunk_size_mb:4",
    "chunk_size_mb:6,sharing:never",
    "sharing:wait",
    "chunk_size_mb:8,split:last_resort,sharing:wait",
    "chunk_size_mb:2,memory_limit:40MiB,sharing:completed",
    "chunk_size_mb:4,max_view_mappings:24,max_views:8",
];

/// Returns the seeds and the options of the programs.
fn programs(seeds: u64) -> impl Iterator<Item = (u64, &'static str)> {
    let of =
        move |(number, options): (u64, _)| (1..=rounds(2, 5)).map(move |seed| (seeds + 100 * number + seed, options));
    (0..).zip(OPTIONS).flat_map(of)
}

#[test]
fn random_programs_lose_no_word_and_no_byte() {
    let all = run_all(&MIX, programs(0), false);
    assert!(all.grown > rounds(400, 1000) && all.refusals > 10 && all.refusals < all.grown, "{all:?}");
}

#[test]
fn random_programs_lose_none_while_calls_fail() {
    let all = run_all(&MIX, programs(1000), true);
    assert!(all.grown > rounds(400, 1000) && all.refusals + all.failures > rounds(40, 100), "{all:?}");
}

//! Random programs whose live memory is more than the device has, with memory spilled at random.

use crate::device::MIB;
use crate::length::rounds;
use crate::program::Operation::{Advise, Allocate, Free, Record, Release, Rewrite, Unspill};
use crate::program::{Mix, run_all};

const MIX: Mix = Mix {
    capacity: 96 * MIB,
    options: "spill:host=96MiB",
    operations: (100, 250),
    weights: &[(Allocate, 48), (Free, 32), (Advise, 8), (Record, 3), (Rewrite, 3), (Unspill, 8), (Release, 2)],
    tags: 0,
    pools: 0,
    share: 1,
    size: |random| match random.below(10) {
        0..2 => 512 * (1 + random.below(2_000)),
        2..6 => MIB * (1 + random.below(12)),
        6..9 => MIB + 4096 * random.below(3_000),
        _ => MIB * (20 + random.below(40)),
    },
    reads: 50,
    spills_at_random: true,
};

const OPTIONS: [&str; 6] = [
    "chunk_size_mb:16",
    "chunk_size_mb:8,sharing:wait",
    "sharing:never",
    "split:last_resort,chunk_size_mb:16",
    "chunk_size_mb:4",
    "memory_limit:80MiB,sharing:completed",
];

#[test]
fn random_programs_lose_no_word() {
    let all = run_all(&MIX, (1..).zip(OPTIONS), false);
    let (spilled, returned) = (rounds(40, 100), rounds(8, 20));
    assert!(
        all.spilled > spilled && all.returned > returned && all.words > 1 << 27,
        "{all:?}: too tame to show anything"
    );
}

#[test]
fn random_programs_lose_no_word_while_calls_fail() {
    let all = run_all(&MIX, (101..).zip(OPTIONS), true);
    assert!(all.spilled > rounds(20, 50) && all.failures > 5, "{all:?}: too tame to show anything");
}

//! The target `c_library` calls every function of the C library's header, and an attack reaches every one of them.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use length::rounds;
use seamalloc_fuzz_targets::c_library::{Reached, attack};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[path = "../../../tests/common/length.rs"]
mod length;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The functions of the header.
fn declared() -> BTreeSet<String> {
    let header = read("../../ffi/seamalloc.h");
    let code = header.lines().filter(|line| !line.trim_start().starts_with(['*', '/']));
    let declared: BTreeSet<String> = code
        .filter_map(|line| line.split_once('(').map(|(before, _)| before))
        .filter_map(|before| before.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("seam"))
        .map(str::to_owned)
        .collect();
    assert!(declared.len() > 60, "{declared:?}");
    declared
}

#[test]
fn every_function_of_the_header_is_called() {
    let declared = declared();
    let calls = read("src/c_library/calls.rs");
    let list = calls.split_once("functions! {").unwrap().1;
    let called = |name: &String| {
        list.lines().any(|line| line.strip_prefix("    ").is_some_and(|line| line.starts_with(&format!("{name} |"))))
    };
    let missing: Vec<&String> = declared.iter().filter(|name| !called(name)).collect();
    assert!(missing.is_empty(), "not called: {missing:?}");
}

/// Threads of an attack, by turns.
const THREADS: [u64; 4] = [1, 2, 5, 3];
/// Calls of an attack.
const CALLS: u64 = 6_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.replace('_', "").parse().unwrap())
}

/// `SEAMALLOC_ATTACK_SEED` and `SEAMALLOC_ATTACK_OPERATIONS` choose the first attack, and how many calls there are in all.
#[test]
fn an_attack_reaches_every_function_and_breaks_no_rule() {
    let first = number("SEAMALLOC_ATTACK_SEED").unwrap_or(1);
    let calls = number("SEAMALLOC_ATTACK_OPERATIONS").unwrap_or(rounds(2 * CALLS, 200 * CALLS));
    let mut reached = Reached::new();
    for seed in first..first + calls.div_ceil(CALLS) {
        println!("attack {seed}; alone: SEAMALLOC_ATTACK_SEED={seed} SEAMALLOC_ATTACK_OPERATIONS={CALLS} .ci/attack c");
        for (name, (made, done)) in attack(seed, CALLS, THREADS[(seed % 4) as usize]) {
            let sum = reached.entry(name).or_default();
            *sum = (sum.0 + made, sum.1 + done);
        }
    }
    println!("calls and how many did as asked: {reached:#?}");
    let missing: Vec<String> =
        declared().into_iter().filter(|name| reached.get(name.as_str()).is_none_or(|(made, _)| *made == 0)).collect();
    assert!(missing.is_empty() || calls < 2 * CALLS, "not reached: {missing:?}");
}

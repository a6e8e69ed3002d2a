//! The targets as tests: over the stored corpus, and over random bytes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

use seamalloc_fuzz_targets::TARGETS;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Random inputs of a target; more for a long hunt with `SEAMALLOC_FUZZ_INPUTS`, from the number in `SEAMALLOC_FUZZ_FIRST` on, of
/// the target in `SEAMALLOC_FUZZ_TARGET` alone.
const RANDOM_INPUTS: u64 = 300;
/// Their longest, in bytes.
const LONGEST: u64 = 1_500;
/// What the stored corpus may take together, in bytes.
const CORPUS_BYTES: usize = 300 << 10;

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Runs a target, and says which input it was that it panicked on.
fn run(target: fn(&[u8]), name: &str, input: &str, bytes: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| target(bytes))).is_err() {
        panic!("target `{name}` fails on {input}");
    }
}

#[test]
fn the_stored_corpus_finds_nothing() {
    for (name, target) in TARGETS {
        let files = corpus(name);
        assert!(files.len() >= 20, "{name}: {} files", files.len());
        for (path, bytes) in files {
            run(target, name, &path.display().to_string(), &bytes);
        }
    }
}

#[test]
fn nor_do_random_bytes() {
    let asked = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let first = asked("SEAMALLOC_FUZZ_FIRST").unwrap_or(0);
    let inputs = asked("SEAMALLOC_FUZZ_INPUTS").unwrap_or(RANDOM_INPUTS);
    let only = std::env::var("SEAMALLOC_FUZZ_TARGET").ok();
    assert!(only.as_deref().is_none_or(|only| TARGETS.iter().any(|(name, _)| *name == only)), "no target {only:?}");
    for (name, target) in TARGETS.into_iter().filter(|(name, _)| only.as_deref().is_none_or(|only| only == *name)) {
        for seed in first..first + inputs {
            let mut random = Random(seed);
            let length = random.next() % LONGEST;
            let bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
            run(target, name, &format!("random input {seed}"), &bytes);
        }
    }
}

/// Changes of stored files go deeper than bytes that are random throughout.
#[test]
fn nor_do_changed_files_of_the_corpus() {
    for (name, target) in TARGETS {
        for (at, (path, mut bytes)) in corpus(name).into_iter().enumerate() {
            let mut random = Random(at as u64);
            for _ in 0..1 + random.next() % 4 {
                let length = bytes.len().max(1) as u64;
                if let Some(byte) = bytes.get_mut((random.next() % length) as usize) {
                    *byte = random.next() as u8;
                }
            }
            run(target, name, &format!("{}, changed", path.display()), &bytes);
        }
    }
}

#[test]
fn the_stored_corpus_is_small() {
    let bytes: usize = TARGETS.iter().flat_map(|(name, _)| corpus(name)).map(|(_, bytes)| bytes.len()).sum();
    assert!(bytes <= CORPUS_BYTES, "{bytes} bytes");
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }
}

//! Persistent memory beside counts by other ways, over recordings that begin and end anywhere.

use seamalloc_trace::{persistent, read_path, recorded};
use std::path::Path;

/// Asserts that persistent memory is within a hundredth part of a count.
fn assert_near(name: &str, found: u64, counted: u64) {
    assert!(found.abs_diff(counted) <= counted / 100, "{name}: {found} bytes, counted {counted}");
}

/// Python counted over the pickles: what the segments say is live at the end, where the program ended between two steps;
/// else the blocks that live through the middle half of the history; `streams` prefetches an input, so that the least that is
/// live in the second half of its history counts.
#[test]
fn persistent_memory_of_real_programs_is_what_python_counted() {
    for (name, counted) in [
        ("train-eval", 517_094_912),
        ("train-all", 403_609_088),
        ("oom-live", 517_094_912),
        ("oom-others", 517_094_912),
        ("rl", 565_864_448),
        ("vision", 272_826_600),
        ("inference", 198_428_160),
        // The optimizer makes its state anew in each step: a third of this is the same block throughout.
        ("optimizer-loop", 1_721_134_592),
        ("mid-job", 517_160_512),
        // Frees its weights at the end.
        ("recompute", 588_573_312),
        ("streams", 491_834_880),
    ] {
        let path = format!("{}/tests/data/snapshots/{name}.snapshot.pickle.gz", env!("CARGO_MANIFEST_DIR"));
        assert_near(name, persistent(&read_path(Path::new(&path)).unwrap()[0]), counted);
    }
}

/// The blocks that live through the middle half of each recording, counted by Python: weights and the optimizer's state. All
/// but one of the recordings include the end of the job, at which these are freed.
#[test]
fn persistent_memory_of_recorded_jobs_is_what_python_counted() {
    for (name, gib) in [
        ("gpt2xl-N", 9.226),
        ("resnet-multi", 0.513),
        ("moe-R", 25.555),
        ("opt1.3b-R", 7.992),
        ("opt13b-LR", 24.632),
        ("llama8b-fsdp2", 22.499),
        ("llama1b-ppo", 11.227),
    ] {
        let trace = recorded::find(name).unwrap().load().unwrap();
        assert_near(name, persistent(&trace), (gib * f64::from(1 << 30)) as u64);
    }
}

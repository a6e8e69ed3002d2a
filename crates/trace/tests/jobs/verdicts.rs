//! Verdicts on snapshots of real programs: those that the questions of docs/why.md give by hand, from what PyTorch itself
//! said of the jobs. Recorded on an H100 with PyTorch's native allocator.

use seamalloc::Config;
use seamalloc::driver::sim::SimConfig;
use seamalloc_trace::replay::ReplayOptions;
use seamalloc_trace::verdict::{Judgement, Verdict, figures_of};
use seamalloc_trace::whatif::{DeviceFrom, device_of};
use seamalloc_trace::{Trace, read_path};
use std::path::Path;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn snapshot(name: &str) -> Trace {
    let path = format!("{}/tests/data/snapshots/{name}.snapshot.pickle.gz", env!("CARGO_MANIFEST_DIR"));
    read_path(Path::new(&path)).unwrap().remove(0)
}

/// The verdict on a job on its own device, or on a named one.
fn verdict(trace: &Trace, device: Option<&str>) -> Judgement {
    let (device, from) = match device {
        Some(device) => (device.parse::<SimConfig>().unwrap(), DeviceFrom::Asked),
        None => device_of(trace),
    };
    let options = ReplayOptions::new(Config::default(), device);
    Judgement::of(figures_of(trace, &options, from, None, Vec::new()).unwrap())
}

#[test]
fn real_programs_get_the_verdict_of_the_five_questions() {
    let six = Some("sim:h100,capacity=6GiB");
    for (name, device, kind) in [
        // Held and allocated at the peak by PyTorch, in GB. Holes of one stream: question 3.
        ("train-eval", None, "pytorch_is_enough"), // 12.25 of 8.56
        ("train-all", None, "pytorch_is_enough"),  // 6.34 of 5.22
        ("vision", None, "pytorch_is_enough"),     // 5.41 of 3.08
        ("rl", None, "pytorch_is_enough"),         // 6.57 of 3.88
        ("inference", None, "pytorch_is_enough"),  // 1.88 of 1.11
        // 2.69 of 2.47: 0.2 are less than a CUDA context.
        ("optimizer-loop", None, "pytorch_is_enough"),
        // 7.64 of 6.40. The blocks that a side stream prepares are inputs, a few MiB: streams are not the difference.
        ("streams", None, "pytorch_is_enough"),
        // 9.81 of 5.10, and lengths vary, under recomputation: blocks of other sizes in each step.
        ("recompute", None, "seamalloc_helps"),
        ("recompute", six, "seamalloc_helps"),
        // 9.61 of 8.56, the first step cut off, so that blocks of it stay between the later ones.
        ("mid-job", None, "seamalloc_helps"),
        // The message: 5.85 GiB allocated, 0.25 asked for, 6.00 allowed.
        ("oom-live", None, "too_much_live"),
        ("oom-live", six, "too_much_live"),
        // 5.10 allocated, 0.25 asked for; 5.27 were held or free, which is all that the snapshot says.
        ("oom-others", None, "too_much_live"),
        // A limit of 7.5 GiB, within which PyTorch ran it with three retries.
        ("fragmented", Some("sim:h100,capacity=7.5GiB"), "pytorch_is_enough"),
        // On a device with room for all of them.
        ("vision", Some("sim:h100"), "pytorch_is_enough"),
        ("oom-live", Some("sim:h100"), "pytorch_is_enough"),
    ] {
        let found = verdict(&snapshot(name), device);
        assert_eq!(found.verdict.kind(), kind, "{name} on {device:?}\n{}\n{found:?}", found.text());
        assert!(found.headline().chars().count() <= 100, "{}", found.headline());
    }
}

#[test]
fn waits_for_memory_are_told() {
    let found = verdict(&snapshot("fragmented"), Some("sim:h100,capacity=7.5GiB"));
    assert!(found.headline().contains("native waits for memory"), "{}", found.headline());
    assert!(found.figures.native.waits >= 3 && found.figures.expandable.waits == 0, "{found:?}");
}

/// The message of `oom-live`: 6.00 GiB allowed, of which 5.85 are allocated, and 0.25 asked for; 72.51 are free on the device.
#[test]
fn a_refused_request_counts_as_live() {
    let trace = snapshot("oom-live");
    let found = verdict(&trace, Some("sim:h100,capacity=6GiB"));
    let Verdict::TooMuchLive { by } = found.verdict else { panic!("{found:?}") };
    assert!((90 * MIB..110 * MIB).contains(&by), "{}", found.text());
    assert_eq!(found.figures.refused, 256 * MIB);
    // The limit is in no snapshot: what was held counts, and that the device had more.
    let found = verdict(&trace, None);
    assert!(found.figures.capacity.is_some_and(|held| (5.9..6.0).contains(&(held as f64 / GIB as f64))), "{found:?}");
    for part in ["the request of 256.00 MiB", "72.51 GiB free"] {
        let part = part.replace("the request", "the refused request");
        assert!(found.reasons().contains(&part), "{}", found.reasons());
    }
    assert!(found.next_step().contains("set_per_process_memory_fraction"), "{}", found.next_step());
}

/// The message of `oom-others`: 79.18 GiB in all, of which another process holds 73.17.
#[test]
fn the_memory_of_other_processes_is_named_where_the_device_is_known() {
    let mut trace = snapshot("oom-others");
    let found = verdict(&trace, None);
    assert!(found.reasons().contains("nvidia-smi"), "{}", found.reasons());
    let found = verdict(&trace, Some("sim:h100"));
    assert!(found.reasons().contains("if that was on this device, others held 74.73 GiB"), "{}", found.reasons());
    trace.meta.insert("total_memory".to_owned(), 85_017_493_504_u64.into());
    let found = verdict(&trace, None);
    assert_eq!(found.verdict.kind(), "others", "{}", found.text());
    assert!(found.headline().starts_with("Others hold the memory: 73.91 GiB of 79.18 GiB; "), "{}", found.headline());
}

//! A recorded job's timeline: replayed without an allocator its steps are as long as they were, and with one it holds what
//! the job held.

use std::path::Path;

use seamalloc::Config;
use seamalloc::driver::sim::SimConfig;
use seamalloc_trace::timeline::{Policy, Timeline, TimelineReport, read_timeline_path, replay_timeline};

/// Four steps of the program `fsdp2` of `ffi/python/tests/gpu`, rank 0 of two, on an H200 with PyTorch 2.11, its collectives as
/// long as recorded.
fn fsdp2() -> Timeline {
    read_timeline_path(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/timelines/fsdp2.0.gz")).unwrap()
}

fn last(timeline: &Timeline, options: Option<&str>, passes: u32) -> TimelineReport {
    let config = options.map(|options| Config::parse(options).unwrap());
    let policy = Policy { name: options.unwrap_or("none").to_owned(), config };
    let reports = replay_timeline(timeline, &policy, &SimConfig::default(), passes, &mut |_, _| ()).unwrap();
    reports.into_iter().next_back().unwrap()
}

#[test]
fn steps_are_as_long_as_they_were() {
    let timeline = fsdp2();
    assert_eq!(timeline.recorded_ns.len(), 4);
    let report = last(&timeline, None, 1);
    for (step, recorded) in report.steps.iter().zip(&timeline.recorded_ns) {
        let ratio = step.ns as f64 / *recorded as f64;
        assert!((0.99..1.01).contains(&ratio), "{ratio}: {step:?}, recorded {recorded}");
    }
}

#[test]
fn memory_that_is_enough_costs_no_time_once_it_is_there() {
    let timeline = fsdp2();
    let apart = ["caching", "expandable", "stitch"].map(|strategy| {
        let report = last(&timeline, Some(&format!("strategy:{strategy},sharing:never")), 4);
        assert!((0.999..1.001).contains(&report.beside_bare()), "{strategy}: {}", report.beside_bare());
        assert_eq!((report.cpu_waits, report.stream_waits), (0, 0), "{strategy}");
        report
    });
    // Streams that share hold less, for hardly any time.
    let shared = last(&timeline, Some(""), 4);
    assert!(shared.stream_waits > 0 && shared.peak_reserved < apart[2].peak_reserved);
    assert!((0.999..1.005).contains(&shared.beside_bare()) && shared.cpu_waits == 0, "{}", shared.beside_bare());
}

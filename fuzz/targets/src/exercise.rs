//! The checks that every trace that was read goes through: it is written in every format and read back, and replayed by
//! every strategy.
//!
//! Owns: what must be equal, and the bounds of a replay.

use flate2::Compression;
use flate2::write::GzEncoder;
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::{Allocator, Config, StrategyKind};
use seamalloc_trace::replay::Replayer;
use seamalloc_trace::timeline::{Policy, Timeline, replay_timeline};
use seamalloc_trace::{
    Recorder, Trace, TraceEvent, read_bytes, read_snapshot, write_compact, write_csv, write_snapshot_json,
    write_snapshot_pickle,
};
use std::io::Write;
use std::sync::Arc;

/// Longer traces are not replayed, so that an input takes milliseconds.
const MAX_EVENTS: usize = 1_000;
/// Small enough that requests of a few hundred MiB run short of memory.
const DEVICE: &str = "sim:h200,capacity=1GiB";

/// An event with all that it says: csv lists no streams, so their indices may differ.
#[derive(Debug, PartialEq)]
enum Said {
    Alloc(u64, StreamId),
    Requested(u32),
    Completed(u32),
}

fn said(trace: &Trace) -> Vec<Said> {
    let say = |event: &TraceEvent| match *event {
        TraceEvent::Alloc { size, stream } => Said::Alloc(size, trace.streams[stream as usize]),
        TraceEvent::FreeRequested { block } => Said::Requested(block),
        TraceEvent::FreeCompleted { block } => Said::Completed(block),
    };
    trace.events.iter().map(say).collect()
}

/// Writes, reads back and replays a trace.
pub(crate) fn exercise(trace: &Trace) {
    let summary = trace.summary();
    assert!(summary.peak_live >= summary.live_at_end || summary.allocations == 0);
    formats(trace);
    if trace.events.len() <= MAX_EVENTS {
        StrategyKind::MAIN.into_iter().for_each(|kind| replay(trace, kind));
    }
}

/// Replays a timeline, under the strategies that differ most in what they ask of streams.
pub(crate) fn exercise_timeline(timeline: &Timeline) {
    if timeline.lines.len() > MAX_EVENTS || timeline.start.len() > MAX_EVENTS {
        return;
    }
    let device = SimConfig::parse(DEVICE).expect("a device");
    for options in ["strategy:caching", "strategy:stitch,sharing:wait"] {
        let config = Some(Config::parse(options).expect("options"));
        let policy = Policy { name: options.to_owned(), config };
        let reports =
            replay_timeline(timeline, &policy, &device, 2, &mut |_, _| ()).expect("a valid timeline is replayed");
        for step in reports.iter().flat_map(|report| &report.steps) {
            let path = step.path;
            assert_eq!(path.work_ns + path.program_ns + path.driver_ns + path.launch_ns, step.ns, "the whole step");
        }
    }
}

fn formats(trace: &Trace) {
    let mut compact = Vec::new();
    write_compact(trace, &mut compact).expect("a valid trace is written");
    let [back] = &read_bytes("x", &compact).expect("our own file is read")[..] else { panic!("one trace was written") };
    assert_eq!(back, trace, "the compact format keeps everything");

    let mut csv = Vec::new();
    write_csv(trace, &mut csv).expect("a valid trace is written");
    if csv.is_empty() {
        return;
    }
    for file in [gzip(&csv), csv] {
        let [back] = &read_bytes("x", &file).expect("our own file is read")[..] else {
            panic!("one trace was written")
        };
        assert_eq!((said(back), &back.meta), (said(trace), &trace.meta), "csv keeps the events and what is known");
    }
}

/// Replays a trace. The allocator's rules hold afterwards, and what was recorded of it is written as snapshots that tell
/// the same history.
fn replay(trace: &Trace, kind: StrategyKind) {
    let config = SimConfig { calls_advance_clock: false, ..SimConfig::parse(DEVICE).expect("a device") };
    let gpu = Arc::new(SimGpu::new(config).expect("a device"));
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::with_strategy(kind)).expect("an allocator");
    let (recorder, observer) = Recorder::with_clock(usize::MAX, || 0);
    allocator.reports().set_observer(Some(observer));
    let mut replayer = Replayer::new(trace, allocator, Arc::clone(&gpu));
    let pass = replayer.pass(1, &mut |_| {}).unwrap_or_else(|error| panic!("{kind}: {error}"));
    let allocator = replayer.allocator();
    allocator.reports().check().unwrap_or_else(|error| panic!("{kind}: {error}"));
    assert_eq!(allocator.reports().reserved(), gpu.leaks().bytes, "{kind}: bytes held");
    assert!(gpu.faults().is_empty(), "{kind}: {}", gpu.faults()[0]);
    assert!(pass.oom.is_some() || pass.allocations == trace.summary().allocations, "{kind}: a request is missing");

    let snapshot = allocator.reports().snapshot();
    let told = recorder.to_trace("x", Some(&snapshot)).unwrap_or_else(|error| panic!("{kind}: {error}"));
    let history = recorder.history();
    if told.events.is_empty() {
        return;
    }
    let (mut pickle, mut json) = (Vec::new(), Vec::new());
    write_snapshot_pickle(&snapshot, &history, &mut pickle).expect("a snapshot of our own is written");
    write_snapshot_json(&snapshot, &history, &mut json).expect("a snapshot of our own is written");
    for file in [&pickle, &json] {
        let back = read_snapshot(file).unwrap_or_else(|error| panic!("{kind}: our own snapshot is refused: {error}"));
        let [back] = back.traces.as_slice() else { panic!("{kind}: one history was written") };
        assert_eq!(said(back), said(&told), "{kind}: the history that was recorded");
    }
}

/// The bytes as a gzip file.
pub(crate) fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).expect("a Vec takes all bytes");
    encoder.finish().expect("a Vec takes all bytes")
}

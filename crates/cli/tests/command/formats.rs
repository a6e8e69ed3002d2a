//! One trace in every format that is read: the same peaks, whichever file it comes from.

use super::{Folder, STRATEGIES, lines, run, snapshot};
use seamalloc::observer::{Action, Event};
use seamalloc::snapshot::Snapshot;
use seamalloc_trace::{TimedEvent, Trace, TraceEvent, read_path, write_snapshot_json, write_snapshot_pickle};
use serde_json::Value;

/// Returns the figures of a trace's replays, without its name and the time it took.
fn figures(from: &str) -> Vec<Value> {
    let mut all = lines(&["replay", from, "--json"], 0);
    for line in &mut all {
        let line = line.as_object_mut().unwrap();
        line.remove("trace");
        line.remove("ns_per_op");
    }
    all
}

/// The trace as PyTorch would have recorded it, every block at an address of its own.
fn history(trace: &Trace) -> Vec<TimedEvent> {
    let (mut blocks, mut next) = (Vec::new(), 1u64 << 40);
    let mut event = |now: &TraceEvent| {
        let (action, block) = match *now {
            TraceEvent::Alloc { size, stream } => {
                blocks.push((next, size, trace.streams[stream as usize]));
                next += size.next_multiple_of(512);
                (Action::Alloc, blocks.len() - 1)
            }
            TraceEvent::FreeRequested { block } => (Action::FreeRequested, block as usize),
            TraceEvent::FreeCompleted { block } => (Action::FreeCompleted, block as usize),
        };
        let (address, size, stream) = blocks[block];
        TimedEvent { event: Event { action, address, size, stream, pool: seamalloc::PoolId::NONE }, time_us: 0 }
    };
    trace.events.iter().map(&mut event).collect()
}

fn every_format_agrees(from: &str) {
    let folder = Folder::new();
    let expected = figures(from);
    assert_eq!(expected.len(), STRATEGIES.len());
    let mut files =
        ["trace.seam", "trace.csv", "trace.csv.gz", "converted.pickle"].map(|name| folder.name(name)).to_vec();
    for file in &files {
        run(&["convert", from, file], 0).stdout("").stderr("");
    }
    let trace = read_path(folder.path("trace.seam").as_path()).unwrap().pop().unwrap();
    let (mut json, mut pickle) = (Vec::new(), Vec::new());
    write_snapshot_json(&Snapshot::default(), &history(&trace), &mut json).unwrap();
    write_snapshot_pickle(&Snapshot::default(), &history(&trace), &mut pickle).unwrap();
    files.extend([folder.file("trace.json", &json), folder.file("trace.pickle", &pickle)]);
    // Told apart by content, whatever the name says.
    files.push(folder.file("no-ending", &json));
    for file in &files {
        assert_eq!(figures(file), expected, "{file}");
    }
    let mut all = vec!["replay", "--json"];
    all.extend(files.iter().map(String::as_str));
    let together = lines(&all, 0);
    assert_eq!(together.len(), STRATEGIES.len() * files.len());
    assert!(together.chunks(STRATEGIES.len()).all(|set| set[0]["peak_reserved"] == expected[0]["peak_reserved"]));
}

#[test]
fn a_recorded_job() {
    every_format_agrees("opt1.3b-R");
}

#[test]
fn snapshots_of_real_jobs() {
    every_format_agrees(&snapshot("prefetch-2s.snapshot.pickle.gz"));
    every_format_agrees(&snapshot("resnet-multi-wrapped.snapshot.pickle.gz"));
}

#[test]
fn names_stand_for_the_same_trace_in_every_subcommand() {
    let folder = Folder::new();
    let file = folder.name("comb.csv.gz");
    run(&["convert", "comb", &file, "--steps", "2", "--seed", "7"], 0);
    let named = lines(&["replay", "comb", "--steps", "2", "--seed", "7", "--json"], 0);
    let stressed = lines(&["stress", "comb", "--steps", "2", "--seed", "7", "--json"], 0);
    let converted = lines(&["replay", &file, "--json"], 0);
    for key in ["trace", "strategy", "ops", "peak_live", "peak_reserved", "driver_calls"] {
        for (index, line) in named.iter().enumerate() {
            assert_eq!(line[key], converted[index][key], "{key}");
            assert_eq!(line[key], stressed[index][key], "{key}");
        }
    }
}

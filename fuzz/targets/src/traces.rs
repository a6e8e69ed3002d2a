//! Files of every format: the file, or what a gzip file holds.
//!
//! Owns: the ways in. The first byte says how the rest is packed, so that mutations reach the formats and not only gzip.

use crate::exercise::{exercise, exercise_timeline, gzip};
use seamalloc::snapshot::Snapshot;
use seamalloc_trace::timeline::read_timeline;
use seamalloc_trace::{PyTorchSnapshot, read_bytes, read_snapshot, write_snapshot_json, write_snapshot_pickle};

/// First bytes that stand for no format: the rest is packed by gzip before it is read.
const PACK: u8 = b'g';

/// Reads the bytes as a file. What can be read is written in every format, read back and compared, and replayed.
///
/// # Panics
/// Something is wrong with the reading, the writing or the replay.
pub fn run(data: &[u8]) {
    match data.split_first() {
        Some((&PACK, content)) => read(&gzip(content)),
        _ => read(data),
    }
}

fn read(file: &[u8]) {
    if let Ok(timeline) = read_timeline("x", "x", file) {
        exercise_timeline(&timeline);
    }
    match read_bytes("x.csv", file) {
        Ok(traces) => traces.iter().for_each(exercise),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(snapshot) = read_snapshot(file) {
        assert!(snapshot.reserved_bytes() >= snapshot.snapshots.iter().map(largest_segment).max().unwrap_or(0));
        snapshot.snapshots.iter().for_each(read_back);
    }
}

fn largest_segment(snapshot: &Snapshot) -> u64 {
    snapshot.segments.iter().map(|segment| segment.total_size).max().unwrap_or(0)
}

/// A snapshot that was read is written as pickle and JSON; both are read, and say the same.
fn read_back(snapshot: &Snapshot) {
    let mut pickle = Vec::new();
    // Those of programs may have what is not written: blocks that do not tile their segment.
    if write_snapshot_pickle(snapshot, &[], &mut pickle).is_err() {
        return;
    }
    let mut json = Vec::new();
    write_snapshot_json(snapshot, &[], &mut json).expect("what a pickle can say, JSON can");
    let [from_pickle, from_json] = [&pickle, &json].map(|bytes| again(bytes));
    assert_eq!(from_pickle, from_json, "pickle and JSON say the same");
    if snapshot.segments.is_empty() {
        return;
    }
    let [written] = from_pickle.snapshots.as_slice() else {
        panic!("one snapshot was written, {} read", from_pickle.snapshots.len())
    };
    assert_eq!((&written.segments, written.device), (&snapshot.segments, snapshot.device), "as it was written");
}

fn again(bytes: &[u8]) -> PyTorchSnapshot {
    read_snapshot(bytes).unwrap_or_else(|error| panic!("a snapshot of our own is refused: {error}"))
}

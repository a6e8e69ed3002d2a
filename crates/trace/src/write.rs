//! Writes a trace to a file, in the format of the file's ending.
//!
//! Owns: the choice of the format, and the rule that a file is written either whole or not at all.

use crate::builder;
use crate::compact::write_compact;
use crate::csv::write_csv;
use crate::error::{Place, TraceError};
use crate::pytorch::write_snapshot_pickle;
use crate::refused::RefusedRequest;
use crate::trace::{Trace, TraceEvent};
use crate::whatif::Recorded;
use seamalloc::PoolId;
use seamalloc::flight::TimedEvent;
use seamalloc::observer::{Action, Event};
use seamalloc::snapshot::Snapshot;
use serde_json::Value;
use std::fs;
use std::io;
use std::path::Path;

/// The endings of files in the formats that can be written.
pub const ENDINGS: [&str; 3] = [".seam", ".csv", ".csv.gz"];

/// Returns whether a file with this name can be written.
#[must_use]
pub fn can_write(path: &Path) -> bool {
    let name = path.to_string_lossy();
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Writes `trace` to `path`. `.seam` is the compact format; `.csv` and `.csv.gz` are text. The file appears only when
/// it is complete.
///
/// # Errors
/// The name has none of these endings, the trace breaks a rule, or the file cannot be written.
pub fn write_path(trace: &Trace, path: &Path) -> Result<(), TraceError> {
    let file = path.display().to_string();
    let mut bytes = Vec::new();
    if file.ends_with(".seam") {
        write_compact(trace, &mut bytes)?;
    } else if file.ends_with(".csv") {
        write_csv(trace, &mut bytes)?;
    } else if file.ends_with(".csv.gz") {
        let mut gzip = flate2::write::GzEncoder::new(&mut bytes, flate2::Compression::default());
        write_csv(trace, &mut gzip)?;
        gzip.finish().map_err(|error| TraceError::io(&file, error))?;
    } else {
        return Err(TraceError::malformed(
            &file,
            Place::Whole,
            "a name without a known ending",
            ".seam, .csv or .csv.gz",
        ));
    }
    put(path, &bytes).map_err(|error| TraceError::io(&file, error))
}

/// The ending of a snapshot that [`write_trace_as_snapshot`] writes.
pub const SNAPSHOT_ENDING: &str = ".pickle";
/// The unit of addresses in a snapshot of [`write_trace_as_snapshot`], in bytes, and the first address.
const ALIGNMENT: u64 = 512;
const FIRST_ADDRESS: u64 = 1 << 40;

/// Writes a trace as a PyTorch snapshot, which PyTorch's viewer draws (pytorch.org/memory_viz), and which this crate
/// reads as the same trace. A trace has no addresses and no times, so each block gets an address of its own, and each
/// event takes a microsecond. The file appears only when it is complete.
///
/// # Errors
/// The trace breaks a rule, or the file cannot be written.
pub fn write_trace_as_snapshot(trace: &Trace, path: &Path) -> Result<(), TraceError> {
    let file = path.display().to_string();
    builder::check(trace).map_err(|(event, rule)| TraceError::rule(&file, Place::Event(event), rule))?;
    write_snapshot_path(&Snapshot::default(), &history_of(trace), path)
}

fn history_of(trace: &Trace) -> Vec<TimedEvent> {
    let (mut blocks, mut next) = (Vec::new(), FIRST_ADDRESS);
    let events = trace.events.iter().filter_map(|event| {
        let (action, block) = match *event {
            TraceEvent::Alloc { size, stream } => {
                blocks.push((next, size, *trace.streams.get(stream as usize)?));
                next += size.next_multiple_of(ALIGNMENT).max(ALIGNMENT);
                (Action::Alloc, blocks.len() - 1)
            }
            TraceEvent::FreeRequested { block } => (Action::FreeRequested, block as usize),
            TraceEvent::FreeCompleted { block } => (Action::FreeCompleted, block as usize),
        };
        let &(address, size, stream) = blocks.get(block)?;
        Some(Event { action, address, size, stream, pool: PoolId::NONE })
    });
    let mut history: Vec<_> = events.collect();
    if let Some((at, refusal)) = refusal_of(trace) {
        history.splice(at..at, refusal);
    }
    history.into_iter().zip(1..).map(|(event, time_us)| TimedEvent { event, time_us }).collect()
}

/// Returns the refused request as events, and the number of events before it; `None` if no request was refused. A
/// segment that exists only at the moment of the refusal stands for the memory that was held. A reader of the snapshot
/// then finds the same available memory as in the trace.
fn refusal_of(trace: &Trace) -> Option<(usize, [Event; 3])> {
    let refused = RefusedRequest::of(trace).filter(|refused| !refused.is_made)?;
    let Recorded { available, free_beyond_limit, .. } = Recorded::of(trace);
    let (available, stream) = (available?, refused.stream);
    let peak = trace.meta.get("peak_reserved").and_then(Value::as_u64).unwrap_or(available);
    let held = if free_beyond_limit.is_some() { available } else { peak.min(available) };
    let free = free_beyond_limit.unwrap_or(available - held);
    let event = |action, address, size| Event { action, address, size, stream, pool: PoolId::NONE };
    Some((
        refused.event,
        [
            event(Action::SegmentAlloc, FIRST_ADDRESS, held),
            event(Action::Oom, free, refused.size),
            event(Action::SegmentFree, FIRST_ADDRESS, held),
        ],
    ))
}

/// Writes a snapshot, and its history if any, as a pickle that PyTorch's viewer reads. The file appears only when it is
/// complete.
///
/// # Errors
/// The errors of [`write_snapshot_pickle`], or the file cannot be written.
pub fn write_snapshot_path(snapshot: &Snapshot, history: &[TimedEvent], path: &Path) -> Result<(), TraceError> {
    let mut bytes = Vec::new();
    write_snapshot_pickle(snapshot, history, &mut bytes)?;
    put(path, &bytes).map_err(|error| TraceError::io(&path.display().to_string(), error))
}

/// Writes a new file beside the old one and then renames it, so that a full disk or a signal leaves the old file
/// intact. A pipe or a device is written to directly, since a renamed file would replace it.
pub(crate) fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return fs::write(path, bytes);
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let written = fs::write(&part, bytes).and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        // The partial file may not exist. An error of its removal is ignored, since the first error is the one to
        // return.
        let _ = fs::remove_file(&part);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::read_path;
    use crate::trace::TraceEvent;

    #[test]
    fn every_format_is_read_back() {
        let trace = Trace {
            name: "job".into(),
            streams: vec![seamalloc::driver::StreamId(5)],
            events: vec![TraceEvent::Alloc { size: 7, stream: 0 }, TraceEvent::FreeRequested { block: 0 }],
            ..Trace::default()
        };
        let folder = tempfile::tempdir().unwrap();
        for name in ["job.seam", "job.csv", "job.csv.gz"] {
            let path = folder.path().join(name);
            write_path(&trace, &path).unwrap();
            assert_eq!(read_path(&path).unwrap(), std::slice::from_ref(&trace), "{name}");
        }
        let error = write_path(&trace, &folder.path().join("job.txt")).unwrap_err().to_string();
        assert!(error.contains(".seam, .csv or .csv.gz"), "{error}");
        assert!(write_path(&trace, &folder.path().join("missing/job.seam")).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "nothing half done is left");
    }

    #[test]
    fn a_trace_comes_back_from_a_snapshot() {
        let alloc = |size, stream| TraceEvent::Alloc { size, stream };
        let (freed, done) = (|block| TraceEvent::FreeRequested { block }, |block| TraceEvent::FreeCompleted { block });
        let trace = Trace {
            name: "job".into(),
            streams: vec![seamalloc::driver::StreamId(0), seamalloc::driver::StreamId(5)],
            events: vec![alloc(7, 0), alloc(1 << 33, 1), freed(0), alloc(7, 0), done(0), freed(1), done(1)],
            ..Trace::default()
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.pickle");
        write_trace_as_snapshot(&trace, &path).unwrap();
        let read = read_path(&path).unwrap();
        assert_eq!((read[0].events.as_slice(), read[0].streams.as_slice()), (&*trace.events, &*trace.streams));
        // The snapshot also contains a request that the device or a limit refused.
        let refused = serde_json::json!({"event": 4, "size": 1 << 30, "stream": 5, "made": false});
        for known in [
            serde_json::json!({"refused_request": refused, "available_memory": 90 << 20, "peak_reserved": 80 << 20}),
            serde_json::json!({"refused_request": refused, "available_memory": 90 << 20, "free_beyond_limit": 1_u64 << 40}),
        ] {
            let meta = known.as_object().unwrap();
            write_trace_as_snapshot(&Trace { meta: meta.clone(), ..trace.clone() }, &path).unwrap();
            let read = read_path(&path).unwrap().remove(0);
            assert_eq!((&read.events, &read.streams), (&trace.events, &trace.streams));
            assert!(meta.iter().all(|(key, value)| read.meta.get(key) == Some(value)), "{:?}", read.meta);
        }
        let wrong = Trace { events: vec![freed(0)], ..trace };
        assert!(write_trace_as_snapshot(&wrong, &folder.path().join("wrong.pickle")).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn a_device_is_written_to_and_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("null.pickle");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        write_snapshot_path(&Snapshot::default(), &[], &path).unwrap();
        assert!(path.is_symlink(), "a file took its place");
        assert!(put(folder.path(), b"").is_err(), "a folder is neither");
    }
}

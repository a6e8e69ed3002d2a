//! The readers on files as real jobs wrote them, against counts that were taken from the files by other means.

use std::path::{Path, PathBuf};

use seamalloc_trace::{PyTorchSnapshot, Trace, TraceEvent, read_path, read_snapshot};

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn snapshot(name: &str) -> PyTorchSnapshot {
    read_snapshot(&std::fs::read(data(name)).unwrap()).unwrap()
}

/// Allocations, frees requested, frees completed; and the peak of the bytes not yet completely freed, and those at the
/// end.
fn figures(trace: &Trace) -> ([usize; 3], u64, u64) {
    let (mut counts, mut sizes, mut live, mut peak) = ([0; 3], Vec::new(), 0, 0);
    for event in &trace.events {
        match *event {
            TraceEvent::Alloc { size, .. } => {
                counts[0] += 1;
                sizes.push(size);
                live += size;
                peak = peak.max(live);
            }
            TraceEvent::FreeRequested { .. } => counts[1] += 1,
            TraceEvent::FreeCompleted { block } => {
                counts[2] += 1;
                live -= sizes[block as usize];
            }
        }
    }
    (counts, peak, live)
}

#[test]
fn a_snapshot_of_two_streams() {
    let path = "snapshots/prefetch-2s.snapshot.pickle.gz";
    let read = snapshot(path);
    let trace = &read.traces[0];
    assert_eq!(figures(trace), ([2017, 2016, 1992], 4_126_659_208, 3_179_282_432));
    assert_eq!((read.traces.len(), read.snapshots.len(), read.reserved_bytes()), (1, 1, 7_677_673_472));
    let segments = &read.snapshots[0].segments;
    assert_eq!((segments.len(), segments.iter().map(|s| s.blocks.len()).sum::<usize>()), (47, 68));
    assert_eq!(trace.streams.len(), 2);
    assert_eq!(trace.streams[0].0, 512_329_568);
    assert_eq!(trace.meta["reserved"], 7_677_673_472u64);
    assert_eq!(trace.meta["allocator_settings"]["max_split_size"], -1);
    let traces = read_path(&data(path)).unwrap();
    assert_eq!(traces[0].name, "prefetch-2s");
    assert_eq!(traces[0].events, trace.events);
}

/// The last 5,999 entries of a history, as a ring buffer leaves them: 2,031 blocks are known by their free or from the
/// segments alone, one of them freed but not complete when the history begins. The peak of this window is the same as
/// in the whole history.
#[test]
fn a_snapshot_whose_history_wrapped() {
    let read = snapshot("snapshots/resnet-multi-wrapped.snapshot.pickle.gz");
    let trace = &read.traces[0];
    assert_eq!(figures(trace), ([2679, 2676, 2676], 3_196_771_152, 68_157_440));
    let early = trace.events.iter().take_while(|event| matches!(event, TraceEvent::Alloc { .. })).count();
    assert_eq!(early, 2031);
    assert!(matches!(trace.events[2031], TraceEvent::FreeRequested { .. }));
}

/// The peaks are those that the recording program wrote into the traces.
#[test]
fn the_recorded_traces() {
    for (name, allocations) in [("moe-R", 23_125), ("opt1.3b-R", 28_732), ("resnet-multi", 53_813)] {
        let traces = read_path(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("traces/{name}.seam"))).unwrap();
        let [trace] = traces.as_slice() else { panic!("{} traces", traces.len()) };
        assert_eq!(trace.name, name);
        let (counts, peak, _) = figures(trace);
        assert_eq!(counts[0], allocations);
        assert_eq!(trace.meta["peak_req"], peak, "{name}");
    }
}

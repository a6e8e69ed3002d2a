//! The recordings of an allocator can be replayed, and read by PyTorch's tools.

use crate::simulated;
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::SimGpu;
use seamalloc::{Allocator, Config, StrategyKind};
use seamalloc_trace::replay::Replayer;
use seamalloc_trace::workload::{self, Scale};
use seamalloc_trace::{Recorder, read_bytes, read_snapshot, write_snapshot_json, write_snapshot_pickle};
use std::sync::Arc;

fn allocator(kind: StrategyKind) -> (Arc<SimGpu>, Allocator) {
    simulated::on("sim:h200", Config::with_strategy(kind))
}

#[test]
fn a_replayed_trace_is_recorded_as_it_was() {
    for name in ["opt-1.3b-LR", "ping-pong"] {
        let trace = workload::find(name).unwrap().generate(1, Scale { steps: Some(1) }).unwrap();
        let (gpu, allocator) = allocator(StrategyKind::Expandable);
        let (recorder, observer) = Recorder::new(usize::MAX);
        assert!(allocator.reports().set_observer(Some(observer)).is_none());
        let mut replayer = Replayer::new(&trace, allocator, gpu);
        replayer.pass(1, &mut |_| {}).unwrap();
        let recorded = recorder.to_trace(name, None).unwrap();
        // The replay freed what the trace left live.
        assert_eq!(recorded.summary().allocations, trace.summary().allocations, "{name}");
        assert_eq!(recorded.summary().peak_live, trace.summary().peak_live, "{name}");
        assert_eq!(recorded.summary().live_at_end, 0);
        if trace.summary().deferred_frees == 0 {
            assert_eq!(recorded.events[..trace.events.len()], trace.events, "{name}");
        }
    }
}

#[test]
fn a_snapshot_of_ours_is_read_back_whole() {
    // No snapshot has the free memory of the driver's pool.
    for kind in StrategyKind::ALL.into_iter().filter(|kind| *kind != StrategyKind::MallocAsync) {
        let (gpu, allocator) = allocator(kind);
        let (recorder, observer) = Recorder::new(1000);
        allocator.reports().set_observer(Some(observer));
        let keep: Vec<u64> = (1..40u64).map(|i| allocator.allocate(i * 300_000, StreamId(i % 3)).unwrap()).collect();
        for address in keep.iter().step_by(2) {
            allocator.free(*address).unwrap();
        }
        gpu.hold(StreamId(9));
        allocator.record_stream(keep[1], StreamId(9)).unwrap();
        allocator.free(keep[1]).unwrap();
        let snapshot = allocator.reports().snapshot();
        let stats = allocator.stats();
        let total: u64 = snapshot.segments.iter().map(|segment| segment.total_size).sum();
        let requested: u64 = snapshot.segments.iter().map(|segment| segment.requested_size()).sum();
        assert_eq!(total, stats.reserved_bytes.all.current);
        assert_eq!(requested, stats.requested_bytes.all.current);
        let history = recorder.history();
        let (mut pickle, mut json) = (Vec::new(), Vec::new());
        write_snapshot_pickle(&snapshot, &history, &mut pickle).unwrap();
        write_snapshot_json(&snapshot, &history, &mut json).unwrap();
        for bytes in [&pickle, &json] {
            let read = read_snapshot(bytes).unwrap();
            assert_eq!(read.snapshots.as_slice(), std::slice::from_ref(&snapshot), "{kind}");
            assert_eq!(read.reserved_bytes(), total);
            let traces = read_bytes("ours", bytes).unwrap();
            assert_eq!(traces[0].events, recorder.to_trace("ours", Some(&snapshot)).unwrap().events);
            assert_eq!(traces[0].summary().live_at_end, stats.requested_bytes.all.current - keep_pending(&snapshot));
        }
    }
}

/// Bytes requested of blocks that are freed and wait.
fn keep_pending(snapshot: &seamalloc::snapshot::Snapshot) -> u64 {
    let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    let pending = seamalloc::snapshot::BlockState::ActivePendingFree;
    blocks.filter(|block| block.state == pending).map(|block| block.requested_size).sum()
}

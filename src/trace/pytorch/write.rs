//! Writes snapshots that PyTorch's tools read: `python -m torch.cuda._memory_viz` and pytorch.org/memory_viz.
//!
//! Owns: the keys that are written, as JSON and as pickle. The pickle is protocol 2 without objects, which the viewer's
//! own unpickler reads.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use serde::Serialize;

use super::super::TimedEvent;
use super::super::error::{Place, TraceError};
use crate::observer::Action;
use crate::snapshot::{SegmentInfo, Snapshot};

/// What an error calls the snapshot.
const FILE: &str = "snapshot";

/// PyTorch's roundup intervals, in MiB: the powers of two up to here.
const LAST_ROUNDUP: u32 = 32768;

#[derive(Serialize)]
struct SnapshotOut<'a> {
    segments: Vec<SegmentOut<'a>>,
    device_traces: Vec<Vec<EntryOut>>,
    allocator_settings: SettingsOut<'a>,
    external_annotations: &'a [()],
}

#[derive(Serialize)]
struct SegmentOut<'a> {
    device: u32,
    address: u64,
    total_size: u64,
    allocated_size: u64,
    active_size: u64,
    requested_size: u64,
    stream: u64,
    segment_type: &'static str,
    segment_pool_id: (u64, u64),
    is_expandable: bool,
    frames: &'a [()],
    blocks: Vec<BlockOut<'a>>,
}

#[derive(Serialize)]
struct BlockOut<'a> {
    address: u64,
    size: u64,
    requested_size: u64,
    state: &'static str,
    frames: &'a [()],
}

#[derive(Serialize)]
struct EntryOut {
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    addr: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_free: Option<u64>,
    size: u64,
    stream: u64,
    time_us: u64,
    compile_context: &'static str,
    user_metadata: &'static str,
}

#[derive(Serialize)]
struct SettingsOut<'a> {
    #[serde(rename = "PYTORCH_CUDA_ALLOC_CONF")]
    conf: &'a str,
    /// Bytes; -1 for none.
    max_split_size: i64,
    garbage_collection_threshold: f64,
    expandable_segments: bool,
    pinned_num_register_threads: u32,
    release_lock_on_cudamalloc: bool,
    pinned_use_cuda_host_register: bool,
    graph_capture_record_stream_reuse: bool,
    roundup_power2_divisions: BTreeMap<String, u32>,
}

/// Writes what an allocator holds and the history that led to it as JSON, which the current viewer reads.
///
/// The viewer plays the history backwards from the snapshot: take both at the same moment.
///
/// # Errors
/// The blocks of a segment do not tile it, or `out` cannot be written.
pub fn write_snapshot_json(snapshot: &Snapshot, history: &[TimedEvent], out: impl Write) -> Result<(), TraceError> {
    let content = content(snapshot, history)?;
    let mut out = BufWriter::new(out);
    serde_json::to_writer(&mut out, &content).map_err(|error| TraceError::io(FILE, error.into()))?;
    out.flush().map_err(|error| TraceError::io(FILE, error))
}

/// Writes the same as [`write_snapshot_json`] as a pickle, which PyTorch's script and every viewer read.
///
/// # Errors
/// As [`write_snapshot_json`].
pub fn write_snapshot_pickle(snapshot: &Snapshot, history: &[TimedEvent], out: impl Write) -> Result<(), TraceError> {
    let content = content(snapshot, history)?;
    let mut out = BufWriter::new(out);
    serde_pickle::to_writer(&mut out, &content, serde_pickle::SerOptions::new().proto_v2()).map_err(|error| {
        let error = match error {
            serde_pickle::Error::Io(error) => error,
            other => io::Error::other(other),
        };
        TraceError::io(FILE, error)
    })?;
    out.flush().map_err(|error| TraceError::io(FILE, error))
}

fn content<'a>(snapshot: &'a Snapshot, history: &[TimedEvent]) -> Result<SnapshotOut<'a>, TraceError> {
    let segments = snapshot.segments.iter().enumerate();
    let segments = segments.map(|(index, segment)| segment_out(snapshot.device, index, segment));
    let mut device_traces: Vec<Vec<EntryOut>> = (0..snapshot.device).map(|_| Vec::new()).collect();
    device_traces.push(history.iter().map(entry_out).collect());
    Ok(SnapshotOut {
        segments: segments.collect::<Result<_, _>>()?,
        device_traces,
        allocator_settings: settings_out(&snapshot.settings),
        external_annotations: &[],
    })
}

fn segment_out(device: u32, index: usize, segment: &SegmentInfo) -> Result<SegmentOut<'_>, TraceError> {
    let wrong = |found: String, expected: String| TraceError::malformed(FILE, Place::Segment(index), found, expected);
    let mut next = segment.address;
    let mut blocks = Vec::with_capacity(segment.blocks.len());
    for block in &segment.blocks {
        let after = next.checked_add(block.size).filter(|_| block.address == next);
        next = after.ok_or_else(|| wrong(format!("a block at {:#x}", block.address), format!("one at {next:#x}")))?;
        blocks.push(BlockOut {
            address: block.address,
            size: block.size,
            requested_size: block.requested_size,
            state: block.state.name(),
            frames: &[],
        });
    }
    if next.checked_sub(segment.address) != Some(segment.total_size) {
        return Err(wrong(format!("blocks up to {next:#x}"), format!("blocks that tile {} bytes", segment.total_size)));
    }
    Ok(SegmentOut {
        device,
        address: segment.address,
        total_size: segment.total_size,
        allocated_size: segment.allocated_size(),
        active_size: segment.active_size(),
        requested_size: segment.requested_size(),
        stream: segment.stream.0,
        segment_type: if segment.small { "small" } else { "large" },
        segment_pool_id: (0, 0),
        is_expandable: segment.expandable,
        frames: &[],
        blocks,
    })
}

fn entry_out(timed: &TimedEvent) -> EntryOut {
    let event = timed.event;
    let oom = event.action == Action::Oom;
    EntryOut {
        action: event.action.name(),
        addr: (!oom).then_some(event.address),
        device_free: oom.then_some(event.address),
        size: event.size,
        stream: event.stream.0,
        time_us: timed.time_us,
        compile_context: "N/A",
        user_metadata: "",
    }
}

/// The settings as PyTorch lists them: the text as it is, and of its keys those that have a field.
fn settings_out(conf: &str) -> SettingsOut<'_> {
    const MIB: i64 = 1 << 20;
    let value = |key: &str| {
        let pairs = conf.split(',').filter_map(|pair| pair.split_once(':'));
        pairs.filter(|(found, _)| found.trim() == key).map(|(_, value)| value.trim()).last()
    };
    let split = value("max_split_size_mb").and_then(|value| value.parse::<i64>().ok());
    SettingsOut {
        conf,
        max_split_size: split.and_then(|value| value.checked_mul(MIB)).unwrap_or(-1),
        garbage_collection_threshold: value("garbage_collection_threshold")
            .and_then(|value| value.parse().ok())
            .unwrap_or(0.0),
        expandable_segments: value("expandable_segments") == Some("True"),
        pinned_num_register_threads: 1,
        release_lock_on_cudamalloc: false,
        pinned_use_cuda_host_register: false,
        graph_capture_record_stream_reuse: false,
        roundup_power2_divisions: (0..=LAST_ROUNDUP.ilog2()).map(|bit| ((1u32 << bit).to_string(), 0)).collect(),
    }
}

//! Writes snapshots that PyTorch's tools read: `python -m torch.cuda._memory_viz` and pytorch.org/memory_viz.
//!
//! Owns: the keys that are written, as JSON and as a pickle. The pickle has protocol 2 without objects, which the
//! viewer's own unpickler reads.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use serde::{Serialize, Serializer};

use super::raw::{MAX_DEVICES, SMALL};
use crate::error::{Place, TraceError};
use seamalloc::flight::{Flight, TimedEvent};
use seamalloc::observer::Action;
use seamalloc::snapshot::{SegmentInfo, Snapshot};

/// The name of the snapshot in errors.
const FILE: &str = "snapshot";

/// The last of PyTorch's roundup intervals, in MiB. The intervals are the powers of two up to this number.
const LAST_ROUNDUP: u32 = 32768;

#[derive(Serialize)]
struct SnapshotOut<'a> {
    segments: Vec<SegmentOut<'a>>,
    device_traces: Vec<Vec<EntryOut>>,
    allocator_settings: SettingsOut<'a>,
    external_annotations: &'a [()],
}

/// A number that the viewer can compute with, pickled in at most 8 bytes. From a longer number the viewer makes a
/// BigInt, which the viewer's arithmetic does not support. `serde_pickle` writes a `u64` in 9 bytes.
struct Number(u64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match i64::try_from(self.0) {
            Ok(number) => serializer.serialize_i64(number),
            Err(_) => serializer.serialize_u64(self.0),
        }
    }
}

#[derive(Serialize)]
struct SegmentOut<'a> {
    device: u32,
    address: Number,
    total_size: Number,
    allocated_size: Number,
    active_size: Number,
    requested_size: Number,
    stream: Number,
    segment_type: &'static str,
    segment_pool_id: (Number, Number),
    is_expandable: bool,
    frames: &'a [()],
    blocks: Vec<BlockOut<'a>>,
}

#[derive(Serialize)]
struct BlockOut<'a> {
    address: Number,
    size: Number,
    requested_size: Number,
    state: &'static str,
    /// The spilled bytes. The key is seamalloc's own, and is written only if it has a value.
    #[serde(skip_serializing_if = "Option::is_none")]
    spilled: Option<Number>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    asleep: bool,
    frames: &'a [()],
}

#[derive(Serialize)]
struct EntryOut {
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    addr: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_free: Option<Number>,
    size: Number,
    stream: Number,
    time_us: Number,
    compile_context: &'static str,
    user_metadata: &'static str,
}

#[derive(Serialize)]
struct SettingsOut<'a> {
    #[serde(rename = "PYTORCH_CUDA_ALLOC_CONF")]
    conf: &'a str,
    /// The size in bytes; -1 if there is no limit.
    max_split_size: i64,
    garbage_collection_threshold: f64,
    expandable_segments: bool,
    pinned_num_register_threads: u32,
    release_lock_on_cudamalloc: bool,
    pinned_use_cuda_host_register: bool,
    graph_capture_record_stream_reuse: bool,
    roundup_power2_divisions: BTreeMap<String, u32>,
    /// The counts of a history that the flight recorder kept. PyTorch's tools show them among the settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    flight_recorder: Option<FlightOut>,
}

#[derive(Serialize)]
struct FlightOut {
    operations: Number,
    overwritten: Number,
    capacity: Number,
}

/// Writes an allocator's snapshot and the history that led to it as JSON, which the current viewer reads.
///
/// The viewer plays the history backwards from the snapshot, so the snapshot and the history must be taken at the same
/// moment.
///
/// # Errors
/// The blocks of a segment leave a gap in it or overlap, the device's number is above 1023, or `out` cannot be written.
pub fn write_snapshot_json(snapshot: &Snapshot, history: &[TimedEvent], out: impl Write) -> Result<(), TraceError> {
    let content = content(snapshot, history, None)?;
    let mut out = BufWriter::new(out);
    serde_json::to_writer(&mut out, &content).map_err(|error| TraceError::io(FILE, error.into()))?;
    out.flush().map_err(|error| TraceError::io(FILE, error))
}

/// Writes a snapshot and its history, as [`write_snapshot_json`] does, as a pickle, which PyTorch's script
/// `_memory_viz.py` and every version of the viewer read.
///
/// # Errors
/// The errors of [`write_snapshot_json`].
pub fn write_snapshot_pickle(snapshot: &Snapshot, history: &[TimedEvent], out: impl Write) -> Result<(), TraceError> {
    write_pickle(&content(snapshot, history, None)?, out)
}

/// Writes the flight recorder's history as [`write_snapshot_pickle`] does. Under `flight_recorder`,
/// `allocator_settings` has the number of `operations`, the number of `overwritten` ones, and the `capacity`.
///
/// # Errors
/// The errors of [`write_snapshot_json`].
pub fn write_flight_pickle(flight: &Flight, out: impl Write) -> Result<(), TraceError> {
    let Flight { operations, overwritten, capacity, .. } = *flight;
    let [operations, overwritten, capacity] = [operations, overwritten, capacity].map(Number);
    let known = FlightOut { operations, overwritten, capacity };
    write_pickle(&content(&flight.snapshot, &flight.events, Some(known))?, out)
}

fn write_pickle(content: &SnapshotOut<'_>, out: impl Write) -> Result<(), TraceError> {
    let mut out = BufWriter::new(out);
    serde_pickle::to_writer(&mut out, content, serde_pickle::SerOptions::new().proto_v2()).map_err(|error| {
        let error = match error {
            serde_pickle::Error::Io(error) => error,
            other => io::Error::other(other),
        };
        TraceError::io(FILE, error)
    })?;
    out.flush().map_err(|error| TraceError::io(FILE, error))
}

fn content<'a>(
    snapshot: &'a Snapshot,
    history: &[TimedEvent],
    flight: Option<FlightOut>,
) -> Result<SnapshotOut<'a>, TraceError> {
    // Before the device's history, `device_traces` has an empty list for each device with a lower number. So the number
    // is bounded.
    if snapshot.device as usize >= MAX_DEVICES {
        return Err(TraceError::TooLarge { file: FILE.to_owned(), limit: MAX_DEVICES as u64, unit: "devices" });
    }
    let segments = snapshot.segments.iter().enumerate();
    let segments = segments.map(|(index, segment)| segment_out(snapshot.device, index, segment));
    let mut device_traces: Vec<Vec<EntryOut>> = (0..snapshot.device).map(|_| Vec::new()).collect();
    let history = history.iter().filter(|timed| timed.event.action.is_of_pytorch());
    device_traces.push(history.map(entry_out).collect());
    Ok(SnapshotOut {
        segments: segments.collect::<Result<_, _>>()?,
        device_traces,
        allocator_settings: settings_out(&snapshot.settings, flight),
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
            address: Number(block.address),
            size: Number(block.size),
            requested_size: Number(block.requested_size),
            state: block.state.name(),
            spilled: (block.spilled > 0).then_some(Number(block.spilled)),
            asleep: block.asleep,
            frames: &[],
        });
    }
    if next.checked_sub(segment.address) != Some(segment.total_size) {
        return Err(wrong(format!("blocks up to {next:#x}"), format!("blocks that tile {} bytes", segment.total_size)));
    }
    Ok(SegmentOut {
        device,
        address: Number(segment.address),
        total_size: Number(segment.total_size),
        allocated_size: Number(segment.allocated_size()),
        active_size: Number(segment.active_size()),
        requested_size: Number(segment.requested_size()),
        stream: Number(segment.stream.0),
        segment_type: if segment.small { SMALL } else { "large" },
        segment_pool_id: (Number(segment.pool.0), Number(segment.pool.1)),
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
        addr: (!oom).then_some(Number(event.address)),
        device_free: oom.then_some(Number(event.address)),
        size: Number(event.size),
        stream: Number(event.stream.0),
        time_us: Number(timed.time_us),
        compile_context: "N/A",
        user_metadata: "",
    }
}

/// Returns the settings in PyTorch's form: the unchanged text, and the options of the text that have fields of their
/// own.
fn settings_out(conf: &str, flight_recorder: Option<FlightOut>) -> SettingsOut<'_> {
    const MIB: i64 = 1 << 20;
    let value = |key: &str| {
        let pairs = conf.split(',').filter_map(|pair| pair.split_once(':'));
        pairs.filter(|(found, _)| found.trim() == key).map(|(_, value)| value.trim()).next_back()
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
        flight_recorder,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use seamalloc::PoolId;

    use super::super::read::read_snapshot;
    use super::*;
    use crate::builder::tests::valid_trace;
    use crate::trace::{Trace, TraceEvent};
    use seamalloc::driver::StreamId;
    use seamalloc::observer::Event;
    use seamalloc::snapshot::{BlockInfo, BlockState};

    /// The distance between segments, which is enough for the largest block.
    const SPACING: u64 = 1 << 48;

    /// Returns a history with the events of a trace, and a snapshot of its end: every live block in a segment of its
    /// own.
    fn history_of(trace: &Trace, device: u32) -> (Snapshot, Vec<TimedEvent>) {
        let mut blocks: Vec<(u64, StreamId, BlockState)> = Vec::new();
        let mut history = Vec::new();
        for (index, event) in trace.events.iter().enumerate() {
            let (action, block) = match *event {
                TraceEvent::Alloc { size, stream } => {
                    blocks.push((size, trace.streams[stream as usize], BlockState::ActiveAllocated));
                    (Action::Alloc, blocks.len() - 1)
                }
                TraceEvent::FreeRequested { block } => (Action::FreeRequested, block as usize),
                TraceEvent::FreeCompleted { block } => (Action::FreeCompleted, block as usize),
            };
            let (size, stream, state) = &mut blocks[block];
            *state = match action {
                Action::Alloc => BlockState::ActiveAllocated,
                Action::FreeRequested => BlockState::ActivePendingFree,
                _ => BlockState::Inactive,
            };
            let event = Event {
                action,
                address: (block as u64 + 1) * SPACING,
                size: *size,
                stream: *stream,
                pool: PoolId::NONE,
            };
            history.push(TimedEvent { event, time_us: 1_795_239_067_166_928 + index as u64 });
        }
        let oom = Event { action: Action::Oom, address: 1 << 35, size: 7, stream: StreamId(0), pool: PoolId::NONE };
        history.push(TimedEvent { event: oom, time_us: 0 });
        let live = blocks.iter().enumerate().filter(|(_, block)| block.2 != BlockState::Inactive);
        let segments = live.map(|(index, &(requested_size, stream, state))| {
            let address = (index as u64 + 1) * SPACING;
            let size = requested_size.next_multiple_of(512);
            let rest = BlockInfo { address: address + size, size: 512, requested_size: 0, ..BlockInfo::default() };
            SegmentInfo {
                address,
                total_size: size + 512,
                stream,
                small: size <= 1 << 20,
                expandable: index % 2 == 0,
                pool: PoolId(0, index as u64),
                blocks: vec![BlockInfo { address, size, requested_size, state, ..rest }, rest],
            }
        });
        let settings = "max_split_size_mb:512,expandable_segments:True".to_owned();
        (Snapshot { device, segments: segments.collect(), settings }, history)
    }

    fn pickled(snapshot: &Snapshot, history: &[TimedEvent]) -> Vec<u8> {
        let mut pickle = Vec::new();
        write_snapshot_pickle(snapshot, history, &mut pickle).unwrap();
        pickle
    }

    /// Parses a pickle with the opcodes that the viewer knows (PyTorch's MemoryViz.js, `unpickle`). Returns the number
    /// of values that the fullest APPENDS adds, since the viewer spreads them into the arguments of one call.
    fn fullest_appends(pickle: &[u8]) -> usize {
        let (mut at, mut height, mut marks, mut fullest) = (0, 0usize, Vec::new(), 0);
        loop {
            let opcode = pickle[at];
            at += 1;
            match opcode {
                0x80 => {
                    assert!((2..=4).contains(&pickle[at]));
                    at += 1;
                }
                b'.' => return fullest,
                b'(' => marks.push(height),
                b'e' | b'u' => {
                    let mark = marks.pop().unwrap();
                    if opcode == b'e' {
                        fullest = fullest.max(height - mark);
                    }
                    height = mark;
                }
                b't' => height = marks.pop().unwrap() + 1,
                b'}' | b']' | 0x88 | 0x89 => height += 1,
                b'K' | b'M' | b'J' | b'G' => {
                    at += match opcode {
                        b'K' => 1,
                        b'M' => 2,
                        b'J' => 4,
                        _ => 8,
                    };
                    height += 1;
                }
                0x8a => {
                    assert!((1..=8).contains(&pickle[at]), "the viewer makes no number of it");
                    at += 1 + usize::from(pickle[at]);
                    height += 1;
                }
                b'X' => {
                    at += 4 + u32::from_le_bytes(pickle[at..at + 4].try_into().unwrap()) as usize;
                    height += 1;
                }
                other => panic!("opcode {other:#x} at byte {}", at - 1),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn round_trip(trace in valid_trace(), device in 0u32..3) {
            let (snapshot, history) = history_of(&trace, device);
            let mut json = Vec::new();
            write_snapshot_json(&snapshot, &history, &mut json).unwrap();
            let pickle = pickled(&snapshot, &history);
            for written in [json, pickle] {
                let read = read_snapshot(&written).unwrap();
                prop_assert_eq!(&read.snapshots, std::slice::from_ref(&snapshot));
                prop_assert_eq!(&read.traces[0].events, &trace.events);
                prop_assert_eq!(&read.traces[0].streams, &trace.streams);
                prop_assert_eq!(&read.traces[0].meta["device"], device);
                prop_assert_eq!(read.traces.len(), 1);
            }
        }
    }

    #[test]
    fn the_viewer_knows_every_opcode() {
        let event = Event {
            action: Action::Alloc,
            address: 0x7fe2_a400_0000,
            size: 1 << 33,
            stream: StreamId(1 << 40),
            pool: PoolId::NONE,
        };
        let history: Vec<TimedEvent> = (0..2500).map(|time_us| TimedEvent { event, time_us: time_us << 40 }).collect();
        let segment = SegmentInfo {
            address: 0x7fe2_a400_0000,
            total_size: 0,
            stream: StreamId(0),
            small: true,
            expandable: false,
            pool: PoolId::NONE,
            blocks: Vec::new(),
        };
        let snapshot = Snapshot { device: 1, segments: vec![segment], settings: String::new() };
        assert_eq!(fullest_appends(&pickled(&snapshot, &history)), 1000);
        assert_eq!(fullest_appends(&pickled(&Snapshot::default(), &[])), 1);
    }

    /// PyTorch's viewer fails on unknown events, and ignores unknown keys of blocks.
    #[test]
    fn what_is_spilled_or_sleeps_has_keys_of_its_own_and_no_events() {
        let block = BlockInfo { address: 0, size: 512, state: BlockState::ActiveAllocated, ..BlockInfo::default() };
        let spilled = BlockInfo { spilled: 200, ..block };
        let asleep = BlockInfo { address: 512, asleep: true, ..block };
        let segment = SegmentInfo {
            address: 0,
            total_size: 1024,
            stream: StreamId(0),
            small: false,
            expandable: true,
            pool: PoolId::NONE,
            blocks: vec![spilled, asleep],
        };
        let snapshot = Snapshot { segments: vec![segment], ..Snapshot::default() };
        let event = |action| Event { action, address: 0, size: 512, stream: StreamId(0), pool: PoolId::NONE };
        let history = [Action::Spilled, Action::SegmentMap, Action::Returned, Action::Asleep, Action::Awake]
            .map(|action| TimedEvent { event: event(action), time_us: 0 });
        let mut json = Vec::new();
        write_snapshot_json(&snapshot, &history, &mut json).unwrap();
        for file in [pickled(&snapshot, &history), json.clone()] {
            assert_eq!(read_snapshot(&file).unwrap().snapshots, std::slice::from_ref(&snapshot));
        }
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json["device_traces"][0].as_array().unwrap().len(), 1);
        let blocks = &json["segments"][0]["blocks"];
        assert_eq!((&blocks[0]["spilled"], &blocks[1]["asleep"]), (&200.into(), &true.into()));
        assert!(blocks[0].get("asleep").is_none() && blocks[1].get("spilled").is_none(), "{blocks}");
    }

    #[test]
    fn an_independent_reader_finds_every_key() {
        let trace = Trace {
            streams: vec![StreamId(0)],
            events: vec![TraceEvent::Alloc { size: 700, stream: 0 }, TraceEvent::FreeRequested { block: 0 }],
            ..Trace::default()
        };
        let (snapshot, history) = history_of(&trace, 1);
        let pickle: serde_json::Value =
            serde_pickle::from_slice(&pickled(&snapshot, &history), serde_pickle::DeOptions::new()).unwrap();
        let mut json = Vec::new();
        write_snapshot_json(&snapshot, &history, &mut json).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(pickle, json);
        assert_eq!(json["device_traces"][0], serde_json::json!([]));
        assert_eq!(json["device_traces"][1][2]["device_free"], 1u64 << 35);
        assert_eq!(json["device_traces"][1][2].get("addr"), None);
        assert_eq!(json["external_annotations"], serde_json::json!([]));
        let segment = &json["segments"][0];
        assert_eq!(segment["segment_pool_id"], serde_json::json!([0, 0]));
        assert_eq!((&segment["allocated_size"], &segment["active_size"]), (&0.into(), &1024.into()));
        assert_eq!((&segment["requested_size"], &segment["segment_type"]), (&700.into(), &"small".into()));
        let settings = &json["allocator_settings"];
        assert_eq!(settings.as_object().unwrap().len(), 9);
        assert_eq!(settings["max_split_size"], 512u64 << 20);
        assert_eq!(settings["expandable_segments"], true);
        assert_eq!(settings["roundup_power2_divisions"].as_object().unwrap().len(), 16);
    }

    #[test]
    fn segments_that_are_not_tiled_are_not_written() {
        let state = BlockState::ActiveAllocated;
        let block = BlockInfo { address: 512, size: 512, requested_size: 1, state, ..BlockInfo::default() };
        let segment = |address, total_size| Snapshot {
            segments: vec![SegmentInfo {
                address,
                total_size,
                stream: StreamId(0),
                small: true,
                expandable: false,
                pool: PoolId::NONE,
                blocks: vec![block],
            }],
            ..Snapshot::default()
        };
        write_snapshot_json(&segment(512, 512), &[], Vec::new()).unwrap();
        for wrong in [segment(0, 1024), segment(512, 1024)] {
            let error = write_snapshot_json(&wrong, &[], Vec::new()).unwrap_err();
            assert!(matches!(error, TraceError::Malformed { place: Place::Segment(0), .. }), "{error}");
        }
    }
}

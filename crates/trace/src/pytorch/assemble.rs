//! Converts the raw form of a snapshot file, read from pickle or JSON, to snapshots and traces.
//!
//! Owns: the checks of the values.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::contents::{PyTorchSnapshot, reserved};
use super::raw::{MAX_DEVICES, RawBlock, RawSegment, RawSnapshot};
use crate::builder::trace_bytes;
use crate::error::{Place, RuleError, TraceError};
use crate::history::trace_of_history;
use crate::memory::{Memory, list_bytes};
use crate::trace::Trace;
use crate::whatif::FREE_BEYOND_LIMIT;
use seamalloc::PoolId;
use seamalloc::driver::StreamId;
use seamalloc::observer::{Action, Event};
use seamalloc::snapshot::{BlockInfo, BlockState, SegmentInfo, Snapshot};

/// Checks the raw snapshot and sorts it by device. The memory is charged to the account, which already includes the raw
/// form.
pub(super) fn assemble(
    file: &str,
    name: &str,
    raw: RawSnapshot,
    mut memory: Memory,
) -> Result<PyTorchSnapshot, TraceError> {
    let too_much = |error| TraceError::memory(file, error);
    let settings = raw.settings.get("PYTORCH_CUDA_ALLOC_CONF").and_then(Value::as_str).unwrap_or_default();
    let highest = raw.segments.iter().map(|segment| segment.device as usize).max().unwrap_or(0);
    if raw.traces.len().max(highest.saturating_add(1)) > MAX_DEVICES {
        return Err(TraceError::TooLarge { file: file.to_owned(), limit: MAX_DEVICES as u64, unit: "devices" });
    }
    let mut devices: BTreeMap<u32, Snapshot> = BTreeMap::new();
    let empty = |device| Snapshot { device, segments: Vec::new(), settings: settings.to_owned() };
    for (index, segment) in raw.segments.into_iter().enumerate() {
        let device = segment.device;
        let blocks = list_bytes::<RawBlock>(segment.blocks.capacity());
        let before = memory.held();
        let segment = checked_segment(file, index, segment, &mut memory)?;
        memory.settle(before.saturating_sub(blocks), list_bytes::<BlockInfo>(segment.blocks.capacity()));
        let segments = &mut devices.entry(device).or_insert_with(|| empty(device)).segments;
        memory.push(segments, segment).map_err(too_much)?;
    }
    let is_use = |event: &Option<Event>| {
        event.is_some_and(|e| matches!(e.action, Action::Alloc | Action::FreeRequested | Action::FreeCompleted))
    };
    let mut used = Vec::new();
    for (device, trace) in raw.traces.iter().enumerate().filter(|(_, trace)| trace.iter().any(is_use)) {
        let ordinal = u32::try_from(device).unwrap_or(u32::MAX);
        devices.entry(ordinal).or_insert_with(|| empty(ordinal));
        used.push((device, ordinal, trace));
    }
    // Each trace has a copy of the settings.
    let copies = json_bytes(&raw.settings).saturating_mul(used.len() as u64);
    memory.charge(copies).map_err(too_much)?;
    let mut traces: Vec<Trace> = Vec::new();
    for &(device, ordinal, history) in &used {
        let held = devices.get(&ordinal);
        let mut meta = Map::new();
        meta.insert("source".to_owned(), "pytorch snapshot".into());
        meta.insert("device".to_owned(), ordinal.into());
        meta.insert("reserved".to_owned(), held.map_or(0, reserved).into());
        let known = reserved_in(held.map_or(0, reserved), history);
        meta.insert("reserved_before".to_owned(), known.before.into());
        meta.insert("peak_reserved".to_owned(), known.peak.into());
        if let Some(available) = known.available {
            meta.insert("available_memory".to_owned(), available.into());
        }
        if let Some(free) = known.free_beyond_limit {
            meta.insert(FREE_BEYOND_LIMIT.to_owned(), free.into());
        }
        meta.insert("allocator_settings".to_owned(), raw.settings.clone());
        let name = if used.len() > 1 { format!("{name}.dev{ordinal}") } else { name.to_owned() };
        let trace = trace_of_history(&name, meta, history.iter().copied(), held, memory);
        let trace = trace.map_err(|(index, rule)| history_error(file, device, index, history.len(), rule))?;
        memory.charge(trace_bytes(&trace)).map_err(too_much)?;
        traces.push(trace);
    }
    let mut snapshots: Vec<Snapshot> = devices.into_values().collect();
    // The sort is in place, since a stable sort allocates half of the list again. Two segments of a process never have
    // the same address.
    snapshots.iter_mut().for_each(|snapshot| snapshot.segments.sort_unstable_by_key(|segment| segment.address));
    Ok(PyTorchSnapshot { snapshots, traces })
}

/// The bytes that the allocator held, according to a history.
struct Reserved {
    /// The bytes held before the history.
    before: u64,
    /// The most bytes held during the history.
    peak: u64,
    /// When memory ran out: the bytes that the allocator held plus the bytes that the device had free. If memory ran
    /// out several times, the largest sum; `None` if it did not run out.
    available: Option<u64>,
    /// The most bytes that the device had free when a limit on PyTorch's memory refused a request; `None` if none did.
    free_beyond_limit: Option<u64>,
}

/// Reads a history backwards. At the history's end, the allocator holds `held` bytes.
fn reserved_in(held: u64, history: &[Option<Event>]) -> Reserved {
    let (mut now, mut peak, mut available, mut free_beyond_limit) = (held, held, None, None);
    for event in history.iter().rev().flatten() {
        match event.action {
            Action::SegmentAlloc | Action::SegmentMap => now = now.saturating_sub(event.size),
            Action::SegmentFree | Action::SegmentUnmap => now = now.saturating_add(event.size),
            // If the device had enough free memory, a limit on PyTorch's memory refused the request. Then only the
            // bytes that the allocator held count as available.
            Action::Oom if event.address >= most_taken(event.size) => {
                available = available.max(Some(now));
                free_beyond_limit = free_beyond_limit.max(Some(event.address));
            }
            Action::Oom => available = available.max(Some(now.saturating_add(event.address))),
            _ => {}
        }
        peak = peak.max(now);
    }
    Reserved { before: now, peak, available: available.map(|bytes| bytes.max(peak)), free_beyond_limit }
}

/// Returns the most bytes that PyTorch's allocators take from the device for a request of `size` bytes.
fn most_taken(size: u64) -> u64 {
    /// The size of a segment that PyTorch makes for requests of up to 10 MiB. Larger requests are rounded up to whole
    /// granules.
    const SEGMENT: u64 = 20 << 20;
    const GRANULE: u64 = 2 << 20;
    size.max(SEGMENT).checked_next_multiple_of(GRANULE).unwrap_or(u64::MAX)
}

fn history_error(file: &str, device: usize, index: usize, length: usize, rule: RuleError) -> TraceError {
    let place = if index < length { Place::Entry { device, index } } else { Place::Whole };
    TraceError::rule(file, place, rule)
}

/// Returns the most heap bytes that a value of the settings takes.
fn json_bytes(value: &Value) -> u64 {
    /// The bytes of a B-tree node with names and values. All nodes except the root have at least five entries.
    const NODE: u64 = 768;
    const LEAST_OF_NODE: u64 = 5;
    match value {
        Value::Object(map) => {
            let nodes = (map.len() as u64).div_ceil(LEAST_OF_NODE).saturating_mul(NODE);
            let inner = map.iter().map(|(key, value)| list_bytes::<u8>(key.len()).saturating_add(json_bytes(value)));
            inner.fold(nodes, u64::saturating_add)
        }
        Value::Array(list) => list.iter().map(json_bytes).fold(list_bytes::<Value>(list.len()), u64::saturating_add),
        Value::String(text) => list_bytes::<u8>(text.len()),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

fn checked_segment(file: &str, index: usize, raw: RawSegment, memory: &mut Memory) -> Result<SegmentInfo, TraceError> {
    let wrong = |found: String, expected: &str| TraceError::malformed(file, Place::Segment(index), found, expected);
    let end = raw.address.checked_add(raw.total_size);
    let end =
        end.ok_or_else(|| wrong(format!("{} bytes at {:#x}", raw.total_size, raw.address), "64-bit addresses"))?;
    let mut next = raw.address;
    let mut blocks = Vec::new();
    memory.room(&mut blocks, raw.blocks.len()).map_err(|error| TraceError::memory(file, error))?;
    for block in raw.blocks {
        let address = block.address.unwrap_or(next);
        let after = address.checked_add(block.size).filter(|&after| address >= next && after <= end);
        next = after.ok_or_else(|| {
            wrong(format!("a block of {} bytes at {address:#x}", block.size), "blocks in order inside of the segment")
        })?;
        let requested_size = block.requested_size.unwrap_or(block.size);
        if block.state != BlockState::Inactive && requested_size > block.size {
            let found = format!("a block of {} bytes of which {requested_size} were requested", block.size);
            return Err(wrong(found, "no more than its size"));
        }
        if block.spilled > block.size {
            return Err(wrong(format!("{} spilled bytes of {}", block.spilled, block.size), "no more than its size"));
        }
        let RawBlock { size, state, spilled, asleep, .. } = block;
        blocks.push(BlockInfo { address, size, requested_size, state, spilled, asleep });
    }
    Ok(SegmentInfo {
        address: raw.address,
        total_size: raw.total_size,
        stream: StreamId(raw.stream),
        small: raw.small,
        expandable: raw.is_expandable,
        pool: PoolId(raw.segment_pool_id.0, raw.segment_pool_id.1),
        blocks,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::raw::MAX_SETTINGS;
    use super::super::read::read_snapshot;
    use super::*;
    use crate::read::read_bytes;

    /// Returns the value as JSON and as a pickle.
    fn both(value: &Value) -> [Vec<u8>; 2] {
        let pickle = serde_pickle::to_vec(value, serde_pickle::SerOptions::new().proto_v2()).unwrap();
        [serde_json::to_vec(value).unwrap(), pickle]
    }

    fn entry(action: &str, addr: u64) -> Value {
        json!({"action": action, "addr": addr, "size": 8, "stream": 0, "time_us": 1, "frames": [{"name": "f"}]})
    }

    fn snapshot(segments: Value, traces: Value) -> Value {
        json!({"segments": segments, "device_traces": traces, "allocator_settings": {"a": {"b": [1, true, null, 0.5]}}})
    }

    #[test]
    fn every_device_with_a_history_has_its_trace() {
        let used = json!([entry("alloc", 512), entry("annotate", 0), entry("free_requested", 512)]);
        let idle = json!([{"action": "oom", "device_free": 9, "size": 8, "stream": 0}]);
        for bytes in both(&snapshot(json!([]), json!([used.clone(), [], idle, used]))) {
            let traces = read_bytes("job.snapshot.pickle", &bytes).unwrap();
            let names: Vec<&str> = traces.iter().map(|trace| trace.name.as_str()).collect();
            assert_eq!(names, ["job.dev0", "job.dev3"]);
            assert_eq!(traces[1].events.len(), 2);
            assert_eq!(traces[1].meta["device"], 3);
            assert_eq!(traces[1].meta["allocator_settings"]["a"]["b"], json!([1, true, null, 0.5]));
        }
    }

    #[test]
    fn where_memory_ran_out_the_devices_size_is_known() {
        let of = |action: &str, size: u64| json!({"action": action, "addr": 1 << 30, "size": size, "stream": 0});
        let oom = json!({"action": "oom", "device_free": 30, "size": 50, "stream": 0});
        let used = [entry("alloc", 512), entry("free_requested", 512), entry("free_completed", 512)];
        let held = [of("segment_alloc", 60), of("segment_free", 60)];
        let history = json!([[used[0], used[1], used[2], held[0], oom, held[1]]]);
        for bytes in both(&snapshot(json!([]), history)) {
            let trace = &read_bytes("t", &bytes).unwrap()[0];
            assert_eq!((&trace.meta["available_memory"], &trace.meta["peak_reserved"]), (&json!(90), &json!(60)));
        }
        for bytes in both(&snapshot(json!([]), json!([used]))) {
            assert_eq!(read_bytes("t", &bytes).unwrap()[0].meta.get("available_memory"), None);
        }
    }

    #[test]
    fn what_is_no_snapshot_says_what_was_expected() {
        for value in [json!({"segments": []}), json!({"device_traces": []}), json!({"state_dict": {}})] {
            for bytes in both(&value) {
                let error = read_bytes("t", &bytes).unwrap_err().to_string();
                assert!(error.contains("_dump_snapshot"), "{error}");
            }
        }
        let list = serde_pickle::to_vec(&[1, 2], serde_pickle::SerOptions::new()).unwrap();
        let error = read_bytes("t", &list).unwrap_err().to_string();
        assert!(error.contains("found a list, expected a dict with the keys segments"), "{error}");
        let error = read_bytes("t", b"{\"segments\":\n [}").unwrap_err();
        assert!(matches!(error, TraceError::Malformed { place: Place::LineColumn(2, 3), .. }), "{error}");
        assert!(read_snapshot(b"hello").is_err() && read_snapshot(b"").is_err());
    }

    #[test]
    fn a_snapshot_without_history_tells_how_to_record_one() {
        let segment = json!({"device": 0, "address": 512, "total_size": 512, "stream": 3, "segment_type": "small",
            "blocks": [{"size": 512, "state": "active_allocated"}]});
        for bytes in both(&snapshot(json!([segment]), json!([[], []]))) {
            let error = read_bytes("t", &bytes).unwrap_err().to_string();
            assert!(error.contains("torch.cuda.memory._record_memory_history"), "{error}");
            let read = read_snapshot(&bytes).unwrap();
            assert_eq!((read.reserved_bytes(), read.traces.len()), (512, 0));
            assert_eq!(read.snapshots[0].segments[0].blocks[0].address, 512);
        }
    }

    #[test]
    fn wrong_entries_are_named() {
        let good = entry("alloc", 512);
        for wrong in [
            json!({"action": "alloc", "addr": -1, "size": 8, "stream": 0}),
            json!({"action": "alloc", "addr": 512, "size": "8", "stream": 0}),
            json!({"action": "alloc", "size": 8, "stream": 0}),
            json!({"action": "alloc", "addr": 512, "stream": 0}),
            json!({"action": 3, "addr": 512, "size": 8, "stream": 0}),
            json!({"addr": 512}),
            json!([1]),
        ] {
            let [json, pickle] = both(&snapshot(json!([]), json!([[], [good, wrong]])));
            let error = read_bytes("t", &json).unwrap_err();
            assert!(matches!(error, TraceError::Malformed { place: Place::LineColumn(1, _), .. }), "{error}");
            let error = read_bytes("t", &pickle).unwrap_err();
            let place = Place::Entry { device: 1, index: 1 };
            assert!(matches!(error, TraceError::Malformed { place: found, .. } if found == place), "{error}");
        }
    }

    #[test]
    fn an_impossible_history_is_named_by_its_entry() {
        let twice = json!([[entry("snapshot", 0), entry("alloc", 512), entry("alloc", 512)]]);
        for bytes in both(&snapshot(json!([]), twice)) {
            let error = read_bytes("t", &bytes).unwrap_err();
            let place = Place::Entry { device: 0, index: 2 };
            assert!(
                matches!(error, TraceError::Rule { place: p, source: RuleError::Reused(512), .. } if p == place),
                "{error}"
            );
        }
    }

    #[test]
    fn wrong_segments_are_named() {
        let block =
            |size: u64, requested: u64, state: &str| json!({"size": size, "requested_size": requested, "state": state});
        let segment = |address: u64, total: u64, block: Value| json!({"address": address, "total_size": total, "blocks": [block]});
        for wrong in [
            segment(u64::MAX, 512, block(512, 1, "inactive")),
            segment(0, 512, block(513, 1, "inactive")),
            segment(0, 512, block(u64::MAX, 1, "inactive")),
            segment(0, 512, block(512, 513, "active_allocated")),
            segment(0, 512, json!({"size": 512, "spilled": 513, "state": "active_allocated"})),
        ] {
            for bytes in both(&snapshot(json!([wrong]), json!([]))) {
                let error = read_snapshot(&bytes).unwrap_err();
                assert!(matches!(error, TraceError::Malformed { place: Place::Segment(0), .. }), "{error}");
            }
        }
        for bytes in both(&snapshot(json!([segment(0, 512, block(512, 1, "gone"))]), json!([]))) {
            let error = read_snapshot(&bytes).unwrap_err().to_string();
            assert!(error.contains("gone") && error.contains("active_pending_free or inactive"), "{error}");
        }
    }

    #[test]
    fn json_that_nests_or_multiplies_is_refused() {
        for key in ["segments", "device_traces", "allocator_settings", "other"] {
            let json = format!("{{\"{key}\": {}", "[".repeat(100_000));
            let error = read_snapshot(json.as_bytes()).unwrap_err();
            assert!(matches!(error, TraceError::Malformed { .. }), "{error}");
        }
        let many = json!({"segments": [], "device_traces": [], "allocator_settings": vec![0; MAX_SETTINGS]});
        let long = json!({"segments": [], "device_traces": [], "allocator_settings": {"a": "x".repeat(100_000)}});
        for bytes in both(&many).into_iter().chain(both(&long)) {
            let error = read_snapshot(&bytes).unwrap_err();
            assert!(error.to_string().contains("more than 1024 values in allocator_settings"), "{error}");
        }
    }

    #[test]
    fn lists_in_several_places_do_not_multiply() {
        // device_traces has a thousand references to one list with a thousand references to one dict. segments has the
        // same form.
        let entry = b"}(X\x06\x00\x00\x00actionX\x05\x00\x00\x00allocX\x04\x00\x00\x00addrK\x01X\x04\x00\x00\x00sizeK\x01X\x06\x00\x00\x00streamK\x00u";
        let mut pickle = b"\x80\x04}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces](](".to_vec();
        pickle.extend(entry);
        pickle.push(0x94);
        (1..1000).for_each(|_| pickle.extend(b"h\x00"));
        pickle.extend(b"e\x94");
        (1..1000).for_each(|_| pickle.extend(b"h\x01"));
        pickle.extend(b"eu.");
        let error = read_snapshot(&pickle).unwrap_err();
        assert!(error.to_string().contains("stands in several places"), "{error}");
    }

    #[test]
    fn devices_are_bounded() {
        let far = json!({"device": u32::MAX, "address": 0, "total_size": 0, "blocks": []});
        for value in [snapshot(json!([far]), json!([])), snapshot(json!([]), json!(vec![json!([]); 1025]))] {
            for bytes in both(&value) {
                let error = read_snapshot(&bytes).unwrap_err();
                assert!(matches!(error, TraceError::TooLarge { unit: "devices", .. }), "{error}");
            }
        }
    }

    #[test]
    fn settings_that_multiply_are_bounded() {
        // allocator_settings has lists that each contain the previous list ten times. Copies of the lists would be 10^7
        // values.
        let mut pickle = b"\x80\x04}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces]".to_vec();
        pickle.extend(b"X\x12\x00\x00\x00allocator_settings]\x94");
        for id in 0..7 {
            pickle.push(b'(');
            (0..10).for_each(|_| pickle.extend([b'h', id]));
            pickle.extend(b"l\x94");
        }
        // All eight lists are still on the stack. The opcodes drop the lists and push the last one again, from the
        // memo.
        pickle.extend(b"00000000h\x07u.");
        let error = read_snapshot(&pickle).unwrap_err();
        assert!(error.to_string().contains("more than 1024 values in allocator_settings"), "{error}");
    }
}

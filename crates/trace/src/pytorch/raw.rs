//! The unchecked content of a snapshot file, as read from pickle or JSON.
//!
//! Owns: the keys and names of a snapshot file (PyTorch's `torch/csrc/cuda/Module.cpp`, `torch_cuda_memorySnapshot`),
//! and the limits on it. Unneeded keys and unknown actions are skipped.

use std::borrow::Cow;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::error::excerpt;
use crate::memory::list_bytes;
use seamalloc::observer::{Action, Event};
use seamalloc::snapshot::BlockState;

/// The most values of `allocator_settings` that are kept, and the largest depth of its dicts. PyTorch 2.11 writes 50
/// values, keys included, at depth 2.
pub(super) const MAX_SETTINGS: usize = 1024;
pub(super) const MAX_SETTINGS_DEPTH: usize = 8;

/// The bytes of text in `allocator_settings` that count as one more value.
const TEXT_PER_VALUE: usize = 16;

/// The most devices of a snapshot. PyTorch is built for at most 120 (`C10_COMPILE_TIME_MAX_GPUS`).
pub(super) const MAX_DEVICES: usize = 1024;

/// The expected top-level value, for errors.
pub(super) const SNAPSHOT: &str =
    "a dict with the keys segments and device_traces, as torch.cuda.memory._dump_snapshot writes it";

/// The content in the form of the file. The reader counts the memory of these lists against its limit.
pub(super) struct RawSnapshot {
    pub(super) segments: Vec<RawSegment>,
    /// The history of each device; `None` for an entry that is no event.
    pub(super) traces: Vec<Vec<Option<Event>>>,
    pub(super) settings: Value,
}

#[derive(Deserialize)]
pub(super) struct RawSegment {
    #[serde(default)]
    pub(super) device: u32,
    pub(super) address: u64,
    pub(super) total_size: u64,
    #[serde(default)]
    pub(super) stream: u64,
    #[serde(default, rename = "segment_type", deserialize_with = "is_small")]
    pub(super) small: bool,
    #[serde(default)]
    pub(super) is_expandable: bool,
    /// The pool of the segment, which is absent before PyTorch 2.0.
    #[serde(default)]
    pub(super) segment_pool_id: (u64, u64),
    pub(super) blocks: Vec<RawBlock>,
}

#[derive(Deserialize)]
pub(super) struct RawBlock {
    /// The address of the block, which is absent before PyTorch 2.0.
    #[serde(default)]
    pub(super) address: Option<u64>,
    pub(super) size: u64,
    #[serde(default)]
    pub(super) requested_size: Option<u64>,
    #[serde(deserialize_with = "state")]
    pub(super) state: BlockState,
    /// The spilled bytes, which only seamalloc's own snapshots have.
    #[serde(default)]
    pub(super) spilled: u64,
    #[serde(default)]
    pub(super) asleep: bool,
}

impl RawSnapshot {
    /// Returns the heap bytes that the lists take.
    pub(super) fn heap_bytes(&self) -> u64 {
        let blocks = self.segments.iter().map(|segment| list_bytes::<RawBlock>(segment.blocks.capacity()));
        let events = self.traces.iter().map(|trace| list_bytes::<Option<Event>>(trace.capacity()));
        let lists = list_bytes::<RawSegment>(self.segments.capacity()) + list_bytes::<Vec<()>>(self.traces.capacity());
        blocks.chain(events).fold(lists, u64::saturating_add)
    }
}

/// The `segment_type` of small segments.
pub(super) const SMALL: &str = "small";

/// The states of blocks, for errors.
pub(super) const STATES: &str = "active_allocated, active_pending_free or inactive";

/// Returns the state with that name; `None` for other names. PyTorch's documentation has a second name for blocks with
/// a pending free.
pub(super) fn block_state(name: &str) -> Option<BlockState> {
    let states = [BlockState::ActiveAllocated, BlockState::ActivePendingFree, BlockState::Inactive];
    let waiting = (name == "active_awaiting_free").then_some(BlockState::ActivePendingFree);
    states.into_iter().find(|state| state.name() == name).or(waiting)
}

/// Reads the name of a block's state.
fn state<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BlockState, D::Error> {
    let name = Cow::<str>::deserialize(deserializer)?;
    block_state(&name).ok_or_else(|| D::Error::custom(format!("{} is not {STATES}", excerpt(name.as_bytes()))))
}

/// Reads the type of a segment.
fn is_small<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Cow::<str>::deserialize(deserializer).map(|name| name == SMALL)
}

/// Subtracts the cost of one value of the settings, with its text, from `left`. Returns `false` if less is left.
pub(super) fn spend(left: &mut usize, text: &str) -> bool {
    let cost = (text.len() / TEXT_PER_VALUE).saturating_add(1);
    match left.checked_sub(cost) {
        Some(rest) => {
            *left = rest;
            true
        }
        None => false,
    }
}

/// Returns the action with that name; `None` for an entry that is no event.
pub(super) fn action(name: &str) -> Option<Action> {
    const ALL: [Action; 8] = [
        Action::Alloc,
        Action::FreeRequested,
        Action::FreeCompleted,
        Action::SegmentAlloc,
        Action::SegmentFree,
        Action::SegmentMap,
        Action::SegmentUnmap,
        Action::Oom,
    ];
    ALL.into_iter().find(|action| action.name() == name)
}

/// Returns the key of an entry's address; for an `oom` entry, the key of the device's free bytes.
pub(super) fn address_key(action: Action) -> &'static str {
    if action == Action::Oom { "device_free" } else { "addr" }
}

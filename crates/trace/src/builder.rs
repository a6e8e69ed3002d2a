//! Builds a [`Trace`] event by event, and refuses events that break the rules.
//!
//! Owns: the rules, and the numbering of blocks from 0 in the order of allocation. Every reader, the recorder and the
//! generators build traces through this type. Other files read the formats.

use std::collections::hash_map::Entry;

use serde_json::{Map, Value};

use crate::error::RuleError;
use crate::memory::{Memory, MemoryError, SeededMap, list_bytes};
use crate::trace::{MAX_BLOCK_SIZE, Trace, TraceEvent};
use seamalloc::driver::StreamId;

#[derive(Clone, Copy)]
struct LiveBlock {
    block: u32,
    requested: bool,
}

/// Builds a [`Trace`] from events whose blocks have ids of the source's own: any numbers, such as addresses. An id may
/// be reused once the free of its block is complete.
#[derive(Default)]
pub struct TraceBuilder {
    trace: Trace,
    live: SeededMap<u64, LiveBlock>,
    stream_index: SeededMap<StreamId, u32>,
    blocks: u32,
    memory: Memory,
}

impl TraceBuilder {
    /// Makes a builder of an empty trace with that name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { trace: Trace { name: name.into(), ..Trace::default() }, ..Self::default() }
    }

    /// Makes a builder of an empty trace with that name. The trace takes no more host memory than `memory` still
    /// allows.
    pub(crate) fn within(memory: Memory, name: impl Into<String>) -> Self {
        Self { memory, ..Self::new(name) }
    }

    /// Returns the account of the host memory that the trace takes.
    pub(crate) fn memory(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// Sets the description of the job.
    pub fn set_meta(&mut self, meta: Map<String, Value>) {
        self.trace.meta = meta;
    }

    /// Returns the index of a stream. A new stream is added at the end of the list.
    ///
    /// # Errors
    /// [`RuleError::TooMany`] beyond 2^32 streams.
    pub fn stream(&mut self, stream: StreamId) -> Result<u32, RuleError> {
        if let Some(&index) = self.stream_index.get(&stream) {
            return Ok(index);
        }
        let index = u32::try_from(self.trace.streams.len()).map_err(|_| RuleError::TooMany)?;
        self.memory.push(&mut self.trace.streams, stream)?;
        self.memory.room_in_map(&mut self.stream_index)?;
        self.stream_index.insert(stream, index);
        Ok(index)
    }

    /// Adds a request for `size` bytes on the stream with that index. Returns the number of the new block.
    ///
    /// # Errors
    /// The id is live, the size is 0 or above [`MAX_BLOCK_SIZE`], or the trace has no stream with that index.
    pub fn alloc(&mut self, id: u64, size: u64, stream: u32) -> Result<u32, RuleError> {
        if size == 0 {
            return Err(RuleError::ZeroSize(id));
        }
        if size > MAX_BLOCK_SIZE {
            return Err(RuleError::TooLarge { id, size });
        }
        if stream as usize >= self.trace.streams.len() {
            return Err(RuleError::NoSuchStream { found: stream, listed: self.trace.streams.len() });
        }
        let block = self.blocks;
        let next = block.checked_add(1).ok_or(RuleError::TooMany)?;
        self.memory.room_in_map(&mut self.live)?;
        match self.live.entry(id) {
            Entry::Occupied(_) => return Err(RuleError::Reused(id)),
            Entry::Vacant(free) => free.insert(LiveBlock { block, requested: false }),
        };
        self.blocks = next;
        self.memory.push(&mut self.trace.events, TraceEvent::Alloc { size, stream })?;
        Ok(block)
    }

    /// Adds the program's free of a block.
    ///
    /// # Errors
    /// No block with the id is live, or the block was freed before.
    pub fn free_requested(&mut self, id: u64) -> Result<(), RuleError> {
        let live = self.live.get_mut(&id).ok_or(RuleError::Unknown(id))?;
        if live.requested {
            return Err(RuleError::DoubleFree(id));
        }
        live.requested = true;
        Ok(self.memory.push(&mut self.trace.events, TraceEvent::FreeRequested { block: live.block })?)
    }

    /// Adds the completion of a free. Every stream has finished with the block, and its id may be reused.
    ///
    /// # Errors
    /// No block with the id is live, or the program has not freed the block.
    pub fn free_completed(&mut self, id: u64) -> Result<(), RuleError> {
        let Entry::Occupied(live) = self.live.entry(id) else { return Err(RuleError::Unknown(id)) };
        if !live.get().requested {
            return Err(RuleError::CompletedBeforeRequested(id));
        }
        let block = live.remove().block;
        Ok(self.memory.push(&mut self.trace.events, TraceEvent::FreeCompleted { block })?)
    }

    /// Returns whether an id is in use: its block is allocated, and its free is not complete.
    #[must_use]
    pub fn is_live(&self, id: u64) -> bool {
        self.live.contains_key(&id)
    }

    /// Returns the number of blocks allocated so far.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Returns the number of events so far.
    pub(crate) fn events(&self) -> usize {
        self.trace.events.len()
    }

    /// Returns the trace. Live blocks stay live at the trace's end.
    #[must_use]
    pub fn finish(self) -> Trace {
        self.trace
    }
}

impl From<MemoryError> for RuleError {
    fn from(error: MemoryError) -> Self {
        Self::Memory(error)
    }
}

/// Returns the heap bytes that a trace's own lists take.
pub(crate) fn trace_bytes(trace: &Trace) -> u64 {
    list_bytes::<TraceEvent>(trace.events.capacity()).saturating_add(list_bytes::<StreamId>(trace.streams.capacity()))
}

/// Checks a trace that was made without a [`TraceBuilder`].
///
/// # Errors
/// The index of the first event that breaks a rule, and the rule.
pub fn check(trace: &Trace) -> Result<(), (usize, RuleError)> {
    let mut blocks = NumberedBlocks::default();
    let mut events = trace.events.iter().enumerate();
    events.try_for_each(|(index, event)| blocks.apply(*event, trace.streams.len()).map_err(|rule| (index, rule)))
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Live,
    Requested,
    Gone,
}

/// Checks the rules for blocks that already have numbers, so that no id has to be looked up.
#[derive(Default)]
pub(crate) struct NumberedBlocks {
    states: Vec<State>,
}

impl NumberedBlocks {
    /// Makes a table with room for exactly `blocks` blocks.
    pub(crate) fn with_room(memory: &mut Memory, blocks: usize) -> Result<Self, MemoryError> {
        let mut states = Vec::new();
        memory.room(&mut states, blocks)?;
        Ok(Self { states })
    }

    /// Checks the next event of a trace with `streams` streams.
    ///
    /// # Errors
    /// The rule that the event breaks.
    pub(crate) fn apply(&mut self, event: TraceEvent, streams: usize) -> Result<(), RuleError> {
        let id = u64::try_from(self.states.len()).unwrap_or(u64::MAX);
        match event {
            TraceEvent::Alloc { size: 0, .. } => Err(RuleError::ZeroSize(id)),
            TraceEvent::Alloc { size, .. } if size > MAX_BLOCK_SIZE => Err(RuleError::TooLarge { id, size }),
            TraceEvent::Alloc { stream, .. } if stream as usize >= streams => {
                Err(RuleError::NoSuchStream { found: stream, listed: streams })
            }
            TraceEvent::Alloc { .. } if id >= u64::from(u32::MAX) => Err(RuleError::TooMany),
            TraceEvent::Alloc { .. } => {
                self.states.push(State::Live);
                Ok(())
            }
            TraceEvent::FreeRequested { block } => match self.states.get_mut(block as usize) {
                Some(state @ State::Live) => {
                    *state = State::Requested;
                    Ok(())
                }
                Some(State::Requested) => Err(RuleError::DoubleFree(block.into())),
                Some(State::Gone) | None => Err(RuleError::Unknown(block.into())),
            },
            TraceEvent::FreeCompleted { block } => match self.states.get_mut(block as usize) {
                Some(state @ State::Requested) => {
                    *state = State::Gone;
                    Ok(())
                }
                Some(State::Live) => Err(RuleError::CompletedBeforeRequested(block.into())),
                Some(State::Gone) | None => Err(RuleError::Unknown(block.into())),
            },
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns valid traces of up to a few hundred events, with sizes of every magnitude, several streams and late
    /// completions.
    pub(crate) fn valid_trace() -> impl Strategy<Value = Trace> {
        let step = (0u8..4, any::<u16>(), 0u32..48, any::<bool>());
        proptest::collection::vec(step, 1..200).prop_map(|steps| {
            let mut builder = TraceBuilder::new("made");
            let mut meta = Map::new();
            meta.insert("job".to_owned(), Value::from("made"));
            meta.insert("peak_req".to_owned(), Value::from(u64::MAX));
            builder.set_meta(meta);
            let mut live: Vec<(u64, bool)> = Vec::new();
            for (number, (kind, pick, bits, at_once)) in steps.into_iter().enumerate() {
                let id = number as u64;
                if kind < 2 || live.is_empty() {
                    let stream = builder.stream(StreamId(u64::from(pick % 3) << 40)).unwrap();
                    let size = (1u64 << bits.min(47)).saturating_sub(u64::from(pick % 7)).max(1);
                    builder.alloc(id, size, stream).unwrap();
                    live.push((id, false));
                } else {
                    let at = usize::from(pick) % live.len();
                    let (id, requested) = live[at];
                    if !requested {
                        builder.free_requested(id).unwrap();
                        live[at].1 = true;
                    }
                    if requested || at_once {
                        builder.free_completed(id).unwrap();
                        live.swap_remove(at);
                    }
                }
            }
            builder.finish()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_the_builder_builds_is_valid(trace in valid_trace()) {
            prop_assert_eq!(check(&trace), Ok(()));
        }
    }

    #[test]
    fn blocks_are_numbered_in_order_of_allocation() {
        let mut builder = TraceBuilder::new("t");
        let stream = builder.stream(StreamId(9)).unwrap();
        assert_eq!(builder.stream(StreamId(9)), Ok(stream));
        assert_eq!(builder.alloc(u64::MAX, 5, stream), Ok(0));
        assert_eq!(builder.alloc(7, 6, stream), Ok(1));
        builder.free_requested(u64::MAX).unwrap();
        builder.free_completed(u64::MAX).unwrap();
        assert!(!builder.is_live(u64::MAX) && builder.is_live(7));
        assert_eq!(builder.alloc(u64::MAX, 5, stream), Ok(2));
        let trace = builder.finish();
        assert_eq!(trace.events[2], TraceEvent::FreeRequested { block: 0 });
        assert_eq!(trace.streams, [StreamId(9)]);
    }

    #[test]
    fn every_rule_is_kept() {
        let mut builder = TraceBuilder::new("t");
        assert_eq!(builder.alloc(1, 8, 0), Err(RuleError::NoSuchStream { found: 0, listed: 0 }));
        let stream = builder.stream(StreamId::DEFAULT).unwrap();
        builder.alloc(1, MAX_BLOCK_SIZE, stream).unwrap();
        assert_eq!(builder.alloc(1, 8, stream), Err(RuleError::Reused(1)));
        assert_eq!(builder.alloc(2, 0, stream), Err(RuleError::ZeroSize(2)));
        let size = MAX_BLOCK_SIZE + 1;
        assert_eq!(builder.alloc(2, size, stream), Err(RuleError::TooLarge { id: 2, size }));
        assert_eq!(builder.free_requested(2), Err(RuleError::Unknown(2)));
        assert_eq!(builder.free_completed(2), Err(RuleError::Unknown(2)));
        assert_eq!(builder.free_completed(1), Err(RuleError::CompletedBeforeRequested(1)));
        builder.free_requested(1).unwrap();
        assert_eq!(builder.free_requested(1), Err(RuleError::DoubleFree(1)));
        assert_eq!(builder.alloc(1, 8, stream), Err(RuleError::Reused(1)));
        builder.free_completed(1).unwrap();
        assert_eq!(builder.free_completed(1), Err(RuleError::Unknown(1)));
        assert_eq!(builder.finish().events.len(), 3);
    }

    #[test]
    fn check_names_the_event() {
        let alloc = TraceEvent::Alloc { size: 1, stream: 0 };
        let with = |events: &[TraceEvent]| {
            check(&Trace { streams: vec![StreamId(0)], events: events.to_vec(), ..Trace::default() })
        };
        let requested = TraceEvent::FreeRequested { block: 0 };
        let completed = TraceEvent::FreeCompleted { block: 0 };
        assert_eq!(with(&[alloc, requested, completed]), Ok(()));
        assert_eq!(with(&[requested]), Err((0, RuleError::Unknown(0))));
        assert_eq!(with(&[alloc, completed]), Err((1, RuleError::CompletedBeforeRequested(0))));
        assert_eq!(with(&[alloc, requested, requested]), Err((2, RuleError::DoubleFree(0))));
        assert_eq!(with(&[alloc, requested, completed, completed]), Err((3, RuleError::Unknown(0))));
        assert_eq!(with(&[TraceEvent::Alloc { size: 0, stream: 0 }]), Err((0, RuleError::ZeroSize(0))));
        let lost = TraceEvent::Alloc { size: 1, stream: 1 };
        assert_eq!(with(&[alloc, lost]), Err((1, RuleError::NoSuchStream { found: 1, listed: 1 })));
    }
}

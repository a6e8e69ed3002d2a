//! Builds a [`Trace`] event by event and lets nothing in that breaks the rules.
//!
//! Owns: the rules, and the numbering of blocks from 0 in the order of allocation. Every reader, the recorder and the
//! generators build through it; it knows no format.

use rustc_hash::FxHashMap;
use serde_json::{Map, Value};

use crate::error::RuleError;
use crate::trace::{MAX_BLOCK_SIZE, Trace, TraceEvent};
use seamalloc::driver::StreamId;

#[derive(Clone, Copy)]
struct LiveBlock {
    block: u32,
    requested: bool,
}

/// Builds a [`Trace`] from events whose blocks have ids of the source's own: any numbers, addresses among them. An id
/// may be used again once the free of its block is complete.
#[derive(Default)]
pub struct TraceBuilder {
    trace: Trace,
    live: FxHashMap<u64, LiveBlock>,
    stream_index: FxHashMap<StreamId, u32>,
    blocks: u32,
}

impl TraceBuilder {
    /// An empty trace of that name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { trace: Trace { name: name.into(), ..Trace::default() }, ..Self::default() }
    }

    /// Sets what is known of the job.
    pub fn set_meta(&mut self, meta: Map<String, Value>) {
        self.trace.meta = meta;
    }

    /// The index of a stream; a new one is added at the end of the list.
    ///
    /// # Errors
    /// [`RuleError::TooMany`] beyond 2^32 streams.
    pub fn stream(&mut self, stream: StreamId) -> Result<u32, RuleError> {
        if let Some(&index) = self.stream_index.get(&stream) {
            return Ok(index);
        }
        let index = self.push_stream(stream)?;
        self.stream_index.insert(stream, index);
        Ok(index)
    }

    /// Adds a stream to the list even if it is there already, as a stored list has to come back unchanged.
    pub(crate) fn push_stream(&mut self, stream: StreamId) -> Result<u32, RuleError> {
        let index = u32::try_from(self.trace.streams.len()).map_err(|_| RuleError::TooMany)?;
        self.trace.streams.push(stream);
        Ok(index)
    }

    /// The program asked for `size` bytes on the stream of that index. Returns the number of the new block.
    ///
    /// # Errors
    /// The id is live, the size is 0 or above [`MAX_BLOCK_SIZE`], or the stream is not listed.
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
        if self.live.contains_key(&id) {
            return Err(RuleError::Reused(id));
        }
        self.live.insert(id, LiveBlock { block, requested: false });
        self.blocks = next;
        self.trace.events.push(TraceEvent::Alloc { size, stream });
        Ok(block)
    }

    /// The program freed the block.
    ///
    /// # Errors
    /// No such block is live, or it was freed before.
    pub fn free_requested(&mut self, id: u64) -> Result<(), RuleError> {
        let live = self.live.get_mut(&id).ok_or(RuleError::Unknown(id))?;
        if live.requested {
            return Err(RuleError::DoubleFree(id));
        }
        live.requested = true;
        self.trace.events.push(TraceEvent::FreeRequested { block: live.block });
        Ok(())
    }

    /// Every stream has finished with the freed block; its id is free again.
    ///
    /// # Errors
    /// No such block is live, or the program has not freed it.
    pub fn free_completed(&mut self, id: u64) -> Result<(), RuleError> {
        let live = *self.live.get(&id).ok_or(RuleError::Unknown(id))?;
        if !live.requested {
            return Err(RuleError::CompletedBeforeRequested(id));
        }
        self.live.remove(&id);
        self.trace.events.push(TraceEvent::FreeCompleted { block: live.block });
        Ok(())
    }

    /// Whether an id is in use: allocated, and its free not complete.
    #[must_use]
    pub fn is_live(&self, id: u64) -> bool {
        self.live.contains_key(&id)
    }

    /// Blocks allocated so far.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The trace. What is live stays live at its end.
    #[must_use]
    pub fn finish(self) -> Trace {
        self.trace
    }
}

/// Checks a trace that was put together without a [`TraceBuilder`].
///
/// # Errors
/// The index of the first event that breaks a rule, and the rule.
pub fn check(trace: &Trace) -> Result<(), (usize, RuleError)> {
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        Live,
        Requested,
        Gone,
    }
    let mut states: Vec<State> = Vec::new();
    for (index, event) in trace.events.iter().enumerate() {
        let id = u64::try_from(states.len()).unwrap_or(u64::MAX);
        let broken = match *event {
            TraceEvent::Alloc { size: 0, .. } => Some(RuleError::ZeroSize(id)),
            TraceEvent::Alloc { size, .. } if size > MAX_BLOCK_SIZE => Some(RuleError::TooLarge { id, size }),
            TraceEvent::Alloc { stream, .. } if stream as usize >= trace.streams.len() => {
                Some(RuleError::NoSuchStream { found: stream, listed: trace.streams.len() })
            }
            TraceEvent::Alloc { .. } if id >= u64::from(u32::MAX) => Some(RuleError::TooMany),
            TraceEvent::Alloc { .. } => {
                states.push(State::Live);
                None
            }
            TraceEvent::FreeRequested { block } => match states.get_mut(block as usize) {
                Some(state @ State::Live) => {
                    *state = State::Requested;
                    None
                }
                Some(State::Requested) => Some(RuleError::DoubleFree(block.into())),
                Some(State::Gone) | None => Some(RuleError::Unknown(block.into())),
            },
            TraceEvent::FreeCompleted { block } => match states.get_mut(block as usize) {
                Some(state @ State::Requested) => {
                    *state = State::Gone;
                    None
                }
                Some(State::Live) => Some(RuleError::CompletedBeforeRequested(block.into())),
                Some(State::Gone) | None => Some(RuleError::Unknown(block.into())),
            },
        };
        if let Some(rule) = broken {
            return Err((index, rule));
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Valid traces of up to a few hundred events: sizes of every magnitude, several streams, late completions.
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

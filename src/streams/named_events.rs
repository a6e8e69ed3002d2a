//! The events that were recorded when `record_stream` named a stream as a user of a block or, for external streams,
//! when the block's free was put off (a *held* block).
//!
//! Owns: the table of these events. `named_at_once.rs` records them.

use crate::ids::{BlockId, EventId, StreamId};
use rustc_hash::FxHashMap;

/// The events of the streams that use live blocks, and blocks whose free was put off, by block. Dropped events can be
/// reused.
#[derive(Debug, Default)]
pub(super) struct NamedEvents(pub(super) FxHashMap<BlockId, Vec<(StreamId, EventId)>>);

impl NamedEvents {
    /// Returns the event of a stream for a live block, or for a block whose free was put off; `None` if there is none.
    pub(super) fn event_of(&self, id: BlockId, stream: StreamId) -> Option<EventId> {
        self.0.get(&id)?.iter().find(|(of, _)| *of == stream).map(|(_, event)| *event)
    }

    /// Drops the event of a stream for a block. The event can be reused.
    pub(super) fn drop_event(&mut self, id: BlockId, stream: StreamId, idle: &mut Vec<EventId>) {
        let Some(events) = self.0.get_mut(&id) else { return };
        if let Some(at) = events.iter().position(|(of, _)| *of == stream) {
            let (_, event) = events.swap_remove(at);
            idle.push(event);
        }
        if events.is_empty() {
            self.0.remove(&id);
        }
    }

    /// Drops the events of a stream that has ended.
    pub(super) fn drop_events_of(&mut self, stream: StreamId, idle: &mut Vec<EventId>) {
        self.0.retain(|_, events| {
            events.retain(|(of, event)| {
                if *of == stream {
                    idle.push(*event);
                }
                *of != stream
            });
            !events.is_empty()
        });
    }

    /// Drops all events of a block.
    pub(super) fn drop_events_of_block(&mut self, id: BlockId, idle: &mut Vec<EventId>) {
        let events = self.0.remove(&id).unwrap_or_default();
        idle.extend(events.into_iter().map(|(_, event)| event));
    }
}

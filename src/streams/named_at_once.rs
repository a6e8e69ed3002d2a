//! Events recorded when a stream is named, not when the block is freed: Paddle's stream safety.
//!
//! Owns: the steps of `stream_safe_cuda_allocator.cc` (02a5e4e) that differ from PyTorch's:
//! - `RecordStream` records an event a stream and block at once, and again at the same event if it is named again; in a capture it
//!   notes the stream, whose event is recorded after the capture;
//! - `EraseStream` takes a stream's event back;
//! - `FreeImpl` asks for the events: a block whose events have passed is free at once;
//! - `ProcessUnfreedAllocations` asks for every block by itself: events of one stream may be complete in another order than their
//!   blocks were freed.
//!
//! The queues, and what a free does without any of this, are in `record_stream.rs`.

use super::record_stream::{PendingFree, Recorded, RecordedStreams};
use crate::driver::{Driver, in_relaxed_capture_mode};
use crate::error::{Error, Result};
use crate::fallible::{try_insert, with_room};
use crate::heap::Heap;
use crate::ids::{BlockId, EventId, StreamId};

impl RecordedStreams {
    /// Notes that a stream other than the block's own uses it, and records an event there. What the stream is given later is not
    /// waited for. Returns whether the stream was not known.
    ///
    /// # Errors
    /// [`Error::HostMemory`](crate::Error::HostMemory), or the driver's. What was known is as before.
    pub(crate) fn record_use_now(
        &mut self,
        heap: &mut Heap,
        driver: &dyn Driver,
        id: BlockId,
        stream: StreamId,
        capturing: bool,
    ) -> Result<bool> {
        let is_new = self.record_use(heap, id, stream)?;
        if capturing || !self.uses(id).contains(&stream) {
            return Ok(is_new);
        }
        let recorded = match self.event_of(id, stream) {
            Some(event) => match super::context::can_record(driver, stream) {
                Ok(true) => driver.event_record(event, stream).map_err(Into::into),
                known => known.map(drop).map_err(Into::into),
            },
            None => self.add_event(driver, id, stream),
        };
        if recorded.is_err() && is_new {
            self.forget_use(heap, id, stream);
        }
        recorded.map(|()| is_new)
    }

    /// Records events on the borrowed streams that use a block which is being held. Returns whether each has one.
    pub(super) fn name_borrowed(&mut self, heap: &Heap, driver: &dyn Driver, id: BlockId) -> bool {
        let named = in_relaxed_capture_mode(driver, true, || {
            let count = self.uses(id).len();
            for at in 0..count {
                let Some(stream) = self.uses(id).get(at).copied().filter(|stream| heap.is_borrowed(*stream)) else {
                    continue;
                };
                if self.event_of(id, stream).is_none() && self.add_event(driver, id, stream).is_err() {
                    return Ok(false);
                }
                if self.event_of(id, stream).is_none() {
                    return Ok(false);
                }
            }
            Ok(true)
        });
        named.unwrap_or_else(|error: Error| {
            tracing::warn!(%error, "a borrowed stream could not be named; what it used waits for the device");
            false
        })
    }

    /// Forgets all events of a block.
    pub(super) fn drop_events_of_block(&mut self, id: BlockId) {
        let events = self.named.remove(&id).unwrap_or_default();
        self.idle_events.extend(events.into_iter().map(|(_, event)| event));
    }

    /// Records the first event of a stream for a block.
    fn add_event(&mut self, driver: &dyn Driver, id: BlockId, stream: StreamId) -> Result<()> {
        match self.named.get_mut(&id) {
            Some(events) => events.try_reserve(1)?,
            None => drop(try_insert(&mut self.named, id, with_room(1)?)?),
        }
        let added = self.record_anew(driver, stream);
        let Some(events) = self.named.get_mut(&id) else { return added.map(drop) };
        if let Ok(Some(event)) = added {
            events.push((stream, event));
            self.out_of_order = true;
        } else if events.is_empty() {
            self.named.remove(&id);
        }
        added.map(drop)
    }

    /// Records an event that no block has. Returns `None` where the stream is being captured, or its work was waited for.
    fn record_anew(&mut self, driver: &dyn Driver, stream: StreamId) -> Result<Option<EventId>> {
        self.reserve_events(1)?;
        let mut events = with_room(1)?;
        let recorded = self.record_event(driver, stream, &mut events)?;
        Ok(events.pop().map(|(_, event)| event).filter(|_| recorded == Recorded::Event))
    }

    /// Returns the event that was recorded when the stream was named for a live or held block.
    pub(super) fn event_of(&self, id: BlockId, stream: StreamId) -> Option<EventId> {
        self.named.get(&id)?.iter().find(|(of, _)| *of == stream).map(|(_, event)| *event)
    }

    /// Forgets the event of a stream for a block, which can be used again.
    pub(super) fn drop_event(&mut self, id: BlockId, stream: StreamId) {
        let Some(events) = self.named.get_mut(&id) else { return };
        if let Some(at) = events.iter().position(|(of, _)| *of == stream) {
            let (_, event) = events.swap_remove(at);
            self.idle_events.push(event);
        }
        if events.is_empty() {
            self.named.remove(&id);
        }
    }

    /// Forgets the events of a stream that has ended.
    pub(super) fn drop_events_of(&mut self, stream: StreamId) {
        let idle = &mut self.idle_events;
        self.named.retain(|_, events| {
            events.retain(|(of, event)| {
                if *of == stream {
                    idle.push(*event);
                }
                *of != stream
            });
            !events.is_empty()
        });
    }

    /// Forgets the events of a block about to be freed that have passed. Where one cannot be asked for, the block waits for it.
    pub(crate) fn forget_passed(&mut self, driver: &dyn Driver, pending: &mut PendingFree) {
        let idle = &mut self.idle_events;
        pending.events.retain(|(stream, event)| {
            let passed = driver.event_query(*event).unwrap_or_else(|error| {
                tracing::warn!(%error, %stream, "an event could not be asked for; the block waits for it");
                false
            });
            if passed {
                idle.push(*event);
            }
            !passed
        });
    }
}

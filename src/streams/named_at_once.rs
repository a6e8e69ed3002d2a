//! Events that are recorded when a stream is named, not when the block is freed, as in Paddle's stream safety.
//!
//! Owns: the steps of `stream_safe_cuda_allocator.cc` (02a5e4e) that differ from PyTorch's:
//! - `RecordStream` itself records one event for each stream and block, and records it again if the stream is named
//!   again. In a capture it only notes the stream, whose event is recorded after the capture;
//! - `EraseStream` drops a stream's event;
//! - `FreeImpl` queries the events, and a block whose events are all complete is free when the call returns;
//! - `ProcessUnfreedAllocations` queries every block by itself, since the events of one stream may complete in another
//!   order than their blocks were freed.
//!
//! `record_stream.rs` has the queues, and frees without Paddle's rules.

use super::record_stream::{PendingFree, Recorded, RecordedStreams};
use crate::driver::{Driver, in_relaxed_capture_mode};
use crate::error::{Error, Result};
use crate::fallible::{try_insert, with_room};
use crate::heap::Heap;
use crate::ids::{BlockId, EventId, StreamId};

impl RecordedStreams {
    /// Notes that a stream other than the block's own uses the block, and records an event on this stream. A free waits
    /// only for work given to the stream before this call. Returns whether the stream was new to the block.
    ///
    /// # Errors
    /// [`Error::HostMemory`](crate::Error::HostMemory), or the driver's error. The tables are unchanged.
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
        let recorded = match self.named.event_of(id, stream) {
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

    /// Records events on the external streams that use a block whose free [`Self::hold`] delays. Returns whether each
    /// of these streams has an event.
    fn name_external(&mut self, heap: &Heap, driver: &dyn Driver, id: BlockId) -> bool {
        let named = in_relaxed_capture_mode(driver, true, || {
            let count = self.uses(id).len();
            for at in 0..count {
                let Some(stream) = self.uses(id).get(at).copied().filter(|stream| heap.is_external(*stream)) else {
                    continue;
                };
                if self.named.event_of(id, stream).is_none() && self.add_event(driver, id, stream).is_err() {
                    return Ok(false);
                }
                if self.named.event_of(id, stream).is_none() {
                    return Ok(false);
                }
            }
            Ok(true)
        });
        named.unwrap_or_else(|error: Error| {
            tracing::warn!(%error, "an external stream could not be named; what it used waits for the device");
            false
        })
    }

    /// Records the first event of a stream for a block.
    fn add_event(&mut self, driver: &dyn Driver, id: BlockId, stream: StreamId) -> Result<()> {
        match self.named.0.get_mut(&id) {
            Some(events) => events.try_reserve(1)?,
            None => drop(try_insert(&mut self.named.0, id, with_room(1)?)?),
        }
        let added = self.record_anew(driver, stream);
        let Some(events) = self.named.0.get_mut(&id) else { return added.map(drop) };
        if let Ok(Some(event)) = added {
            events.push((stream, event));
            self.out_of_order = true;
        } else if events.is_empty() {
            self.named.0.remove(&id);
        }
        added.map(drop)
    }

    /// Returns a newly recorded event that no block has. Returns `None` if the stream is being captured, or if it was
    /// destroyed and the CPU has waited for its work.
    fn record_anew(&mut self, driver: &dyn Driver, stream: StreamId) -> Result<Option<EventId>> {
        self.reserve_events(1)?;
        let mut events = with_room(1)?;
        let recorded = self.record_event(driver, stream, &mut events)?;
        Ok(events.pop().map(|(_, event)| event).filter(|_| recorded == Recorded::Event))
    }

    /// Drops the completed events of a block that is about to be freed. If an event cannot be queried, the block waits
    /// for it.
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

    /// Makes the block wait for the end of a capture, or until there is host memory for its events, and then for the
    /// streams that use it.
    ///
    /// Events on external streams are recorded now, since such streams may be destroyed later. If an event cannot be
    /// recorded, the block waits for the device instead.
    pub(crate) fn hold(&mut self, heap: &mut Heap, driver: &dyn Driver, id: BlockId) {
        heap.set_pending(id);
        if heap.has_external() && !self.name_external(heap, driver, id) {
            self.named.drop_events_of_block(id, &mut self.idle_events);
            self.uses.remove(&id);
            self.of_device.push(id);
            return;
        }
        self.held.push_back(id);
    }
}

//! Blocks that the program has freed while other streams may still use them.
//!
//! Owns: the streams named by `record_stream`, the events recorded at the free, and the order in which they are asked
//! about. As in PyTorch, events are asked in the order of each stream, and only at the next allocation.

use crate::blocks::{BlockId, State};
use crate::driver::{Driver, DriverResult, EventId, StreamId};
use crate::heap::Heap;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Freed blocks waiting for the streams that used them.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    /// Streams other than its own that use a live block.
    uses: FxHashMap<BlockId, Vec<StreamId>>,
    /// Events recorded at frees, by stream, oldest first.
    queues: Vec<(StreamId, VecDeque<(EventId, BlockId)>)>,
    /// How many events each pending block waits for.
    waiting: FxHashMap<BlockId, u32>,
    /// Events to use again.
    idle_events: Vec<EventId>,
}

impl Deferred {
    /// Whether any freed block waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// A stream other than the block's own uses it from now on. Naming it twice is the same as once.
    pub(crate) fn record_use(&mut self, heap: &mut Heap, id: BlockId, stream: StreamId) {
        let own = heap.pools[heap.blocks[id].pool as usize].stream;
        if stream == own {
            return;
        }
        let uses = self.uses.entry(id).or_default();
        if !uses.contains(&stream) {
            uses.push(stream);
        }
        heap.blocks[id].has_uses = true;
    }

    /// Records an event on every stream that uses a live block which is about to be freed. On an error nothing has
    /// changed.
    pub(crate) fn record_events(&mut self, driver: &dyn Driver, id: BlockId) -> DriverResult<PendingFree> {
        let streams = self.uses.get(&id).cloned().unwrap_or_default();
        let mut events = Vec::with_capacity(streams.len());
        for stream in streams {
            let event = self.idle_events.pop().map_or_else(|| driver.event_create(), Ok);
            let recorded = event.and_then(|event| {
                events.push((stream, event));
                driver.event_record(event, stream)
            });
            if let Err(error) = recorded {
                self.idle_events.extend(events.into_iter().map(|(_, event)| event));
                return Err(error);
            }
        }
        Ok(PendingFree { id, events })
    }

    /// The block waits for its events from now on.
    pub(crate) fn defer(&mut self, heap: &mut Heap, pending: PendingFree) {
        let PendingFree { id, events } = pending;
        self.uses.remove(&id);
        heap.blocks[id].has_uses = false;
        heap.blocks[id].state = State::Pending;
        self.waiting.insert(id, events.len() as u32);
        for (stream, event) in events {
            match self.queues.iter_mut().find(|(of, _)| *of == stream) {
                Some((_, queue)) => queue.push_back((event, id)),
                None => self.queues.push((stream, VecDeque::from([(event, id)]))),
            }
        }
    }

    /// Frees what has become free: of each stream the oldest events, up to the first that is not complete.
    pub(crate) fn poll(&mut self, heap: &mut Heap, driver: &dyn Driver) -> DriverResult<()> {
        self.drain(heap, |event| driver.event_query(event))
    }

    /// Waits for every event, and frees all that waited.
    pub(crate) fn synchronize(&mut self, heap: &mut Heap, driver: &dyn Driver) -> DriverResult<()> {
        self.drain(heap, |event| driver.event_synchronize(event).map(|()| true))
    }

    fn drain(&mut self, heap: &mut Heap, complete: impl Fn(EventId) -> DriverResult<bool>) -> DriverResult<()> {
        let mut result = Ok(());
        for (_, queue) in &mut self.queues {
            while let Some(&(event, id)) = queue.front() {
                match complete(event) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        result = Err(error);
                        break;
                    }
                }
                queue.pop_front();
                self.idle_events.push(event);
                let left = self.waiting.get_mut(&id).map_or(0, |left| {
                    *left -= 1;
                    *left
                });
                if left == 0 {
                    self.waiting.remove(&id);
                    heap.free_completed(id);
                }
            }
        }
        self.queues.retain(|(_, queue)| !queue.is_empty());
        result
    }

    /// Gives every event back to the driver. For the end of an allocator.
    pub(crate) fn destroy_events(&mut self, driver: &dyn Driver) {
        let queued = self.queues.drain(..).flat_map(|(_, queue)| queue).map(|(event, _)| event);
        for event in self.idle_events.drain(..).chain(queued) {
            if let Err(error) = driver.event_destroy(event) {
                tracing::warn!(%error, "an event could not be destroyed");
            }
        }
    }
}

/// A block whose events are recorded but which is not pending yet.
pub(crate) struct PendingFree {
    id: BlockId,
    events: Vec<(StreamId, EventId)>,
}

//! Blocks that the program has freed while other streams may still use them.
//!
//! Owns: the streams named by `record_stream`, the events recorded at the free, and the order in which they are asked
//! about. As in PyTorch, events are asked in the order of each stream, and only at an allocation: at every one, or where the
//! strategy says so, at one that finds no free block and now and then; while a stream is being captured none is recorded or
//! asked for.

use crate::driver::{Driver, DriverResult};
use crate::heap::{Heap, map_bytes};
use crate::ids::{BlockId, EventId, StreamId};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Freed blocks waiting for the streams that used them.
#[derive(Debug, Default)]
pub(crate) struct RecordedStreams {
    /// Streams other than its own that use a live block.
    uses: FxHashMap<BlockId, Vec<StreamId>>,
    /// Events recorded at frees, by stream, oldest first.
    queues: Vec<(StreamId, VecDeque<(EventId, BlockId)>)>,
    /// Blocks freed during a capture: their events are recorded once it is over. Oldest first.
    held: VecDeque<BlockId>,
    /// How many events each pending block waits for.
    waiting: FxHashMap<BlockId, u32>,
    /// Events to use again.
    idle_events: Vec<EventId>,
    /// How many blocks were still waiting when events were last asked about.
    left: usize,
}

/// With fewer blocks waiting, only a miss asks about them.
const FEW: usize = 64;

impl RecordedStreams {
    /// Bytes of host memory, about.
    pub(crate) fn host_bytes(&self) -> usize {
        let queued: usize = self.queues.iter().map(|(_, queue)| queue.capacity()).sum();
        queued * size_of::<(EventId, BlockId)>()
            + self.idle_events.capacity() * size_of::<EventId>()
            + map_bytes(&self.uses)
            + self.uses.len() * size_of::<[StreamId; 4]>()
            + map_bytes(&self.waiting)
    }

    /// Whether it is time to ask about events even if no request misses their memory: so many more blocks wait than when
    /// they were last asked about that the time to ask is constant for each, or some have no events yet.
    pub(crate) fn is_due(&self) -> bool {
        !self.held.is_empty() || self.waiting.len() > FEW.max(2 * self.left)
    }

    /// How many streams and held blocks freed blocks wait for; 0 if none waits.
    pub(crate) fn waiting(&self) -> usize {
        self.queues.len() + self.held.len()
    }

    /// Whether other streams use a live or held block.
    pub(crate) fn has_uses(&self, id: BlockId) -> bool {
        self.uses.contains_key(&id)
    }

    /// A stream other than the block's own uses it from now on. Naming it twice is the same as once.
    pub(crate) fn record_use(&mut self, heap: &mut Heap, id: BlockId, stream: StreamId) {
        let pool = heap.pool(heap.block(id).pool.large());
        // A handle that has ended is another stream's now.
        if stream == pool.stream && !pool.ended {
            return;
        }
        let uses = self.uses.entry(id).or_default();
        if !uses.contains(&stream) {
            uses.push(stream);
        }
        heap.set_has_uses(id, true);
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
        heap.set_pending(id);
        self.waiting.insert(id, events.len() as u32);
        for (stream, event) in events {
            match self.queues.iter_mut().find(|(of, _)| *of == stream) {
                Some((_, queue)) => queue.push_back((event, id)),
                None => self.queues.push((stream, VecDeque::from([(event, id)]))),
            }
        }
    }

    /// The block waits for the end of a capture, and then for the streams that use it.
    pub(crate) fn hold(&mut self, heap: &mut Heap, id: BlockId) {
        heap.set_pending(id);
        self.held.push_back(id);
    }

    /// No stream is being captured any more: held blocks wait for their streams.
    fn record_held(&mut self, heap: &mut Heap, driver: &dyn Driver) -> DriverResult<()> {
        while let Some(&id) = self.held.front() {
            if !self.has_uses(id) {
                self.held.pop_front();
                heap.free_completed(id);
                continue;
            }
            let pending = self.record_events(driver, id)?;
            self.held.pop_front();
            self.defer(heap, pending);
        }
        Ok(())
    }

    /// Frees what has become free: of each stream the oldest events, up to the first that is not complete.
    pub(crate) fn poll(&mut self, heap: &mut Heap, driver: &dyn Driver) -> DriverResult<()> {
        self.record_held(heap, driver)?;
        self.ask(heap, driver)
    }

    /// As [`Self::poll`], for what has its events already.
    pub(crate) fn ask(&mut self, heap: &mut Heap, driver: &dyn Driver) -> DriverResult<()> {
        self.drain(heap, |_, event| driver.event_query(event))
    }

    /// A stream is no more, and all that it was given is done: nothing waits for it any longer.
    pub(crate) fn end_stream(&mut self, heap: &mut Heap, stream: StreamId) -> DriverResult<()> {
        self.uses.retain(|_, streams| {
            streams.retain(|of| *of != stream);
            !streams.is_empty()
        });
        self.drain(heap, |of, _| Ok(of == stream))
    }

    /// Waits for every event, and frees all that waited.
    pub(crate) fn synchronize(&mut self, heap: &mut Heap, driver: &dyn Driver) -> DriverResult<()> {
        self.record_held(heap, driver)?;
        self.drain(heap, |_, event| driver.event_synchronize(event).map(|()| true))
    }

    fn drain(
        &mut self,
        heap: &mut Heap,
        complete: impl Fn(StreamId, EventId) -> DriverResult<bool>,
    ) -> DriverResult<()> {
        let mut result = Ok(());
        for (stream, queue) in &mut self.queues {
            while let Some(&(event, id)) = queue.front() {
                match complete(*stream, event) {
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
        self.left = self.waiting.len();
        result
    }

    /// Gives every event back to the driver. For the end of an allocator.
    pub(crate) fn destroy_events(&mut self, driver: &dyn Driver) {
        let queued = self.queues.drain(..).flat_map(|(_, queue)| queue).map(|(event, _)| event);
        destroy_events(driver, self.idle_events.drain(..).chain(queued));
    }
}

/// Gives events back to the driver. With a lost context none can be: that is said once, not a thousand times.
pub(crate) fn destroy_events(driver: &dyn Driver, events: impl Iterator<Item = EventId>) {
    let failed: Vec<_> = events.filter_map(|event| driver.event_destroy(event).err()).collect();
    if let Some(error) = failed.first() {
        tracing::warn!(%error, count = failed.len(), "events could not be destroyed");
    }
}

/// A block whose events are recorded but which is not pending yet.
pub(crate) struct PendingFree {
    id: BlockId,
    events: Vec<(StreamId, EventId)>,
}

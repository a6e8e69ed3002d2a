//! Blocks that the program has freed while other streams may still use them.
//!
//! Owns: the streams named by `record_stream`, the events recorded at the free, and the order in which they are
//! queried. As in PyTorch, events are queried in the order of each stream, and only at allocations: at every
//! allocation, or, if the strategy says so, at allocations that find no free block and from time to time. While a
//! stream is being captured, no event is recorded or queried.

use super::context::{can_record, is_destroyed, wait_for_destroyed};
use super::named_events::NamedEvents;
use crate::driver::{Driver, DriverResult};
use crate::error::{Error, Result};
use crate::fallible::{Grown, TryPush, try_insert, with_room};
use crate::heap::{Heap, map_bytes};
use crate::ids::{BlockId, EventId, PoolIndex, StreamId};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// An event recorded at a free.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub(super) event: EventId,
    /// The block that waits for the event.
    pub(super) block: BlockId,
    /// The allocator's count of operations when the event was recorded.
    pub(super) at: u64,
}

/// The events and the epoch that a pending block waits for.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// The number of events.
    events: u32,
    /// The large pool in which the block was freed, and the pool's epoch then.
    freed: (PoolIndex, u64),
}

/// Freed blocks waiting for the streams that used them.
#[derive(Debug, Default)]
pub(crate) struct RecordedStreams {
    /// For each live block, the streams other than its own that use it.
    pub(super) uses: FxHashMap<BlockId, Vec<StreamId>>,
    /// The events recorded at frees, by stream, oldest first.
    queues: Vec<(StreamId, VecDeque<Queued>)>,
    /// Blocks freed during a capture, or while a stream that uses them is being captured, oldest first. Their events
    /// are recorded after the capture. The list has room for every block that other streams use.
    pub(super) held: VecDeque<BlockId>,
    /// Blocks that wait for the device. An external stream used each of them, and no event could be recorded on the
    /// stream, which may have been destroyed. The list has room for every block that other streams use.
    pub(super) of_device: Vec<BlockId>,
    /// The events and the epoch that each pending block waits for.
    waiting: FxHashMap<BlockId, Waiting>,
    pub(super) named: NamedEvents,
    /// Whether a queue may hold events that were not recorded in the order of the queue.
    pub(super) out_of_order: bool,
    /// Events that can be reused. The list has room for every event.
    pub(super) idle_events: Vec<EventId>,
    /// The number of threads that wait for events without the lock. While there are any, new events are made instead of
    /// reusing idle ones.
    pub(super) waiters: u32,
    /// The number of events, both idle and in the queues.
    events: usize,
    /// The number of blocks that were still waiting when events were last queried.
    left: usize,
}

/// The number of waiting blocks up to which only a miss queries their events.
const FEW: usize = 64;

impl RecordedStreams {
    /// Returns the approximate bytes of host memory that the tables take.
    pub(crate) fn host_bytes(&self) -> usize {
        let queued: usize = self.queues.iter().map(|(_, queue)| queue.capacity()).sum();
        queued * size_of::<Queued>()
            + self.idle_events.capacity() * size_of::<EventId>()
            + map_bytes(&self.uses)
            + self.uses.len() * size_of::<[StreamId; 4]>()
            + map_bytes(&self.waiting)
            + map_bytes(&self.named.0)
    }

    /// Returns whether events should be queried even if the request is a hit: some blocks have no events yet, or many
    /// more blocks wait than at the last query. So each block is queried a constant number of times on average.
    pub(crate) fn is_due(&self) -> bool {
        !self.held.is_empty() || self.waiting.len() > FEW.max(2 * self.left)
    }

    /// Returns the number of streams with queued events plus the number of held blocks (freed during a capture); 0 if
    /// no block waits.
    pub(crate) fn waiting(&self) -> usize {
        self.queues.len() + self.held.len()
    }

    /// Returns the blocks that wait for events.
    pub(super) fn waiting_blocks(&self) -> impl Iterator<Item = BlockId> {
        self.waiting.keys().copied()
    }

    /// Returns the events of each stream, oldest first.
    pub(super) fn queues(&self) -> impl Iterator<Item = (StreamId, &VecDeque<Queued>)> {
        self.queues.iter().map(|(stream, queue)| (*stream, queue))
    }

    /// Returns whether other streams use a live block, or a held one (freed during a capture).
    pub(crate) fn has_uses(&self, id: BlockId) -> bool {
        self.uses.contains_key(&id)
    }

    /// Returns the streams, other than its own, that use a live block, or a held one (freed during a capture).
    pub(crate) fn uses(&self, id: BlockId) -> &[StreamId] {
        self.uses.get(&id).map_or(&[], Vec::as_slice)
    }

    /// Notes that a stream other than the block's own uses the block. Naming a stream twice has the effect of naming it
    /// once. Returns whether the stream was new to the block.
    ///
    /// # Errors
    /// The host has too little memory to note the use. The tables are unchanged.
    pub(crate) fn record_use(&mut self, heap: &mut Heap, id: BlockId, stream: StreamId) -> Grown<bool> {
        let pool = heap.pool(heap.block(id).pool.large());
        if stream == pool.stream && !heap.has_no_stream(id) {
            return Ok(false);
        }
        self.add_use(heap, id, stream)
    }

    /// Notes that a block which is about to be freed must wait for its own stream too. Returns whether the stream was
    /// new to the block; `false` for a stream that has ended and for an external stream.
    ///
    /// # Errors
    /// The host has too little memory to note the use. The tables are unchanged.
    pub(crate) fn record_own(&mut self, heap: &mut Heap, id: BlockId) -> Grown<bool> {
        let stream = heap.pool(heap.block(id).pool.large()).stream;
        if heap.has_no_stream(id) || heap.is_external(stream) {
            return Ok(false);
        }
        self.add_use(heap, id, stream)
    }

    fn add_use(&mut self, heap: &mut Heap, id: BlockId, stream: StreamId) -> Grown<bool> {
        let is_new = match self.uses.get_mut(&id) {
            Some(uses) if uses.contains(&stream) => false,
            Some(uses) => {
                uses.try_push(stream)?;
                true
            }
            None => {
                let mut uses = with_room(1)?;
                uses.push(stream);
                self.held.try_reserve(self.uses.len() + 1)?;
                self.of_device.try_reserve(self.uses.len() + 1)?;
                try_insert(&mut self.uses, id, uses)?;
                true
            }
        };
        heap.set_has_uses(id);
        Ok(is_new)
    }

    /// Forgets a use that [`Self::record_use`] noted.
    pub(crate) fn forget_use(&mut self, heap: &mut Heap, id: BlockId, stream: StreamId) {
        self.named.drop_event(id, stream, &mut self.idle_events);
        let Some(uses) = self.uses.get_mut(&id) else { return };
        uses.retain(|of| *of != stream);
        if uses.is_empty() {
            self.uses.remove(&id);
            if !heap.frees_by_steps(id) {
                heap.clear_uses(id);
            }
        }
    }

    /// Forgets the streams that use a block, because the block is freed after all of their work.
    #[cfg(feature = "baselines")]
    pub(crate) fn forget_uses(&mut self, id: BlockId) {
        self.uses.remove(&id);
    }

    /// Makes the stream `onto` wait on the GPU for all work given to `streams` so far. Returns `false` if one of
    /// `streams` is being captured.
    ///
    /// # Errors
    /// A driver call failed, or the host has too little memory. The stream `onto` may already wait for some of
    /// `streams`.
    #[cfg(feature = "baselines")]
    pub(crate) fn join(&mut self, driver: &dyn Driver, streams: &[StreamId], onto: StreamId) -> Result<bool> {
        let more = (self.events + streams.len()).saturating_sub(self.idle_events.len());
        self.idle_events.try_reserve(more)?;
        let mut events = with_room(streams.len())?;
        let joined = streams.iter().try_fold(true, |all, stream| -> DriverResult<bool> {
            Ok(all && self.record_event(driver, *stream, &mut events)? != Recorded::InCapture)
        });
        let waited = joined.and_then(|all| {
            events.iter().filter(|_| all).try_for_each(|(_, event)| driver.stream_wait(onto, *event))?;
            Ok(all)
        });
        // Later records of an event do not change a wait that was already given to the GPU, so the event can be reused
        // now.
        self.idle_events.extend(events.into_iter().map(|(_, event)| event));
        Ok(waited?)
    }

    /// Records an event on every stream that uses a live block which is about to be freed. Returns `None` if one of the
    /// streams is being captured; the block must then be held until the capture ends. On an error the block's state is
    /// unchanged.
    pub(crate) fn record_events(&mut self, driver: &dyn Driver, id: BlockId) -> Result<Option<PendingFree>> {
        let events = self.make_room(id);
        let recorded = events.and_then(|mut events| match self.record_all(driver, id, &mut events) {
            Ok(true) => {
                self.named.0.remove(&id);
                Ok(Some(PendingFree { id, events }))
            }
            recorded => {
                // Events that were recorded when `record_stream` named the streams stay with the block.
                let named = self.named.0.get(&id).map_or(&[][..], Vec::as_slice);
                let anew = events.into_iter().filter(|event| !named.contains(event));
                self.idle_events.extend(anew.map(|(_, event)| event));
                Ok(recorded.map(|_| None)?)
            }
        });
        if !matches!(recorded, Ok(Some(_))) {
            self.drop_empty_queues();
        }
        recorded
    }

    /// Makes room for the events of a block, in the list of events and in the queues of its streams. Returns an empty
    /// list for the block's events.
    fn make_room(&mut self, id: BlockId) -> Result<Vec<(StreamId, EventId)>> {
        let streams = self.uses.get(&id).map_or(&[][..], Vec::as_slice);
        self.waiting.try_reserve(1)?;
        for stream in streams {
            match self.queues.iter_mut().find(|(of, _)| of == stream) {
                Some((_, queue)) => queue.try_reserve(1)?,
                None => {
                    let mut queue = VecDeque::new();
                    queue.try_reserve(1)?;
                    self.queues.try_reserve(1)?;
                    self.queues.push((*stream, queue));
                }
            }
        }
        let count = streams.len();
        self.reserve_events(count)?;
        Ok(with_room(count)?)
    }

    /// Makes room for `more` events in the list of idle events.
    pub(super) fn reserve_events(&mut self, more: usize) -> Grown<()> {
        let more = (self.events + more).saturating_sub(self.idle_events.len());
        self.idle_events.try_reserve(more)
    }

    /// Records an event on every stream that uses a block. Returns `false` if one of the streams is being captured.
    fn record_all(
        &mut self,
        driver: &dyn Driver,
        id: BlockId,
        events: &mut Vec<(StreamId, EventId)>,
    ) -> DriverResult<bool> {
        let count = self.uses.get(&id).map_or(0, Vec::len);
        for at in 0..count {
            let Some(stream) = self.uses.get(&id).and_then(|streams| streams.get(at)).copied() else { break };
            if let Some(event) = self.named.event_of(id, stream) {
                events.push((stream, event));
            } else if self.record_event(driver, stream, events)? == Recorded::InCapture {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Drops queues that were made for events which were not recorded.
    fn drop_empty_queues(&mut self) {
        self.queues.retain(|(_, queue)| !queue.is_empty());
    }

    /// Records an event on one stream, and adds it to `events`.
    pub(super) fn record_event(
        &mut self,
        driver: &dyn Driver,
        stream: StreamId,
        events: &mut Vec<(StreamId, EventId)>,
    ) -> DriverResult<Recorded> {
        let mut record = || -> DriverResult<Recorded> {
            if !can_record(driver, stream)? {
                return Ok(Recorded::InCapture);
            }
            let event = match self.idle_events.pop_if(|_| self.waiters == 0) {
                Some(event) => event,
                None => {
                    let event = driver.event_create()?;
                    self.events += 1;
                    event
                }
            };
            driver.event_record(event, stream).inspect_err(|_| self.idle_events.push(event))?;
            events.push((stream, event));
            Ok(Recorded::Event)
        };
        match record() {
            Err(error) if error.status.may_name_no_stream() && is_destroyed(driver, stream) => {
                wait_for_destroyed(driver, stream)?;
                Ok(Recorded::StreamEnded)
            }
            recorded => recorded,
        }
    }

    /// Makes the block wait for its events. The tables have room for them.
    pub(crate) fn defer(&mut self, heap: &mut Heap, pending: PendingFree) {
        let PendingFree { id, events } = pending;
        self.uses.remove(&id);
        heap.set_pending(id);
        if events.is_empty() {
            // All of the streams were destroyed, and the CPU has waited for their work.
            heap.free_completed(id);
            self.drop_empty_queues();
            return;
        }
        let freed = heap.note_pending(id);
        self.waiting.insert(id, Waiting { events: events.len() as u32, freed });
        let at = heap.counters().operations();
        for (stream, event) in events {
            match self.queues.iter_mut().find(|(of, _)| *of == stream) {
                Some((_, queue)) => queue.push_back(Queued { event, block: id, at }),
                None => debug_assert!(false, "no room was made for an event"),
            }
        }
        self.drop_empty_queues();
    }

    /// Frees the blocks that wait for the device. The device must have done all work.
    pub(crate) fn device_passed(&mut self, heap: &mut Heap) {
        while let Some(id) = self.of_device.pop() {
            heap.free_completed(id);
        }
    }

    /// Records the events of held blocks, after the end of all captures.
    fn record_held(&mut self, heap: &mut Heap, driver: &dyn Driver) -> Result<()> {
        while let Some(&id) = self.held.front() {
            if !self.has_uses(id) {
                self.held.pop_front();
                heap.free_completed(id);
                continue;
            }
            let Some(pending) = self.record_events(driver, id)? else { break };
            self.held.pop_front();
            self.defer(heap, pending);
        }
        Ok(())
    }

    /// Frees the blocks whose events are complete. Each stream's events are queried from the oldest up to the first
    /// incomplete one.
    pub(crate) fn poll(&mut self, heap: &mut Heap, driver: &dyn Driver) -> Result<()> {
        match self.record_held(heap, driver) {
            // Without host memory, the blocks stay held.
            Ok(()) | Err(Error::HostMemory) => Ok(self.poll_events(heap, driver)?),
            failed => failed,
        }
    }

    /// Frees the blocks whose events are complete, as [`Self::poll`] does, but records no events of held blocks (freed
    /// during a capture).
    pub(crate) fn poll_events(&mut self, heap: &mut Heap, driver: &dyn Driver) -> DriverResult<()> {
        self.drain(heap, |_, event| driver.event_query(event))
    }

    /// Frees the blocks whose events on one stream are complete and that wait for no other stream.
    pub(super) fn poll_stream(&mut self, heap: &mut Heap, driver: &dyn Driver, stream: StreamId) -> DriverResult<()> {
        self.drain(heap, |of, event| if of == stream { driver.event_query(event) } else { Ok(false) })
    }

    /// Ends all waits for a stream that has ended and whose work is done.
    pub(crate) fn end_stream(&mut self, heap: &mut Heap, stream: StreamId) -> DriverResult<()> {
        self.uses.retain(|_, streams| {
            streams.retain(|of| *of != stream);
            !streams.is_empty()
        });
        self.named.drop_events_of(stream, &mut self.idle_events);
        self.drain(heap, |of, _| Ok(of == stream))
    }

    /// Waits for every event, and frees all waiting blocks.
    pub(crate) fn synchronize(&mut self, heap: &mut Heap, driver: &dyn Driver) -> Result<()> {
        self.record_held(heap, driver)?;
        if !self.of_device.is_empty() {
            driver.synchronize()?;
            self.device_passed(heap);
        }
        Ok(self.drain(heap, |_, event| driver.event_synchronize(event).map(|()| true))?)
    }

    fn drain(
        &mut self,
        heap: &mut Heap,
        complete: impl Fn(StreamId, EventId) -> DriverResult<bool>,
    ) -> DriverResult<()> {
        let mut result = Ok(());
        for (stream, queue) in &mut self.queues {
            let mut at = 0;
            while let Some(&Queued { event, block: id, .. }) = queue.get(at) {
                match complete(*stream, event) {
                    Ok(true) => {}
                    Ok(false) if self.out_of_order => {
                        at += 1;
                        continue;
                    }
                    Ok(false) => break,
                    Err(error) => {
                        result = Err(error);
                        break;
                    }
                }
                queue.remove(at);
                self.idle_events.push(event);
                let left = self.waiting.get_mut(&id).map_or(0, |waiting| {
                    waiting.events -= 1;
                    waiting.events
                });
                if left == 0 {
                    self.waiting.remove(&id);
                    heap.free_completed(id);
                }
            }
        }
        self.drop_empty_queues();
        self.left = self.waiting.len();
        result
    }

    /// Returns the epoch in which a pending block was freed; `None` if the block no longer belongs to the pool `large`.
    /// Each pool of a stream counts its own epochs, and the end of a private pool makes its blocks public.
    pub(super) fn epoch_in(&self, id: BlockId, large: PoolIndex) -> Option<u64> {
        self.waiting.get(&id).and_then(|waiting| Some(waiting.freed.1).filter(|_| waiting.freed.0 == large))
    }

    /// Calls `wait` with each event of a pending block: its stream, the event, and the number of the operation that
    /// recorded it.
    pub(super) fn wait_on_gpu(
        &self,
        id: BlockId,
        mut wait: impl FnMut(StreamId, EventId, u64) -> DriverResult<()>,
    ) -> DriverResult<()> {
        let of_block = |queued: &&Queued| queued.block == id;
        let mut events = self.queues.iter().filter_map(|(stream, queue)| Some((*stream, queue.iter().find(of_block)?)));
        events.try_for_each(|(stream, queued)| wait(stream, queued.event, queued.at))
    }

    /// Drops the events of a pending block, because a stream waits for them on the GPU from now on.
    pub(super) fn stop_waiting(&mut self, id: BlockId) {
        self.waiting.remove(&id);
        for (_, queue) in &mut self.queues {
            if let Some(queued) = queue.iter().position(|queued| queued.block == id).and_then(|at| queue.remove(at)) {
                self.idle_events.push(queued.event);
            }
        }
        self.drop_empty_queues();
    }

    /// Gives every event back to the driver, at the end of an allocator.
    pub(crate) fn destroy_events(&mut self, driver: &dyn Driver) {
        let queued = self.queues.drain(..).flat_map(|(_, queue)| queue).map(|queued| queued.event);
        let named = self.named.0.drain().flat_map(|(_, events)| events).map(|(_, event)| event);
        destroy_events(driver, self.idle_events.drain(..).chain(queued).chain(named));
    }
}

/// Gives events back to the driver. With a lost context, events cannot be given back, and one line is logged.
pub(crate) fn destroy_events(driver: &dyn Driver, events: impl Iterator<Item = EventId>) {
    let (mut first, mut count) = (None, 0);
    for error in events.filter_map(|event| driver.event_destroy(event).err()) {
        first.get_or_insert(error);
        count += 1;
    }
    if let Some(error) = first {
        tracing::warn!(%error, count, "events could not be destroyed");
    }
}

/// The result of an attempt to record an event.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Recorded {
    Event,
    /// The stream was destroyed. The CPU has waited for its work.
    StreamEnded,
    /// The stream is being captured, so no event was recorded.
    InCapture,
}

/// A block whose events are recorded and that is not pending yet.
pub(crate) struct PendingFree {
    id: BlockId,
    pub(super) events: Vec<(StreamId, EventId)>,
}

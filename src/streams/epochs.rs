//! Epochs, which decide when memory freed on one stream may serve another stream.
//!
//! Owns: the events that close epochs, and the epochs that the GPU has passed.
//!
//! # Note: epochs
//!
//! **Rationale.** A stream runs its work in order, so memory freed on it may be handed out on it again at once. Another
//! stream may get the memory only after the GPU has reached the free. An event at each free would mark this point, at
//! the cost of a driver call for each free.
//!
//! **Approach.** Each stream counts epochs, and a freed range at home carries the number of the open epoch
//! (`freed_at`). One event closes an epoch:
//! ```text
//! stream A   | free a, free b | event 0 | free c | event 1 | free d
//!            |    epoch 0     |         |epoch 1 |         | epoch 2, open
//! ```
//! If event 0 is complete, `a` and `b` are *passed*. Passed memory becomes idle, and any stream may take it. If epoch 0
//! is not passed, another stream may wait for event 0 on the GPU and then take `a` or `b` (`sharing:wait`). From then
//! on, other streams get the memory only after the waiting stream has passed it too. `waits.rs` has these waits.
//!
//! An epoch is closed when another stream misses, when many bytes were freed in it, and at the low-water mark of live
//! memory. With a single stream, no event is recorded. Ranges that merge count as freed when the last of them was
//! freed.
//!
//! A free may name another stream than the block's own
//! ([`free_with_current_stream`](crate::Allocator::free_with_current_stream)). Work on the named stream may still use
//! the memory, although `record_stream` was not called. An event is then recorded on the named stream at once, and the
//! epoch is passed only when this event is complete too. The block's own stream need not wait, as in PyTorch.
//!
//! **Limitations.**
//! - If a stream keeps freeing into a large free range, the range is passed late, since its age is that of its latest
//!   free.
//! - A wait is for a whole epoch. Long epochs make waits longer than necessary; short epochs need more events.
//! - During a capture no epoch is closed, since the event might become part of the graph. Earlier events may be
//!   queried.
//! - A wait is for an event that is already recorded, so streams of one process cannot wait for each other in a circle.
//!   Through another process, a circle is possible. Programs with such waits use `sharing:completed`, where no stream
//!   waits.
//! - If a stream has more than 1,024 closed epochs that the GPU has not passed, its last epoch is prolonged.
//! - An external stream may be destroyed without telling the allocator, and its handle may then belong to another
//!   stream. Therefore an epoch of an external stream ends only at a free that names the stream as the current stream.
//!   Memory from other frees serves other streams after the CPU has waited for the device.

use super::context::{StreamContext, StreamState};
use super::record_stream::{RecordedStreams, destroy_events};
use crate::config::StreamSharing;
use crate::driver::{Driver, DriverResult, in_relaxed_capture_mode};
use crate::error::Result;
use crate::fallible::{Grown, TryCollect};
use crate::heap::Heap;
use crate::ids::{EventId, PoolIndex, StreamId};
use std::collections::VecDeque;

/// An epoch that has ended.
#[derive(Clone, Debug)]
pub(super) struct Closed {
    pub(super) epoch: u64,
    pub(super) event: EventId,
    /// Events of other streams that were the current stream at a free in this epoch.
    pub(super) others: Vec<(StreamId, EventId)>,
    /// The allocator's count of operations when the event was recorded.
    pub(super) at: u64,
}

impl Closed {
    fn events(self) -> impl Iterator<Item = EventId> {
        std::iter::once(self.event).chain(self.others.into_iter().map(|(_, event)| event))
    }
}

/// The most epochs of a stream, each with an event, that are kept until the GPU has passed them. If a stream has more
/// such epochs, its last epoch is prolonged.
const MAX_CLOSED: usize = 1024;

/// If at least this many other streams were current at frees in an open epoch, their events are queried each time the
/// number has doubled.
const MANY_OTHERS: usize = 64;

/// The epochs of other streams for which a stream has waited on the GPU.
#[derive(Debug, Default)]
pub(super) struct Waited {
    /// The stream that waited, and its number, which tells it from later streams with the same handle. The stream's
    /// pools may pass to another stream, for which the waits do not hold.
    pub(super) by: (StreamId, Option<u64>),
    /// For each other stream, the last epoch waited for, in the order of the other streams' pools.
    pub(super) until: Vec<(PoolIndex, u64)>,
}

/// The closed epochs whose events have not completed, for every stream.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    /// The closed epochs by stream (the number of its pair of pools), oldest first.
    closed: Vec<VecDeque<Closed>>,
    /// For the open epoch of each stream, the events that become its [`Closed::others`].
    others: Vec<Vec<(StreamId, EventId)>>,
    /// Events that can be reused. The list has room for every event.
    idle_events: Vec<EventId>,
    /// The number of threads that wait for events without the lock. While there are any, no event is recorded again.
    pub(super) waiters: u32,
    /// The number of events, without the probe.
    events: usize,
    /// For each stream, the epochs of other streams for which it has waited on the GPU.
    pub(super) waited: Vec<Waited>,
    /// An event that tells whether the GPU has done all work of a stream.
    probe: Option<EventId>,
}

impl Epochs {
    /// Makes idle, of every stream's free memory, the part that the GPU has passed. Does nothing if only one stream has
    /// memory. In a capture no epoch ends, since its event might become part of the graph.
    pub(crate) fn gather(&mut self, context: &mut StreamContext<'_>, own: PoolIndex) -> Result<()> {
        if context.capturing() {
            return Ok(());
        }
        if context.sharing == StreamSharing::Never || with_memory(context).all(|pool| pool == own) {
            return Ok(());
        }
        let pools: Vec<PoolIndex> = with_memory(context).try_to_vec()?;
        for &pool in &pools {
            self.close(context, pool)?;
            self.poll(context, pool)?;
        }
        pools.into_iter().try_for_each(|pool| make_passed_idle(context, pool))
    }

    /// Makes passed memory idle, as [`Self::gather`] does, without a requesting stream.
    pub(crate) fn gather_all(&mut self, context: &mut StreamContext<'_>) -> Result<()> {
        let first = with_memory(context).next();
        first.map_or(Ok(()), |own| self.gather(context, own))
    }

    /// Ends an epoch that has become long, if another stream may need the memory freed in it. The other stream then
    /// need not wait for later work of this stream.
    pub(crate) fn end(&mut self, context: &mut StreamContext<'_>, pool: PoolIndex) -> Result<()> {
        let alone = context.heap.asking_pools().all(|other| other == pool);
        if alone || context.sharing == StreamSharing::Never || context.capturing() || context.heap.is_private(pool) {
            return Ok(());
        }
        self.poll_if_many(context, pool)?;
        self.close(context, pool)
    }

    /// Ends the open epoch of an external stream. Called only within a call of the program that names the stream, since
    /// the stream may be destroyed later.
    pub(crate) fn end_external(&mut self, context: &mut StreamContext<'_>, pool: PoolIndex) -> Result<()> {
        if context.capturing() || context.heap.is_private(pool) {
            return Ok(());
        }
        self.poll_if_many(context, pool)?;
        self.close_now(context, pool)
    }

    /// Queries events if a stream has many closed epochs, to make room for another. Otherwise only a request that needs
    /// the memory queries the events.
    fn poll_if_many(&mut self, context: &mut StreamContext<'_>, pool: PoolIndex) -> DriverResult<()> {
        let many = self.closed.get(pool.stream()).is_some_and(|closed| closed.len() >= MAX_CLOSED / 2);
        if many { self.poll(context, pool) } else { Ok(()) }
    }

    /// During a capture, frees or makes idle the memory that is passed according to events recorded before the capture.
    pub(crate) fn poll_in_capture(
        &mut self,
        context: &mut StreamContext<'_>,
        recorded: &mut RecordedStreams,
    ) -> Result<()> {
        let sharing = context.sharing != StreamSharing::Never;
        let pools: Vec<PoolIndex> = context.heap.stream_pools().filter(|_| sharing).try_to_vec()?;
        in_relaxed_capture_mode(context.driver, true, || {
            recorded.poll_events(context.heap, context.driver)?;
            pools.iter().try_for_each(|pool| self.poll(context, *pool))
        })?;
        pools.into_iter().try_for_each(|pool| make_passed_idle(context, pool))
    }

    /// Makes idle the memory that one stream has passed. No epoch ends.
    pub(super) fn poll_stream(&mut self, context: &mut StreamContext<'_>, pool: PoolIndex) -> Result<()> {
        self.poll(context, pool)?;
        if context.sharing == StreamSharing::Never { Ok(()) } else { make_passed_idle(context, pool) }
    }

    /// Ends every open epoch, and notes the epochs that the GPU has passed. Does nothing in a capture.
    pub(crate) fn advance(&mut self, context: &mut StreamContext<'_>) -> Result<()> {
        if context.capturing() {
            return Ok(());
        }
        for pool in context.heap.pairs() {
            if context.heap.is_of_stream(pool) {
                self.close(context, pool)?;
                self.poll(context, pool)?;
            }
        }
        Ok(())
    }

    /// Returns whether `epoch` or a later epoch is in the stream's list of closed epochs, so that an event tells when
    /// `epoch` is passed.
    pub(super) fn covers(&self, pool: PoolIndex, epoch: u64) -> bool {
        self.closed.get(pool.stream()).and_then(VecDeque::back).is_some_and(|last| last.epoch >= epoch)
    }

    /// Returns the closed epochs up to `epoch`, or up to the first later one if `epoch` is not in the list, oldest
    /// first.
    pub(super) fn closed_up_to(&self, pool: PoolIndex, epoch: u64) -> impl DoubleEndedIterator<Item = &Closed> + Clone {
        static NONE: VecDeque<Closed> = VecDeque::new();
        let closed = self.closed.get(pool.stream()).unwrap_or(&NONE);
        closed.range(..closed.len().min(closed.partition_point(|closed| closed.epoch < epoch) + 1))
    }

    /// Ends the open epoch of a stream if memory was freed in it, unless the stream is external.
    pub(super) fn close(&mut self, context: &mut StreamContext<'_>, pool: PoolIndex) -> Result<()> {
        if context.heap.is_external(context.heap.pool(pool).stream) { Ok(()) } else { self.close_now(context, pool) }
    }

    fn close_now(&mut self, context: &mut StreamContext<'_>, pool: PoolIndex) -> Result<()> {
        if !context.heap.pool(pool).freed_in_epoch {
            return Ok(());
        }
        match context.stream_state(pool)? {
            StreamState::Live => {}
            // The epoch stays open until the capture ends.
            StreamState::Captured => return Ok(()),
            StreamState::Ended => {
                self.passed(context.heap, pool);
                return Ok(());
            }
        }
        let number = pool.stream();
        self.make_room(number)?;
        let at = context.heap.counters().operations();
        let of = context.heap.pool(pool);
        let (epoch, event) = (of.epoch, self.record(context.driver, of.stream)?);
        let others = self.others.get_mut(number).map(std::mem::take).unwrap_or_default();
        let queue = &mut self.closed[number];
        let full = queue.len() >= MAX_CLOSED;
        match queue.back_mut().filter(|_| full) {
            // The later event marks the end of both the last closed epoch and the open one.
            Some(last) => {
                self.idle_events.push(std::mem::replace(&mut last.event, event));
                for (stream, event) in others {
                    match last.others.iter_mut().find(|(of, _)| *of == stream) {
                        Some((_, before)) => self.idle_events.push(std::mem::replace(before, event)),
                        None => last.others.push((stream, event)),
                    }
                }
                (last.epoch, last.at) = (epoch, at);
            }
            None => queue.push_back(Closed { epoch, event, others, at }),
        }
        context.heap.end_epoch(pool);
        Ok(())
    }

    /// Makes room to close the open epoch of a stream.
    fn make_room(&mut self, number: usize) -> Grown<()> {
        grow_to(&mut self.closed, number + 1, VecDeque::new)?;
        let queue = &mut self.closed[number];
        match queue.len() >= MAX_CLOSED {
            true => {
                let others = self.others.get(number).map_or(0, Vec::len);
                queue.back_mut().map_or(Ok(()), |last| last.others.try_reserve(others))
            }
            false => queue.try_reserve(1),
        }
    }

    /// Notes that memory of a large pool is freed while `stream` is the current stream. The work given to `stream` so
    /// far must be done before other streams get memory freed in this epoch. The event is recorded at once, since the
    /// stream may be destroyed afterwards. Returns whether the event was recorded. In a capture no event is recorded,
    /// although other streams still run. Nor is an event recorded if `stream` is in a capture of which the allocator
    /// was not told.
    pub(crate) fn free_used_by(
        &mut self,
        context: &StreamContext<'_>,
        pool: PoolIndex,
        stream: StreamId,
    ) -> Result<bool> {
        if context.capturing() || !context.can_record(stream)? {
            return Ok(false);
        }
        let number = pool.stream();
        grow_to(&mut self.others, number + 1, Vec::new)?;
        match self.others[number].iter().find(|(of, _)| *of == stream) {
            Some((_, event)) => context.driver.event_record(*event, stream)?,
            None => {
                self.others[number].try_reserve(1)?;
                let event = self.record(context.driver, stream)?;
                self.others[number].push((stream, event));
                self.drop_passed(context.driver, number);
            }
        }
        Ok(true)
    }

    /// Of the streams that were current at frees in an open epoch, drops those whose events are complete, each time
    /// their number has doubled. Otherwise an epoch that stays open would collect streams without a bound.
    fn drop_passed(&mut self, driver: &dyn Driver, number: usize) {
        let others = &mut self.others[number];
        if others.len() < MANY_OTHERS || !others.len().is_power_of_two() {
            return;
        }
        // An event that cannot be queried now is kept. The request that needs the memory queries it.
        let passed = others.extract_if(.., |(_, event)| driver.event_query(*event).unwrap_or(false));
        self.idle_events.extend(passed.map(|(_, event)| event));
    }

    fn record(&mut self, driver: &dyn Driver, stream: StreamId) -> Result<EventId> {
        let event = match self.idle_events.pop_if(|_| self.waiters == 0) {
            Some(event) => event,
            None => {
                self.idle_events.try_reserve(self.events + 1)?;
                let event = driver.event_create()?;
                self.events += 1;
                event
            }
        };
        driver.event_record(event, stream).inspect_err(|_| self.idle_events.push(event))?;
        Ok(event)
    }

    /// Notes the epochs of a stream that the GPU has passed.
    fn poll(&mut self, context: &mut StreamContext<'_>, pool: PoolIndex) -> DriverResult<()> {
        let Some(queue) = self.closed.get_mut(pool.stream()) else { return Ok(()) };
        while let Some(closed) = queue.front_mut() {
            if !context.driver.event_query(closed.event)? {
                break;
            }
            while let Some((_, event)) = closed.others.last() {
                if !context.driver.event_query(*event)? {
                    return Ok(());
                }
                self.idle_events.push(*event);
                closed.others.pop();
            }
            context.heap.set_passed(pool, closed.epoch + 1);
            self.idle_events.extend(queue.pop_front().into_iter().flat_map(Closed::events));
        }
        Ok(())
    }

    /// Returns whether the GPU has done all work given to the stream of a large pool so far. Records an event and
    /// queries it. Returns `false` for an external stream.
    pub(crate) fn has_passed_all(&mut self, context: &mut StreamContext<'_>, large: PoolIndex) -> DriverResult<bool> {
        let stream = context.heap.pool(large).stream;
        if context.heap.is_external(stream) {
            return Ok(false);
        }
        match context.stream_state(large)? {
            StreamState::Live => {}
            StreamState::Captured => return Ok(false),
            StreamState::Ended => return Ok(true),
        }
        let event = match self.probe {
            Some(event) => event,
            None => *self.probe.insert(context.driver.event_create()?),
        };
        context.driver.event_record(event, stream)?;
        context.driver.event_query(event)
    }

    /// Returns whether other streams may still use memory that was freed on the stream of a large pool.
    pub(crate) fn waits_for_others(&self, pool: PoolIndex) -> bool {
        let number = pool.stream();
        self.others.get(number).is_some_and(|others| !others.is_empty())
            || self.closed.get(number).is_some_and(|closed| closed.iter().any(|closed| !closed.others.is_empty()))
    }

    /// Notes that the CPU has waited for every stream. All epochs are passed, including open ones.
    pub(crate) fn all_passed(&mut self, context: &mut StreamContext<'_>) {
        for pool in context.heap.pairs() {
            if context.heap.is_of_stream(pool) {
                self.passed(context.heap, pool);
            }
        }
    }

    /// Notes that all work of a stream is done, and all work of the streams that were current while its memory was
    /// freed. All epochs of the stream are passed, including the open one.
    pub(crate) fn passed(&mut self, heap: &mut Heap, pool: PoolIndex) {
        if let Some(queue) = self.closed.get_mut(pool.stream()) {
            self.idle_events.extend(queue.drain(..).flat_map(Closed::events));
        }
        if let Some(others) = self.others.get_mut(pool.stream()) {
            self.idle_events.extend(others.drain(..).map(|(_, event)| event));
        }
        heap.end_epoch(pool);
        heap.set_passed(pool, heap.pool(pool).epoch);
    }

    /// Gives every event back to the driver, at the end of an allocator.
    pub(crate) fn destroy_events(&mut self, driver: &dyn Driver) {
        let queued = self.closed.drain(..).flatten().flat_map(Closed::events);
        let others = self.others.drain(..).flatten().map(|(_, event)| event);
        destroy_events(driver, self.idle_events.drain(..).chain(queued).chain(others).chain(self.probe.take()));
    }
}

/// Makes idle, of a stream's free memory, the part that the GPU is known to have passed.
fn make_passed_idle(context: &mut StreamContext<'_>, pool: PoolIndex) -> Result<()> {
    let passed = context.heap.pool(pool).passed;
    context.heap.make_passed_idle(pool, passed)
}

/// Extends a list to at least `len` elements.
pub(super) fn grow_to<T>(list: &mut Vec<T>, len: usize, empty: fn() -> T) -> Grown<()> {
    let more = len.saturating_sub(list.len());
    list.try_reserve(more)?;
    list.extend(std::iter::repeat_with(empty).take(more));
    Ok(())
}

/// Returns the large pools of the streams that have free memory in large or small blocks.
pub(super) fn with_memory<'a>(context: &'a StreamContext<'_>) -> impl Iterator<Item = PoolIndex> + use<'a> {
    let heap = &*context.heap;
    heap.stream_pools().filter(move |large| heap.has_free(*large) || heap.has_free(large.small()))
}

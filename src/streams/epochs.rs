//! Epochs: when memory freed on one stream may serve another.
//!
//! Owns: the events that close epochs, and which epochs the GPU has passed.
//!
//! # Note: epochs
//!
//! **Rationale.** A stream runs its work in order, so memory freed on it may be handed out on it again at once. Another
//! stream may have the memory only after the GPU has reached the free. An event at each free would tell when, at the
//! cost of a driver call each time.
//!
//! **Approach.** Each stream counts epochs, and a freed range at home carries the number of the open one (`freed_at`).
//! One event closes an epoch:
//! ```text
//! stream A   | free a, free b | event 0 | free c | event 1 | free d
//!            |    epoch 0     |         |epoch 1 |         | epoch 2, open
//! ```
//! If event 0 is complete, `a` and `b` are *passed*. Passed memory becomes idle: any stream may take it. If nothing is
//! passed yet, another stream may wait for event 0 on the GPU and take `a` or `b` behind that wait (`sharing:wait`).
//! From then on, the waiting stream is the one that has to pass. `waits.rs` has these waits.
//!
//! An epoch is closed when another stream misses, when much was freed in it, and at the low-water mark of live memory.
//! With a single stream, no event is recorded. Merged ranges count as freed when the last of them was.
//!
//! A free may name another stream than the block's own ([`free_with_current_stream`](crate::Allocator::free_with_current_stream)): work on that
//! stream may still use the memory, although `record_stream` was not called. Then an event is recorded there at once,
//! and the epoch is passed only when that event is complete too. The block's own stream need not wait, as in PyTorch.
//!
//! **Limitations.**
//! - If a stream keeps freeing into a large free range, that range is passed late, since it is as young as its
//!   youngest byte.
//! - A wait is for the whole epoch. Long epochs make waits longer than necessary; short epochs cost events.
//! - During a capture no epoch is closed: its event might become the graph's. Earlier events may be queried.
//! - A wait is for an event that is recorded already, so streams of one process cannot wait for each other in a
//!   circle. Through another process they can. Such programs use `sharing:completed`, where no stream waits.
//! - If a stream is more than 1,024 epochs behind, its last epoch is prolonged.
//! - A stream that others own may be destroyed without the allocator being told, and then its handle may be another
//!   stream's. The epochs of such an external stream end only at frees that name it as the current one, each at once.
//!   Memory freed otherwise serves other streams after the CPU has waited for the device.

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
    /// Events of other streams that were current while memory was freed in it.
    pub(super) others: Vec<(StreamId, EventId)>,
    /// The allocator's count of operations when the event was recorded.
    pub(super) at: u64,
}

impl Closed {
    fn events(self) -> impl Iterator<Item = EventId> {
        std::iter::once(self.event).chain(self.others.into_iter().map(|(_, event)| event))
    }
}

/// How many epochs of a stream are kept apart while the GPU has not passed them, each with an event. If a stream is
/// further behind, its last epoch is prolonged.
const MAX_CLOSED: usize = 1024;

/// With fewer other streams in an open epoch, their events are not queried.
const MANY_OTHERS: usize = 64;

/// The epochs of other streams for which a stream has waited on the GPU.
#[derive(Debug, Default)]
pub(super) struct Waited {
    /// The stream and its number, since its pools may pass to another stream.
    pub(super) by: (StreamId, Option<u64>),
    /// The last epoch of each other stream, in the order of their pools.
    pub(super) until: Vec<(PoolIndex, u64)>,
}

/// The closed epochs of every stream whose events have not completed.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    /// By stream (the number of its pair of pools), oldest first.
    closed: Vec<VecDeque<Closed>>,
    /// For the open epoch of each stream, the events that become its [`Closed::others`].
    others: Vec<Vec<(StreamId, EventId)>>,
    /// Events that can be used again. There is room for every event.
    idle_events: Vec<EventId>,
    /// How many threads wait for events without the lock. Until they are done, no event is recorded anew.
    pub(super) waiters: u32,
    /// The number of events, besides the probe.
    events: usize,
    /// The epochs for which each stream has waited on the GPU.
    pub(super) waited: Vec<Waited>,
    /// An event that tells whether the GPU has done all work of a stream.
    probe: Option<EventId>,
}

impl Epochs {
    /// Makes idle the memory of all streams that the GPU has passed. Does nothing while only one stream has memory.
    /// In a capture no epoch ends: its event might be the graph's.
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

    /// Makes idle the memory of all streams that the GPU has passed, as [`Self::gather`] does, for no stream in
    /// particular.
    pub(crate) fn gather_all(&mut self, context: &mut StreamContext<'_>) -> Result<()> {
        let first = with_memory(context).next();
        first.map_or(Ok(()), |own| self.gather(context, own))
    }

    /// Ends an epoch that has become long, if another stream may need the memory freed in it: that stream then need not
    /// wait for later work of this one.
    pub(crate) fn end(&mut self, context: &mut StreamContext<'_>, pool: PoolIndex) -> Result<()> {
        let alone = context.heap.asking_pools().all(|other| other == pool);
        if alone || context.sharing == StreamSharing::Never || context.capturing() || context.heap.is_private(pool) {
            return Ok(());
        }
        self.poll_if_many(context, pool)?;
        self.close(context, pool)
    }

    /// Ends the open epoch of an external stream, within a call of the program that names the stream: later the stream
    /// may have been destroyed.
    pub(crate) fn end_external(&mut self, context: &mut StreamContext<'_>, pool: PoolIndex) -> Result<()> {
        if context.capturing() || context.heap.is_private(pool) {
            return Ok(());
        }
        self.poll_if_many(context, pool)?;
        self.close_now(context, pool)
    }

    /// Makes room for another closed epoch. A stream that needs to know how far the GPU is queries the events itself.
    fn poll_if_many(&mut self, context: &mut StreamContext<'_>, pool: PoolIndex) -> DriverResult<()> {
        let many = self.closed.get(pool.stream()).is_some_and(|closed| closed.len() >= MAX_CLOSED / 2);
        if many { self.poll(context, pool) } else { Ok(()) }
    }

    /// During a capture: frees and makes idle the memory that is passed according to events recorded before the
    /// capture.
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

    /// Ends every open epoch and notes which epochs the GPU has passed. Does nothing in a capture.
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

    /// Returns whether a closed epoch covers `epoch`.
    pub(super) fn covers(&self, pool: PoolIndex, epoch: u64) -> bool {
        self.closed.get(pool.stream()).and_then(VecDeque::back).is_some_and(|last| last.epoch >= epoch)
    }

    /// Returns the closed epochs up to the first that covers `epoch`, oldest first.
    pub(super) fn closed_up_to(&self, pool: PoolIndex, epoch: u64) -> impl DoubleEndedIterator<Item = &Closed> + Clone {
        static NONE: VecDeque<Closed> = VecDeque::new();
        let closed = self.closed.get(pool.stream()).unwrap_or(&NONE);
        closed.range(..closed.len().min(closed.partition_point(|closed| closed.epoch < epoch) + 1))
    }

    /// Ends the open epoch of a stream, if anything was freed in it, unless the stream is external.
    pub(super) fn close(&mut self, context: &mut StreamContext<'_>, pool: PoolIndex) -> Result<()> {
        if context.heap.is_external(context.heap.pool(pool).stream) { Ok(()) } else { self.close_now(context, pool) }
    }

    fn close_now(&mut self, context: &mut StreamContext<'_>, pool: PoolIndex) -> Result<()> {
        if !context.heap.pool(pool).freed_in_epoch {
            return Ok(());
        }
        match context.stream_state(pool)? {
            StreamState::Live => {}
            // The epoch stays open until the end of the capture.
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
            // The later events cover both epochs.
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

    /// Notes that memory of a large pool is freed while `stream` is the current one: the work given to that stream so
    /// far must pass before other streams get memory freed in this epoch. The event is recorded at once, for the stream
    /// may be destroyed afterwards. Returns whether the event was recorded. None is recorded in a capture, though
    /// streams other than the captured one still run, nor in a capture of `stream` that the allocator was not told of.
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

    /// Drops other streams that have passed, each time their number has doubled: an epoch may stay open without end
    /// while such streams come and go.
    fn drop_passed(&mut self, driver: &dyn Driver, number: usize) {
        let others = &mut self.others[number];
        if others.len() < MANY_OTHERS || !others.len().is_power_of_two() {
            return;
        }
        // An event that cannot be queried at this point is kept, and queried by the request that needs the memory.
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

    /// Notes which epochs of a stream the GPU has passed.
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
    /// queries it.
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

    /// Returns whether streams other than its own may still use memory freed on the stream of a large pool.
    pub(crate) fn waits_for_others(&self, pool: PoolIndex) -> bool {
        let number = pool.stream();
        self.others.get(number).is_some_and(|others| !others.is_empty())
            || self.closed.get(number).is_some_and(|closed| closed.iter().any(|closed| !closed.others.is_empty()))
    }

    /// Notes that the CPU has waited for every stream: all epochs are passed, open ones too.
    pub(crate) fn all_passed(&mut self, context: &mut StreamContext<'_>) {
        for pool in context.heap.pairs() {
            if context.heap.is_of_stream(pool) {
                self.passed(context.heap, pool);
            }
        }
    }

    /// Notes that all work of a stream is done, and all work of the other streams that were current while its memory
    /// was freed: its epochs are passed, the open one too.
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

/// Makes idle the memory of a stream that the GPU is known to have passed.
fn make_passed_idle(context: &mut StreamContext<'_>, pool: PoolIndex) -> Result<()> {
    let passed = context.heap.pool(pool).passed;
    context.heap.make_passed_idle(pool, passed)
}

/// Makes a list at least `len` elements long.
pub(super) fn grow_to<T>(list: &mut Vec<T>, len: usize, empty: fn() -> T) -> Grown<()> {
    let more = len.saturating_sub(list.len());
    list.try_reserve(more)?;
    list.extend(std::iter::repeat_with(empty).take(more));
    Ok(())
}

/// Returns the large pools of streams that have free memory, in large blocks or small.
pub(super) fn with_memory<'a>(context: &'a StreamContext<'_>) -> impl Iterator<Item = PoolIndex> + use<'a> {
    let heap = &*context.heap;
    heap.stream_pools().filter(move |large| heap.has_free(*large) || heap.has_free(large.small()))
}

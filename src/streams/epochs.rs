//! Epochs: when memory freed on one stream may serve another.
//!
//! Owns: the events that close epochs, and which epochs the GPU has passed.
//!
//! # Note: epochs
//!
//! **Rationale.** A stream runs its work in order, so memory freed on it may be handed out on it again at once. Another
//! stream may have it only after the GPU has come to the free. An event at each free would say when, and cost a driver call
//! each time.
//!
//! **Approach.** Each stream counts epochs, and a freed range at home carries the number of the open one (`freed_at`). One
//! event closes an epoch:
//! ```text
//! stream A   | free a, free b | event 0 | free c | event 1 | free d
//!            |    epoch 0     |         |epoch 1 |         | epoch 2, open
//! ```
//! If event 0 is complete, `a` and `b` are *passed*. What is passed becomes idle: it belongs to all streams. Where nothing
//! is passed yet, another stream may wait for event 0 on the GPU and take `a` or `b` behind that wait (`sharing:wait`).
//! From then on it is the waiting stream that has to pass.
//!
//! An epoch is closed when another stream misses, when much was freed in it, and at the low-water mark of live memory. With
//! one stream no event is recorded. Ranges that merge count as freed when the youngest of them was.
//!
//! A free may name another stream than the block's own ([`free_under`](crate::Allocator::free_under)): work on that one
//! may still use the memory, although nobody called `record_stream`. Then an event is recorded there at once, and the epoch
//! is passed only when that is complete too. The block's own stream need not wait, as in PyTorch.
//!
//! **Limitations.**
//! - A large free range that its stream goes on freeing into is passed late, since it is as young as its youngest byte.
//! - A wait is for the whole epoch. Epochs that are long make waits longer than they need be; short ones cost events.
//! - During a capture no epoch is closed: its event might become the graph's. Events from before may be asked for.
//! - A wait is for an event that is recorded already, so streams of one process cannot wait for each other in a circle. By
//!   way of another process they can. Such programs use `sharing:completed`, where no stream waits.
//! - A stream that is more than 1,024 epochs behind has its last one prolonged.

use super::context::StreamContext;
use super::record_stream::{RecordedStreams, destroy_events};
use crate::config::Sharing;
use crate::driver::{Driver, DriverResult, in_relaxed_capture_mode};
use crate::error::Result;
use crate::heap::{GRANULE, Heap, Request};
use crate::ids::{BlockId, EventId, PoolIndex, StreamId};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// An epoch that has ended.
#[derive(Clone, Debug)]
struct Closed {
    epoch: u64,
    event: EventId,
    /// Events of other streams that were current while memory was freed in it.
    others: Vec<(StreamId, EventId)>,
    /// The allocator's operations when the event was recorded.
    at: u64,
}

impl Closed {
    fn events(self) -> impl Iterator<Item = EventId> {
        std::iter::once(self.event).chain(self.others.into_iter().map(|(_, event)| event))
    }
}

/// A free block of another stream that a request takes, with the epoch in which it was freed there.
#[derive(Clone, Copy)]
struct Taken {
    from: PoolIndex,
    epoch: u64,
    block: BlockId,
}

/// How many times the request a stream gets at most of a range that it waits for. With less it waits again and again for
/// the same range; with all of it the other stream soon waits for its own memory.
const MOST_PASSED_ON: u64 = 16;

/// How many epochs of a stream are told apart while the GPU has not passed them, each with an event. A stream that is
/// further behind has its last epoch prolonged.
const MOST_CLOSED: usize = 1024;

/// With fewer other streams in an open epoch, nobody asks which of them have passed.
const MANY_OTHERS: usize = 64;

/// The closed epochs of every stream whose events have not completed.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    /// By stream (the number of its pair of pools), oldest first.
    closed: Vec<VecDeque<Closed>>,
    /// Likewise: what [`Closed::others`] of the open epoch will be.
    others: Vec<Vec<(StreamId, EventId)>>,
    /// Events to use again.
    idle_events: Vec<EventId>,
    /// Asks whether the GPU has done all that a stream was given.
    probe: Option<EventId>,
}

impl Epochs {
    /// Makes idle what the GPU has passed, of all streams. Does nothing as long as one stream alone has memory. Returns
    /// whether any became idle. In a capture no epoch ends: its event might be the graph's.
    pub(crate) fn gather(&mut self, context: &mut StreamContext<'_>, own: PoolIndex) -> DriverResult<bool> {
        if context.capturing() {
            return Ok(false);
        }
        if context.sharing == Sharing::Never || with_memory(context).all(|pool| pool == own) {
            return Ok(false);
        }
        let pools: Vec<PoolIndex> = with_memory(context).collect();
        for &pool in &pools {
            self.close(context, pool)?;
            self.poll(context, pool)?;
        }
        let mut any = false;
        for pool in pools {
            let passed = context.heap.pool(pool).passed;
            any |= context.heap.make_passed_idle(pool, passed);
        }
        Ok(any)
    }

    /// As [`Self::gather`], for no stream in particular: a stream alone has nobody to meet.
    pub(crate) fn gather_all(&mut self, context: &mut StreamContext<'_>) -> DriverResult<bool> {
        let first = with_memory(context).next();
        first.map_or(Ok(false), |own| self.gather(context, own))
    }

    /// Ends an epoch that has become long, where another stream may come to ask for what was freed in it: then it has not
    /// to wait for all that this one was given since.
    pub(crate) fn end(&mut self, context: &mut StreamContext<'_>, pool: PoolIndex) -> DriverResult<()> {
        let alone = context.heap.stream_pools().nth(1).is_none();
        if alone || context.sharing == Sharing::Never || context.capturing() || context.heap.is_private(pool) {
            return Ok(());
        }
        // Only to make room: who needs to know how far the GPU is asks for itself.
        if self.closed.get(pool.stream()).is_some_and(|closed| closed.len() >= MOST_CLOSED / 2) {
            self.poll(context, pool)?;
        }
        self.close(context, pool)
    }

    /// In a capture: frees and makes idle what events that were recorded before it tell to be passed.
    pub(crate) fn ask(&mut self, context: &mut StreamContext<'_>, recorded: &mut RecordedStreams) -> DriverResult<()> {
        let sharing = context.sharing != Sharing::Never;
        let pools: Vec<PoolIndex> = context.heap.stream_pools().filter(|_| sharing).collect();
        in_relaxed_capture_mode(context.driver, true, || {
            recorded.ask(context.heap, context.driver)?;
            pools.iter().try_for_each(|pool| self.poll(context, *pool))
        })?;
        for pool in pools {
            let passed = context.heap.pool(pool).passed;
            context.heap.make_passed_idle(pool, passed);
        }
        Ok(())
    }

    /// Ends every open epoch and notes what the GPU has passed. In a capture it does neither.
    pub(crate) fn advance(&mut self, context: &mut StreamContext<'_>) -> DriverResult<()> {
        if context.capturing() {
            return Ok(());
        }
        for pool in context.heap.stream_pools().collect::<Vec<_>>() {
            self.close(context, pool)?;
            self.poll(context, pool)?;
        }
        Ok(())
    }

    /// Hands memory of other streams to the request's pool, behind GPU-side waits, until about `missing` bytes have come
    /// together: what was freed longest ago first, so that the wait is over soonest. Returns whether any came.
    pub(crate) fn wait_for(
        &mut self,
        context: &mut StreamContext<'_>,
        request: &Request,
        missing: u64,
    ) -> Result<bool> {
        let pool = request.pool;
        // A captured stream cannot wait for what is outside of its graph, and a graph may be replayed on another stream.
        if context.sharing != Sharing::Wait || context.capturing() || context.heap.is_private(pool) {
            return Ok(false);
        }
        let taken = self.freed_longest_ago(context, pool, missing);
        let stream = context.heap.pool(pool).stream;
        for (from, epoch) in latest_by_stream(&taken) {
            self.wait_on_gpu(context, stream, (from, epoch))?;
        }
        let most = request.size.saturating_mul(MOST_PASSED_ON).checked_next_multiple_of(GRANULE).unwrap_or(u64::MAX);
        for Taken { block, .. } in &taken {
            let bytes = context.heap.pass_on(*block, most, pool)?;
            context.heap.counters_mut().waits.bytes += bytes;
        }
        Ok(!taken.is_empty())
    }

    /// Returns free blocks of other streams, of `missing` bytes together or more, whose epochs are closed: those freed
    /// longest ago, the largest of equals.
    fn freed_longest_ago(&self, context: &StreamContext<'_>, own: PoolIndex, missing: u64) -> Vec<Taken> {
        let mut free: Vec<Reverse<(u64, Reverse<u64>, BlockId)>> = Vec::new();
        for other in with_memory(context).filter(|other| *other != own) {
            context.heap.visit_free(other, 0, |id| {
                let block = context.heap.block(id);
                free.push(Reverse((block.freed_at, Reverse(block.size), id)));
            });
        }
        // Few of them are taken, so they are not sorted.
        let mut oldest = BinaryHeap::from(free);
        let (mut found, mut taken) = (0, Vec::new());
        while found < missing {
            let Some(Reverse((epoch, Reverse(size), block))) = oldest.pop() else { break };
            let from = context.heap.block(block).pool;
            if self.covers(from, epoch) {
                taken.push(Taken { from, epoch, block });
                found += size;
            }
        }
        taken
    }

    /// The stream waits on the GPU until another one has passed an epoch.
    fn wait_on_gpu(
        &self,
        context: &mut StreamContext<'_>,
        stream: StreamId,
        (from, epoch): (PoolIndex, u64),
    ) -> DriverResult<()> {
        let closed = self.closed_up_to(from, epoch);
        let Some(newest) = closed.last() else { return Ok(()) };
        // Those of earlier epochs too: memory that merged since may be of any.
        let mut others: Vec<(StreamId, EventId)> = Vec::new();
        for (of, event) in closed.iter().rev().flat_map(|closed| &closed.others) {
            if *of != stream && !others.iter().any(|(known, _)| known == of) {
                others.push((*of, *event));
            }
        }
        for event in std::iter::once(newest.event).chain(others.into_iter().map(|(_, event)| event)) {
            context.driver.stream_wait(stream, event)?;
            context.heap.counters_mut().add_stream_wait(newest.at);
        }
        Ok(())
    }

    /// Whether a closed epoch covers `epoch`.
    fn covers(&self, pool: PoolIndex, epoch: u64) -> bool {
        self.closed.get(pool.stream()).and_then(VecDeque::back).is_some_and(|last| last.epoch >= epoch)
    }

    /// Returns the closed epochs up to the first that covers `epoch`, oldest first.
    fn closed_up_to(&self, pool: PoolIndex, epoch: u64) -> Vec<&Closed> {
        let Some(closed) = self.closed.get(pool.stream()) else { return Vec::new() };
        closed.iter().take(closed.partition_point(|closed| closed.epoch < epoch) + 1).collect()
    }

    /// Ends the open epoch of a stream, if anything was freed in it.
    fn close(&mut self, context: &mut StreamContext<'_>, pool: PoolIndex) -> DriverResult<()> {
        if !context.heap.pool(pool).freed_in_epoch {
            return Ok(());
        }
        if context.heap.pool(pool).ended || context.was_replaced(pool)? {
            self.passed(context.heap, pool);
            return Ok(());
        }
        let number = pool.stream();
        self.closed.resize_with(self.closed.len().max(number + 1), VecDeque::new);
        let at = context.heap.counters().operations();
        let of = context.heap.pool(pool);
        let (epoch, event) = (of.epoch, self.record(context.driver, of.stream)?);
        let others = self.others.get_mut(number).map(std::mem::take).unwrap_or_default();
        let queue = &mut self.closed[number];
        let full = queue.len() >= MOST_CLOSED;
        match queue.back_mut().filter(|_| full) {
            // The later events stand for both.
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

    /// Something of a large pool is freed while `stream` is the current one: what that was given so far is passed before
    /// others get what was freed in this epoch. The event is recorded at once, for the stream may be destroyed after. Returns
    /// whether it was: not in a capture, when what other streams than the captured one were given runs all the same.
    pub(crate) fn free_used_by(
        &mut self,
        context: &StreamContext<'_>,
        pool: PoolIndex,
        stream: StreamId,
    ) -> DriverResult<bool> {
        if context.capturing() {
            return Ok(false);
        }
        let number = pool.stream();
        self.others.resize_with(self.others.len().max(number + 1), Vec::new);
        match self.others[number].iter().find(|(of, _)| *of == stream) {
            Some((_, event)) => context.driver.event_record(*event, stream)?,
            None => {
                let event = self.record(context.driver, stream)?;
                self.others[number].push((stream, event));
                self.drop_passed(context.driver, number);
            }
        }
        Ok(true)
    }

    /// An epoch may stay open for ever while streams come and go under which memory is freed. Each time they have doubled,
    /// those are forgotten that have passed.
    fn drop_passed(&mut self, driver: &dyn Driver, number: usize) {
        let others = &mut self.others[number];
        if others.len() < MANY_OTHERS || !others.len().is_power_of_two() {
            return;
        }
        // Of one that cannot be asked about now, who needs the memory hears.
        let passed = others.extract_if(.., |(_, event)| driver.event_query(*event).unwrap_or(false));
        self.idle_events.extend(passed.map(|(_, event)| event));
    }

    fn record(&mut self, driver: &dyn Driver, stream: StreamId) -> DriverResult<EventId> {
        let event = match self.idle_events.pop() {
            Some(event) => event,
            None => driver.event_create()?,
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

    /// Whether the GPU has done all that the stream of a large pool was given so far. Records an event and asks for it.
    pub(crate) fn has_passed_all(&mut self, context: &mut StreamContext<'_>, large: PoolIndex) -> DriverResult<bool> {
        let pool = context.heap.pool(large);
        let (stream, ended) = (pool.stream, pool.ended);
        if ended || context.was_replaced(large)? {
            return Ok(true);
        }
        let event = match self.probe {
            Some(event) => event,
            None => *self.probe.insert(context.driver.event_create()?),
        };
        context.driver.event_record(event, stream)?;
        context.driver.event_query(event)
    }

    /// Whether streams other than its own may still use what was freed on the stream of a large pool.
    pub(crate) fn waits_for_others(&self, pool: PoolIndex) -> bool {
        let number = pool.stream();
        self.others.get(number).is_some_and(|others| !others.is_empty())
            || self.closed.get(number).is_some_and(|closed| closed.iter().any(|closed| !closed.others.is_empty()))
    }

    /// The CPU has waited for every stream: all epochs are passed, those that are open too.
    pub(crate) fn all_passed(&mut self, context: &mut StreamContext<'_>) {
        context.heap.stream_pools().collect::<Vec<_>>().into_iter().for_each(|pool| self.passed(context.heap, pool));
    }

    /// All that a stream was given is done, and all that others were given that were current while its memory was freed: its
    /// epochs are passed, the one that is open too.
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

    /// Gives every event back. For the end of an allocator.
    pub(crate) fn destroy_events(&mut self, driver: &dyn Driver) {
        let queued = self.closed.drain(..).flatten().flat_map(Closed::events);
        let others = self.others.drain(..).flatten().map(|(_, event)| event);
        destroy_events(driver, self.idle_events.drain(..).chain(queued).chain(others).chain(self.probe.take()));
    }
}

/// Returns the latest epoch of each stream: it covers those before it, so that one wait for each stream suffices.
fn latest_by_stream(taken: &[Taken]) -> Vec<(PoolIndex, u64)> {
    let mut last: Vec<(PoolIndex, u64)> = Vec::new();
    for Taken { from, epoch, .. } in taken {
        match last.iter_mut().find(|(of, _)| of == from) {
            Some((_, last)) => *last = (*last).max(*epoch),
            None => last.push((*from, *epoch)),
        }
    }
    last
}

/// The large pools of streams that have anything free, in large blocks or small.
fn with_memory<'a>(context: &'a StreamContext<'_>) -> impl Iterator<Item = PoolIndex> + use<'a> {
    let free = |pool: PoolIndex| context.heap.pool(pool).free.len();
    context.heap.stream_pools().filter(move |large| free(*large) + free(large.small()) > 0)
}

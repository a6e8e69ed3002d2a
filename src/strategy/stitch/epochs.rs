//! Streams pass memory to one another: epochs, and what may be reused when.
//!
//! Owns: the events that close epochs. A range freed on a stream may be reused there at once; elsewhere when the GPU has
//! passed the epoch in which it was freed, or behind a GPU-side wait for that epoch. No event is recorded at a free: an
//! epoch is closed when another stream misses.
//!
//! An epoch ends with an event on its own stream, and one on each stream under which something of it was freed
//! ([`free_under`](crate::Allocator::free_under)): that may have used the memory, although nobody said so.

use crate::blocks::BlockId;
use crate::config::Sharing;
use crate::deferred::destroy_events;
use crate::driver::{Driver, DriverResult, EventId, in_relaxed_capture_mode};
use crate::heap::Request;
use crate::home::GRANULE;
use crate::ids::StreamId;
use crate::strategy::{Ground, Miss};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// An epoch that has ended.
#[derive(Clone, Debug)]
struct Closed {
    epoch: u64,
    event: EventId,
    /// Events of streams under which memory was freed in it.
    under: Vec<(StreamId, EventId)>,
    /// The allocator's operations when the event was recorded.
    at: u64,
}

impl Closed {
    fn events(self) -> impl Iterator<Item = EventId> {
        std::iter::once(self.event).chain(self.under.into_iter().map(|(_, event)| event))
    }
}

/// How many times the request a stream gets at most of a range that it waits for. With less it waits again and again for
/// the same range; with all of it the other stream soon waits for its own memory.
const MOST_PASSED_ON: u64 = 16;

/// How many epochs of a stream are told apart while the GPU has not passed them, each with an event. A stream that is
/// further behind has its last epoch prolonged.
const MOST_CLOSED: usize = 1024;

/// With fewer streams under which memory was freed in an open epoch, nobody asks which of them have passed.
const MANY_UNDER: usize = 64;

/// The closed epochs of every stream whose events have not completed.
#[derive(Debug, Default)]
pub(in crate::strategy) struct Epochs {
    /// By stream (half the number of its large pool), oldest first.
    closed: Vec<VecDeque<Closed>>,
    /// Likewise: what [`Closed::under`] of the open epoch will be.
    under: Vec<Vec<(StreamId, EventId)>>,
    /// Events to use again.
    idle_events: Vec<EventId>,
}

impl Epochs {
    /// Makes idle what the GPU has passed, of all streams. Does nothing as long as one stream alone has memory.
    /// Whether any became idle. In a capture no epoch ends: its event might be the graph's.
    pub(super) fn gather(&mut self, ground: &mut Ground<'_>, own: u32) -> DriverResult<bool> {
        if ground.capturing() {
            return Ok(false);
        }
        if ground.config.sharing == Sharing::Never || with_memory(ground).all(|pool| pool == own) {
            return Ok(false);
        }
        let pools: Vec<u32> = with_memory(ground).collect();
        for &pool in &pools {
            self.close(ground, pool)?;
            self.poll(ground, pool)?;
        }
        let mut any = false;
        for pool in pools {
            let passed = ground.heap.pools[pool as usize].passed;
            any |= ground.heap.make_passed_idle(pool, passed);
        }
        Ok(any)
    }

    /// Ends an epoch that has become long, where another stream may come to ask for what was freed in it: then it has not
    /// to wait for all that this one was given since.
    pub(super) fn end(&mut self, ground: &mut Ground<'_>, pool: u32) -> DriverResult<()> {
        let alone = ground.heap.stream_pools().nth(1).is_none();
        if alone || ground.config.sharing == Sharing::Never || ground.capturing() || ground.heap.is_private(pool) {
            return Ok(());
        }
        // Only to make room: who needs to know how far the GPU is asks for itself.
        if self.closed.get(pool as usize / 2).is_some_and(|closed| closed.len() >= MOST_CLOSED / 2) {
            self.poll(ground, pool)?;
        }
        self.close(ground, pool)
    }

    /// In a capture: frees and makes idle what events that were recorded before it tell to be passed.
    pub(super) fn ask(&mut self, ground: &mut Ground<'_>) -> DriverResult<()> {
        let sharing = ground.config.sharing != Sharing::Never;
        let pools: Vec<u32> = ground.heap.stream_pools().filter(|_| sharing).collect();
        in_relaxed_capture_mode(ground.driver, true, || {
            ground.deferred.ask(ground.heap, ground.driver)?;
            pools.iter().try_for_each(|pool| self.poll(ground, *pool))
        })?;
        for pool in pools {
            let passed = ground.heap.pools[pool as usize].passed;
            ground.heap.make_passed_idle(pool, passed);
        }
        Ok(())
    }

    /// The large pool of some stream that has anything free.
    pub(super) fn first_with_memory(&self, ground: &Ground<'_>) -> Option<u32> {
        with_memory(ground).next()
    }

    /// Ends every open epoch and notes what the GPU has passed. In a capture it does neither.
    pub(in crate::strategy) fn advance(&mut self, ground: &mut Ground<'_>) -> DriverResult<()> {
        if ground.capturing() {
            return Ok(());
        }
        for pool in ground.heap.stream_pools().collect::<Vec<_>>() {
            self.close(ground, pool)?;
            self.poll(ground, pool)?;
        }
        Ok(())
    }

    /// Hands memory of other streams to the pool, behind GPU-side waits, until about `missing` bytes have come together:
    /// what was freed longest ago first, so that the wait is over soonest. Whether any came.
    pub(super) fn wait_for(&mut self, ground: &mut Ground<'_>, request: &Request, missing: u64) -> Result<bool, Miss> {
        let pool = request.pool;
        // A captured stream cannot wait for what is outside of its graph, and a graph may be replayed on another stream.
        if ground.config.sharing != Sharing::Wait || ground.capturing() || ground.heap.is_private(pool) {
            return Ok(false);
        }
        let mut free: Vec<Reverse<(u64, Reverse<u64>, BlockId)>> = Vec::new();
        for other in with_memory(ground).filter(|other| *other != pool) {
            let blocks = &ground.heap.blocks;
            let push = |id| free.push(Reverse((blocks[id].freed_at, Reverse(blocks[id].size), id)));
            ground.heap.pools[other as usize].free.visit_from(blocks, 0, push);
        }
        // Few of them are taken, so they are not sorted.
        let mut oldest = BinaryHeap::from(free);
        let stream = ground.heap.pools[pool as usize].stream;
        let mut found = 0;
        let mut taken: Vec<(u32, u64, BlockId)> = Vec::new();
        while found < missing {
            let Some(Reverse((epoch, Reverse(size), id))) = oldest.pop() else { break };
            let other = ground.heap.blocks[id].pool;
            if self.covers(other, epoch) {
                taken.push((other, epoch, id));
                found += size;
            }
        }
        // The latest epoch of a stream covers those before it: one wait for each stream.
        let mut last: Vec<(u32, u64)> = Vec::new();
        for (other, epoch, _) in &taken {
            match last.iter_mut().find(|(of, _)| of == other) {
                Some((_, last)) => *last = (*last).max(*epoch),
                None => last.push((*other, *epoch)),
            }
        }
        for (other, epoch) in last {
            let closed = self.closed_up_to(other, epoch);
            let Some(newest) = closed.last() else { continue };
            // Those of earlier epochs too: memory that merged since may be of any.
            let mut under: Vec<(StreamId, EventId)> = Vec::new();
            for (of, event) in closed.iter().rev().flat_map(|closed| &closed.under) {
                if *of != stream && !under.iter().any(|(known, _)| known == of) {
                    under.push((*of, *event));
                }
            }
            for event in std::iter::once(newest.event).chain(under.into_iter().map(|(_, event)| event)) {
                ground.driver.stream_wait(stream, event)?;
                let counters = &mut ground.heap.counters;
                counters.stream_waits += 1;
                counters.waits.add(counters.operations().wrapping_sub(newest.at));
            }
        }
        let most = request.size.saturating_mul(MOST_PASSED_ON).checked_next_multiple_of(GRANULE).unwrap_or(u64::MAX);
        for (_, _, id) in taken {
            // From here on the waiting stream is the one that must pass before anyone else may have it.
            let epoch = ground.heap.pools[pool as usize].epoch;
            ground.heap.pools[pool as usize].freed_in_epoch = true;
            let part = ground.heap.part_of(id, most)?;
            ground.heap.blocks[part].freed_at = epoch;
            ground.heap.counters.waits.bytes += ground.heap.blocks[part].size;
            ground.heap.hand_over(part, pool);
        }
        Ok(found > 0)
    }

    /// Whether a closed epoch covers `epoch`.
    fn covers(&self, pool: u32, epoch: u64) -> bool {
        self.closed.get(pool as usize / 2).and_then(VecDeque::back).is_some_and(|last| last.epoch >= epoch)
    }

    /// The closed epochs up to the first that covers `epoch`, oldest first.
    fn closed_up_to(&self, pool: u32, epoch: u64) -> Vec<&Closed> {
        let Some(closed) = self.closed.get(pool as usize / 2) else { return Vec::new() };
        closed.iter().take(closed.partition_point(|closed| closed.epoch < epoch) + 1).collect()
    }

    /// Ends the open epoch of a stream, if anything was freed in it.
    fn close(&mut self, ground: &mut Ground<'_>, pool: u32) -> DriverResult<()> {
        if !ground.heap.pools[pool as usize].freed_in_epoch {
            return Ok(());
        }
        if ground.heap.pools[pool as usize].ended || ground.was_replaced(pool)? {
            self.passed(ground, pool);
            return Ok(());
        }
        let number = pool as usize / 2;
        self.closed.resize_with(self.closed.len().max(number + 1), VecDeque::new);
        let at = ground.heap.counters.operations();
        let of = &ground.heap.pools[pool as usize];
        let (epoch, event) = (of.epoch, self.record(ground.driver, of.stream)?);
        let under = self.under.get_mut(number).map(std::mem::take).unwrap_or_default();
        let queue = &mut self.closed[number];
        let full = queue.len() >= MOST_CLOSED;
        match queue.back_mut().filter(|_| full) {
            // The later events stand for both.
            Some(last) => {
                self.idle_events.push(std::mem::replace(&mut last.event, event));
                for (stream, event) in under {
                    match last.under.iter_mut().find(|(of, _)| *of == stream) {
                        Some((_, before)) => self.idle_events.push(std::mem::replace(before, event)),
                        None => last.under.push((stream, event)),
                    }
                }
                (last.epoch, last.at) = (epoch, at);
            }
            None => queue.push_back(Closed { epoch, event, under, at }),
        }
        ground.heap.pools[pool as usize].end_epoch();
        Ok(())
    }

    /// Something of a large pool is freed while `stream` is the current one: what that was given so far is passed before
    /// others get what was freed in this epoch. The event is recorded at once, for the stream may be destroyed after. Whether
    /// it was: not in a capture, when what other streams than the captured one were given runs all the same.
    pub(in crate::strategy) fn freed_under(
        &mut self,
        ground: &Ground<'_>,
        pool: u32,
        stream: StreamId,
    ) -> DriverResult<bool> {
        if ground.capturing() {
            return Ok(false);
        }
        let number = pool as usize / 2;
        self.under.resize_with(self.under.len().max(number + 1), Vec::new);
        match self.under[number].iter().find(|(of, _)| *of == stream) {
            Some((_, event)) => ground.driver.event_record(*event, stream)?,
            None => {
                let event = self.record(ground.driver, stream)?;
                self.under[number].push((stream, event));
                self.drop_passed(ground.driver, number);
            }
        }
        Ok(true)
    }

    /// An epoch may stay open for ever while streams come and go under which memory is freed. Each time they have doubled,
    /// those are forgotten that have passed.
    fn drop_passed(&mut self, driver: &dyn Driver, number: usize) {
        let under = &mut self.under[number];
        if under.len() < MANY_UNDER || !under.len().is_power_of_two() {
            return;
        }
        // Of one that cannot be asked about now, who needs the memory hears.
        let passed = under.extract_if(.., |(_, event)| driver.event_query(*event).unwrap_or(false));
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
    fn poll(&mut self, ground: &mut Ground<'_>, pool: u32) -> DriverResult<()> {
        let Some(queue) = self.closed.get_mut(pool as usize / 2) else { return Ok(()) };
        while let Some(closed) = queue.front_mut() {
            if !ground.driver.event_query(closed.event)? {
                break;
            }
            while let Some((_, event)) = closed.under.last() {
                if !ground.driver.event_query(*event)? {
                    return Ok(());
                }
                self.idle_events.push(*event);
                closed.under.pop();
            }
            ground.heap.pools[pool as usize].passed = closed.epoch + 1;
            self.idle_events.extend(queue.pop_front().into_iter().flat_map(Closed::events));
        }
        Ok(())
    }

    /// Whether streams other than its own may still use what was freed on the stream of a large pool.
    pub(in crate::strategy) fn waits_for_others(&self, pool: u32) -> bool {
        let number = pool as usize / 2;
        self.under.get(number).is_some_and(|under| !under.is_empty())
            || self.closed.get(number).is_some_and(|closed| closed.iter().any(|closed| !closed.under.is_empty()))
    }

    /// The CPU has waited for every stream: all epochs are passed, those that are open too.
    pub(in crate::strategy) fn all_passed(&mut self, ground: &mut Ground<'_>) {
        ground.heap.stream_pools().collect::<Vec<_>>().into_iter().for_each(|pool| self.passed(ground, pool));
    }

    /// All that a stream was given is done, and all that others were given under which its memory was freed: its epochs are
    /// passed, the one that is open too.
    pub(in crate::strategy) fn passed(&mut self, ground: &mut Ground<'_>, pool: u32) {
        if let Some(queue) = self.closed.get_mut(pool as usize / 2) {
            self.idle_events.extend(queue.drain(..).flat_map(Closed::events));
        }
        if let Some(under) = self.under.get_mut(pool as usize / 2) {
            self.idle_events.extend(under.drain(..).map(|(_, event)| event));
        }
        let of = &mut ground.heap.pools[pool as usize];
        of.end_epoch();
        of.passed = of.epoch;
    }

    /// Gives every event back. For the end of an allocator.
    pub(in crate::strategy) fn destroy_events(&mut self, ground: &mut Ground<'_>) {
        let queued = self.closed.drain(..).flatten().flat_map(Closed::events);
        let under = self.under.drain(..).flatten().map(|(_, event)| event);
        destroy_events(ground.driver, self.idle_events.drain(..).chain(queued).chain(under));
    }
}

/// The large pools of streams that have anything free, in large blocks or small.
fn with_memory<'a>(ground: &'a Ground<'_>) -> impl Iterator<Item = u32> + use<'a> {
    let free = |pool: u32| ground.heap.pools[pool as usize].free.len();
    ground.heap.stream_pools().filter(move |large| free(*large) + free(large + 1) > 0)
}

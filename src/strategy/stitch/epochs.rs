//! Streams pass memory to one another: epochs, and what may be reused when.
//!
//! Owns: the events that close epochs. A range freed on a stream may be reused there at once; elsewhere when the GPU has
//! passed the epoch in which it was freed, or behind a GPU-side wait for that epoch. No event is recorded at a free: an
//! epoch is closed when another stream misses.

use crate::blocks::BlockId;
use crate::config::Sharing;
use crate::deferred::destroy_events;
use crate::driver::{DriverResult, EventId, in_relaxed_mode};
use crate::heap::Request;
use crate::home::GRANULE;
use crate::strategy::{Ground, Miss};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// An epoch that has ended.
#[derive(Clone, Copy, Debug)]
struct Closed {
    epoch: u64,
    event: EventId,
    /// The allocator's operations when the event was recorded.
    at: u64,
}

/// How many times the request a stream gets at most of a range that it waits for. With less it waits again and again for
/// the same range; with all of it the other stream soon waits for its own memory.
const MOST_PASSED_ON: u64 = 16;

/// How many epochs of a stream are told apart while the GPU has not passed them, each with an event. A stream that is
/// further behind has its last epoch prolonged.
const MOST_CLOSED: usize = 1024;

/// The closed epochs of every stream whose events have not completed.
#[derive(Debug, Default)]
pub(in crate::strategy) struct Epochs {
    /// By stream (half the number of its large pool), oldest first.
    closed: Vec<VecDeque<Closed>>,
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
        in_relaxed_mode(ground.driver, || {
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
            if self.closed_for(other, epoch).is_some() {
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
        for closed in last.into_iter().filter_map(|(other, epoch)| self.closed_for(other, epoch)) {
            ground.driver.stream_wait(stream, closed.event)?;
            let counters = &mut ground.heap.counters;
            counters.stream_waits += 1;
            counters.waits.add(counters.operations().wrapping_sub(closed.at));
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

    /// The first epoch with an event that covers `epoch`.
    fn closed_for(&self, pool: u32, epoch: u64) -> Option<Closed> {
        let closed = self.closed.get(pool as usize / 2)?;
        closed.get(closed.partition_point(|closed| closed.epoch < epoch)).copied()
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
        let queue = &mut self.closed[number];
        let at = ground.heap.counters.operations();
        let of = &mut ground.heap.pools[pool as usize];
        let full = queue.len() >= MOST_CLOSED;
        if let Some(last) = queue.back_mut().filter(|_| full) {
            // Its event, recorded anew, stands for both.
            ground.driver.event_record(last.event, of.stream)?;
            (last.epoch, last.at) = (of.epoch, at);
            of.epoch += 1;
            of.freed_in_epoch = false;
            return Ok(());
        }
        let event = match self.idle_events.pop() {
            Some(event) => event,
            None => ground.driver.event_create()?,
        };
        if let Err(error) = ground.driver.event_record(event, of.stream) {
            self.idle_events.push(event);
            return Err(error);
        }
        queue.push_back(Closed { epoch: of.epoch, event, at });
        of.epoch += 1;
        of.freed_in_epoch = false;
        Ok(())
    }

    /// Notes which epochs of a stream the GPU has passed.
    fn poll(&mut self, ground: &mut Ground<'_>, pool: u32) -> DriverResult<()> {
        let Some(queue) = self.closed.get_mut(pool as usize / 2) else { return Ok(()) };
        while let Some(&Closed { epoch, event, .. }) = queue.front() {
            if !ground.driver.event_query(event)? {
                break;
            }
            queue.pop_front();
            self.idle_events.push(event);
            ground.heap.pools[pool as usize].passed = epoch + 1;
        }
        Ok(())
    }

    /// The CPU has waited for every stream: all epochs are passed, those that are open too.
    pub(in crate::strategy) fn all_passed(&mut self, ground: &mut Ground<'_>) {
        ground.heap.stream_pools().collect::<Vec<_>>().into_iter().for_each(|pool| self.passed(ground, pool));
    }

    /// All that a stream was given is done: its epochs are passed, the one that is open too.
    pub(in crate::strategy) fn passed(&mut self, ground: &mut Ground<'_>, pool: u32) {
        if let Some(queue) = self.closed.get_mut(pool as usize / 2) {
            self.idle_events.extend(queue.drain(..).map(|closed| closed.event));
        }
        let of = &mut ground.heap.pools[pool as usize];
        of.epoch += 1;
        of.freed_in_epoch = false;
        of.passed = of.epoch;
    }

    /// Gives every event back. For the end of an allocator.
    pub(in crate::strategy) fn destroy_events(&mut self, ground: &mut Ground<'_>) {
        let queued = self.closed.drain(..).flatten().map(|closed| closed.event);
        destroy_events(ground.driver, self.idle_events.drain(..).chain(queued));
    }
}

/// The large pools of streams that have anything free, in large blocks or small.
fn with_memory<'a>(ground: &'a Ground<'_>) -> impl Iterator<Item = u32> + use<'a> {
    let free = |pool: u32| ground.heap.pools[pool as usize].free.len();
    ground.heap.stream_pools().filter(move |large| free(*large) + free(large + 1) > 0)
}

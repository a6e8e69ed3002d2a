//! Streams pass memory to one another: epochs, and what may be reused when.
//!
//! Owns: the events that close epochs. A range freed on a stream may be reused there at once; elsewhere when the GPU has
//! passed the epoch in which it was freed, or behind a GPU-side wait for that epoch. No event is recorded at a free: an
//! epoch is closed when another stream misses.

use crate::blocks::BlockId;
use crate::config::Sharing;
use crate::driver::{DriverResult, EventId};
use crate::strategy::Ground;
use std::collections::VecDeque;

/// The closed epochs of every stream whose events have not completed.
#[derive(Debug, Default)]
pub(super) struct Epochs {
    /// By stream (its large pool): epoch and event, oldest first.
    closed: Vec<(u32, VecDeque<(u64, EventId)>)>,
    /// Events to use again.
    idle_events: Vec<EventId>,
}

impl Epochs {
    /// Makes idle what the GPU has passed, of all streams. Does nothing as long as one stream alone has memory.
    /// Whether any became idle.
    pub(super) fn gather(&mut self, ground: &mut Ground<'_>, own: u32) -> DriverResult<bool> {
        let pools: Vec<u32> = with_memory(ground).collect();
        if pools.iter().all(|pool| *pool == own) || ground.config.sharing == Sharing::Never {
            return Ok(false);
        }
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

    /// Ends every open epoch and notes what the GPU has passed.
    pub(super) fn advance(&mut self, ground: &mut Ground<'_>) -> DriverResult<()> {
        for pool in ground.heap.stream_pools() {
            self.close(ground, pool)?;
            self.poll(ground, pool)?;
        }
        Ok(())
    }

    /// Hands memory of other streams to the pool, behind GPU-side waits, until about `missing` bytes have come together:
    /// what was freed longest ago first, so that the wait is over soonest. Whether any came.
    pub(super) fn wait_for(&mut self, ground: &mut Ground<'_>, pool: u32, missing: u64) -> DriverResult<bool> {
        if ground.config.sharing != Sharing::Wait {
            return Ok(false);
        }
        let mut free: Vec<(u64, std::cmp::Reverse<u64>, BlockId)> = Vec::new();
        let others: Vec<u32> = with_memory(ground).filter(|other| *other != pool).collect();
        for other in others {
            let blocks = ground.heap.pools[other as usize].free.in_order(&ground.heap.blocks);
            let age =
                |id: BlockId| (ground.heap.blocks[id].freed_at, std::cmp::Reverse(ground.heap.blocks[id].size), id);
            free.extend(blocks.into_iter().map(age));
        }
        free.sort();
        let stream = ground.heap.pools[pool as usize].stream;
        let mut waited: Vec<(u32, u64)> = Vec::new();
        let mut found = 0;
        for (epoch, std::cmp::Reverse(size), id) in free {
            if found >= missing {
                break;
            }
            let other = ground.heap.blocks[id].pool;
            if !waited.iter().any(|(of, up_to)| *of == other && *up_to >= epoch) {
                let Some((up_to, event)) = self.event_for(other, epoch) else { continue };
                ground.driver.stream_wait(stream, event)?;
                ground.heap.counters.stream_waits += 1;
                waited.push((other, up_to));
            }
            // From here on the waiting stream is the one that must pass before anyone else may have it.
            ground.heap.blocks[id].freed_at = ground.heap.pools[pool as usize].epoch;
            ground.heap.pools[pool as usize].freed_in_epoch = true;
            ground.heap.hand_over(id, pool);
            found += size;
        }
        Ok(found > 0)
    }

    /// The event of the first epoch that covers `epoch`.
    fn event_for(&self, pool: u32, epoch: u64) -> Option<(u64, EventId)> {
        let (_, closed) = self.closed.iter().find(|(of, _)| *of == pool)?;
        closed.iter().find(|(closed, _)| *closed >= epoch).copied()
    }

    /// Ends the open epoch of a stream, if anything was freed in it.
    fn close(&mut self, ground: &mut Ground<'_>, pool: u32) -> DriverResult<()> {
        if !ground.heap.pools[pool as usize].freed_in_epoch {
            return Ok(());
        }
        let event = match self.idle_events.pop() {
            Some(event) => event,
            None => ground.driver.event_create()?,
        };
        let of = &mut ground.heap.pools[pool as usize];
        if let Err(error) = ground.driver.event_record(event, of.stream) {
            self.idle_events.push(event);
            return Err(error);
        }
        let closed = (of.epoch, event);
        of.epoch += 1;
        of.freed_in_epoch = false;
        match self.closed.iter_mut().find(|(of, _)| *of == pool) {
            Some((_, queue)) => queue.push_back(closed),
            None => self.closed.push((pool, VecDeque::from([closed]))),
        }
        Ok(())
    }

    /// Notes which epochs of a stream the GPU has passed.
    fn poll(&mut self, ground: &mut Ground<'_>, pool: u32) -> DriverResult<()> {
        let Some((_, queue)) = self.closed.iter_mut().find(|(of, _)| *of == pool) else { return Ok(()) };
        while let Some(&(epoch, event)) = queue.front() {
            if !ground.driver.event_query(event)? {
                break;
            }
            queue.pop_front();
            self.idle_events.push(event);
            ground.heap.pools[pool as usize].passed = epoch + 1;
        }
        Ok(())
    }

    /// The CPU has waited for every stream: all epochs are passed.
    pub(super) fn all_passed(&mut self, ground: &mut Ground<'_>) {
        for (pool, queue) in &mut self.closed {
            if let Some((last, _)) = queue.back() {
                ground.heap.pools[*pool as usize].passed = last + 1;
            }
            self.idle_events.extend(queue.drain(..).map(|(_, event)| event));
        }
    }

    /// Gives every event back. For the end of an allocator.
    pub(super) fn destroy_events(&mut self, ground: &mut Ground<'_>) {
        let queued = self.closed.drain(..).flat_map(|(_, queue)| queue).map(|(_, event)| event);
        for event in self.idle_events.drain(..).chain(queued) {
            if let Err(error) = ground.driver.event_destroy(event) {
                tracing::warn!(%error, "an event could not be destroyed");
            }
        }
    }
}

/// The large pools of streams that have anything free, in large blocks or small.
fn with_memory<'a>(ground: &'a Ground<'_>) -> impl Iterator<Item = u32> + use<'a> {
    let free = |pool: u32| ground.heap.pools[pool as usize].free.len();
    ground.heap.stream_pools().filter(move |large| free(*large) + free(large + 1) > 0)
}

//! Freed memory on its way out: mapped until its stream has passed, then addresses that are kept from reuse for a
//! while.
//!
//! Owns: the queues of events behind which memory is unmapped, and the reservations that are kept from reuse.

use crate::driver::{Driver, DriverResult};
use crate::ids::{BlockId, EventId, StreamId};
use crate::span::Span;
use crate::streams::destroy_events;
use std::collections::VecDeque;

/// A freed block whose memory is unmapped when its event is complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) id: BlockId,
    pub(super) address: u64,
    event: EventId,
}

/// Addresses that are kept from reuse.
#[derive(Clone, Copy, Debug)]
struct Kept {
    reservation: Span,
    /// Address of the allocation.
    address: u64,
}

#[derive(Debug, Default)]
pub(super) struct Quarantine {
    /// Blocks that wait, by stream, oldest first.
    waiting: Vec<(StreamId, VecDeque<Waiting>)>,
    idle: Vec<EventId>,
    /// Kept addresses, oldest first.
    kept: VecDeque<Kept>,
    bytes: u64,
}

impl Quarantine {
    /// Makes a block wait for all work given to its stream so far. On an error nothing has changed.
    pub(super) fn wait(
        &mut self,
        driver: &dyn Driver,
        stream: StreamId,
        id: BlockId,
        address: u64,
    ) -> DriverResult<()> {
        let event = self.idle.pop().map_or_else(|| driver.event_create(), Ok)?;
        driver.event_record(event, stream).inspect_err(|_| self.idle.push(event))?;
        let waiting = Waiting { id, address, event };
        match self.waiting.iter_mut().find(|(of, _)| *of == stream) {
            Some((_, queue)) => queue.push_back(waiting),
            None => self.waiting.push((stream, VecDeque::from([waiting]))),
        }
        Ok(())
    }

    /// Returns the first block, of the oldest of each stream, whose event is complete. With `waits`, the CPU waits for
    /// it.
    pub(super) fn passed(&self, driver: &dyn Driver, waits: bool) -> DriverResult<Option<Waiting>> {
        for (_, queue) in &self.waiting {
            let Some(first) = queue.front() else { continue };
            if waits {
                driver.event_synchronize(first.event)?;
                return Ok(Some(*first));
            }
            if driver.event_query(first.event)? {
                return Ok(Some(*first));
            }
        }
        Ok(None)
    }

    /// Takes a block out of its queue, after it was unmapped.
    pub(super) fn done(&mut self, done: &Waiting) {
        for (_, queue) in &mut self.waiting {
            if queue.front().is_some_and(|first| first.id == done.id) {
                queue.pop_front();
                self.idle.push(done.event);
            }
        }
        self.waiting.retain(|(_, queue)| !queue.is_empty());
    }

    /// Keeps addresses from reuse.
    pub(super) fn keep(&mut self, reservation: Span, address: u64) {
        self.bytes += reservation.size;
        self.kept.push_back(Kept { reservation, address });
    }

    /// Gives the oldest addresses back until no more than `most` bytes are kept. Calls `forget` for each allocation whose
    /// addresses went. On an error the rest is kept.
    pub(super) fn trim(&mut self, driver: &dyn Driver, most: u64, mut forget: impl FnMut(u64)) -> DriverResult<()> {
        while self.bytes > most
            && let Some(Kept { reservation, address }) = self.kept.front().copied()
        {
            driver.address_free(reservation.start, reservation.size)?;
            self.kept.pop_front();
            self.bytes -= reservation.size;
            forget(address);
        }
        Ok(())
    }

    /// Returns how many allocations' addresses are kept, and their bytes.
    pub(super) fn kept(&self) -> (u64, u64) {
        (self.kept.len() as u64, self.bytes)
    }

    /// Gives every event back to the driver, at the end of an allocator.
    pub(super) fn destroy_events(&mut self, driver: &dyn Driver) {
        let waiting = self.waiting.drain(..).flat_map(|(_, queue)| queue).map(|waiting| waiting.event);
        destroy_events(driver, waiting.chain(self.idle.drain(..)));
    }
}

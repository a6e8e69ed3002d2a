//! Freed memory before its reuse. Memory stays mapped until the GPU has passed the free on the memory's stream. Then
//! the memory is unmapped, and its addresses are kept from reuse for some time.
//!
//! Owns: the queues of events after which memory is unmapped, and the reservations that are kept from reuse.

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
    /// The address of the allocation.
    address: u64,
}

#[derive(Debug, Default)]
pub(super) struct Quarantine {
    /// The blocks that wait, by stream, oldest first.
    waiting: Vec<(StreamId, VecDeque<Waiting>)>,
    idle: Vec<EventId>,
    /// Kept addresses, oldest first.
    kept: VecDeque<Kept>,
    bytes: u64,
}

impl Quarantine {
    /// Makes a block wait for all work given to its stream so far. On an error the queues are unchanged.
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

    /// Returns a block whose event is complete, checking the oldest block of each stream; `None` if there is none. With
    /// `waits`, the CPU waits for the event.
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

    /// Removes a block from its queue after it was unmapped.
    pub(super) fn done(&mut self, done: &Waiting) {
        for (_, queue) in &mut self.waiting {
            if queue.front().is_some_and(|first| first.id == done.id) {
                queue.pop_front();
                self.idle.push(done.event);
            }
        }
        self.waiting.retain(|(_, queue)| !queue.is_empty());
    }

    /// Keeps from reuse the addresses of an allocation whose memory was unmapped.
    pub(super) fn keep(&mut self, reservation: Span, address: u64) {
        self.bytes += reservation.size;
        self.kept.push_back(Kept { reservation, address });
    }

    /// Gives the oldest addresses back until at most `most` bytes are kept. Calls `forget` for each allocation whose
    /// addresses were given back. On an error the remaining addresses are kept.
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

    /// Returns the number of allocations whose addresses are kept, and the bytes of these addresses.
    pub(super) fn kept(&self) -> (u64, u64) {
        (self.kept.len() as u64, self.bytes)
    }

    /// Gives every event back to the driver, at the end of an allocator.
    pub(super) fn destroy_events(&mut self, driver: &dyn Driver) {
        let waiting = self.waiting.drain(..).flat_map(|(_, queue)| queue).map(|waiting| waiting.event);
        destroy_events(driver, waiting.chain(self.idle.drain(..)));
    }
}

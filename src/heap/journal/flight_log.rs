//! The entries that the flight recorder keeps, as events.
//!
//! Owns: how entries become events again, with their streams and approximate times.

use super::flight::{Entry, Mark};
use super::tell::pool_of;
use super::{Journal, PoolNames};
use crate::error::Result;
use crate::fallible::{TryPush, with_room};
use crate::ids::{PoolIndex, StreamId};
use crate::report::flight::TimedEvent;
use crate::report::observer::Event;
use std::time::{SystemTime, UNIX_EPOCH};

/// The operations that a recorder has kept.
pub(crate) struct Kept {
    pub(crate) events: Vec<TimedEvent>,
    pub(crate) operations: u64,
    pub(crate) overwritten: u64,
    pub(crate) capacity: u64,
}

impl Journal {
    /// Notes the time, after an operation that called the driver.
    pub(crate) fn note_time(&mut self) {
        if self.flight.is_on() {
            self.flight.mark(Entry::time(now_us()));
        }
    }

    /// Notes that a pool is about to pass from this stream to another stream.
    pub(in crate::heap) fn note_pool_was(&mut self, large: PoolIndex, stream: StreamId) {
        self.flight.mark(Entry::pool_was(large, stream));
    }

    /// Returns the operations that the recorder keeps.
    ///
    /// # Errors
    /// The host has no memory for the list.
    pub(in crate::heap) fn kept(&self, names: &impl PoolNames) -> Result<Kept> {
        let (operations, kept) = self.flight.counts();
        let mut events = with_room(2 * kept as usize)?;
        // For each pool that changed its stream: the pool's stream at the time of the entry being read. The newest
        // entries are read first.
        let mut had: Vec<(PoolIndex, StreamId)> = Vec::new();
        let mut times: Vec<(usize, u64)> = Vec::new();
        for entry in self.flight.kept().rev() {
            match entry.as_mark() {
                Some(Mark::Time(time)) => times.try_push((events.len(), time))?,
                Some(Mark::PoolWas(large, stream)) => match had.iter_mut().find(|(pool, _)| *pool == large) {
                    Some(known) => known.1 = stream,
                    None => had.try_push((large, stream))?,
                },
                None => {
                    let (span, pool) = (entry.span(), pool_of(entry, names));
                    let known = had.iter().find(|(large, _)| *large == pool.large());
                    let (stream, pool) = names.name(pool);
                    let stream = known.map_or(stream, |(_, stream)| *stream);
                    for action in entry.actions().iter().rev() {
                        let event = Event { action: *action, address: span.start, size: span.size, stream, pool };
                        events.push(TimedEvent { event, time_us: 0 });
                    }
                }
            }
        }
        set_times(&mut events, &times, now_us());
        events.reverse();
        let capacity = self.flight.capacity() as u64;
        Ok(Kept { events, operations, overwritten: operations - kept, capacity })
    }
}

/// Sets the times of events, of which the newest comes first. `times` has each known time, and the number of events
/// later than this time. Events between two known times are spread evenly. Events before the earliest known time get
/// that time.
fn set_times(events: &mut [TimedEvent], times: &[(usize, u64)], now: u64) {
    let (mut from, mut later) = (0, now);
    for (to, time) in times.iter().copied().chain([(events.len(), 0)]) {
        // The clock may have been set back.
        let earlier = if time == 0 { later } else { time.min(later) };
        let Some(between) = events.get_mut(from..to) else { continue };
        let parts = between.len() as u128;
        for (nth, event) in between.iter_mut().enumerate() {
            let back = u128::from(later - earlier) * (nth as u128) / parts.max(1);
            event.time_us = later - back as u64;
        }
        (from, later) = (to, earlier);
    }
}

fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

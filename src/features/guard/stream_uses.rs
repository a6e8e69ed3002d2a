//! The uses that the program reported: which memory the work on a stream uses, and which streams wait for others.
//!
//! Owns: the numbers of the uses on each stream, the events that tell whether a use has ended, and the vector clocks
//! that tell whether a stream waits for a use.
//!
//! The uses of a stream are numbered 1, 2, 3, …. An event is recorded after each use. A use has ended when its event,
//! or a later event of the stream, is complete. The clock of a stream holds, for every other stream, the last use that
//! precedes the next work of the clock's stream.

use crate::driver::{Driver, DriverResult};
use crate::ids::{EventId, StreamId};
use crate::streams::destroy_events;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// The target of guard mode's log messages, by which programs can filter them.
pub(super) const TARGET: &str = "seamalloc::guard";

/// The most unfinished uses of a stream that have an event each. Beyond that, the last event also serves further uses,
/// which then count as ended a little late.
const OUTSTANDING: usize = 1 << 10;
/// The most events of the program that are remembered, each with the uses that precede it. Beyond that, all events are
/// forgotten, and a wait for a forgotten event tells nothing.
const EVENTS: usize = 1 << 16;

/// The clock of an event, or of the next work of a stream: for each stream, the number of its last use that precedes
/// the event or the work.
type Clock = FxHashMap<StreamId, u64>;

#[derive(Debug, Default)]
struct Stream {
    /// The number of uses so far.
    made: u64,
    /// The number up to which all uses have ended.
    passed: u64,
    /// The uses that have not been seen to end, oldest first.
    outstanding: VecDeque<(u64, EventId)>,
    /// The uses of other streams that precede the stream's next work.
    clock: Clock,
}

/// The streams of the program.
#[derive(Debug, Default)]
pub(super) struct StreamUses {
    streams: FxHashMap<StreamId, Stream>,
    /// The program's events by their handles, with the uses that precede each event.
    events: FxHashMap<u64, Clock>,
    idle: Vec<EventId>,
}

impl StreamUses {
    /// Numbers a use by the latest work on a stream. Returns the number. On an error no use is added.
    pub(super) fn add(&mut self, driver: &dyn Driver, id: StreamId) -> DriverResult<u64> {
        self.poll(driver, id)?;
        let stream = self.streams.entry(id).or_default();
        let is_full = stream.outstanding.len() >= OUTSTANDING;
        let reused = if is_full { stream.outstanding.pop_back().map(|(_, event)| event) } else { self.idle.pop() };
        let event = reused.map_or_else(|| driver.event_create(), Ok)?;
        if let Err(error) = driver.event_record(event, id) {
            // A reused event no longer tells when the earlier use that it marked has ended. That use counts as ended
            // when the stream's next use has ended.
            self.idle.push(event);
            return Err(error);
        }
        stream.made += 1;
        stream.outstanding.push_back((stream.made, event));
        Ok(stream.made)
    }

    /// Notes that an event of the program was recorded on a stream.
    pub(super) fn record(&mut self, event: u64, stream: StreamId) {
        let known = self.streams.entry(stream).or_default();
        let mut clock = known.clock.clone();
        clock.insert(stream, known.made);
        if self.events.len() >= EVENTS {
            tracing::warn!(target: TARGET, "guard mode forgets which streams wait for which: the program has too many events");
            self.events.clear();
        }
        self.events.insert(event, clock);
    }

    /// Notes that the later work of a stream waits for an event of the program.
    pub(super) fn wait(&mut self, stream: StreamId, event: u64) {
        let Some(earlier) = self.events.get(&event) else { return };
        let clock = &mut self.streams.entry(stream).or_default().clock;
        for (of, up_to) in earlier {
            let known = clock.entry(*of).or_default();
            *known = (*known).max(*up_to);
        }
    }

    /// Returns whether the next work of `stream` certainly comes after a use on another stream, because the use has
    /// ended or `stream` waits for it.
    pub(super) fn comes_after(
        &mut self,
        driver: &dyn Driver,
        stream: StreamId,
        (used_on, number): (StreamId, u64),
    ) -> DriverResult<bool> {
        let clock = self.streams.get(&stream).and_then(|stream| stream.clock.get(&used_on));
        if clock.is_some_and(|up_to| *up_to >= number) {
            return Ok(true);
        }
        self.has_ended(driver, (used_on, number))
    }

    /// Returns whether a use on a stream has ended.
    pub(super) fn has_ended(&mut self, driver: &dyn Driver, (used_on, number): (StreamId, u64)) -> DriverResult<bool> {
        self.poll(driver, used_on)?;
        // All uses of a forgotten stream have ended.
        Ok(self.streams.get(&used_on).is_none_or(|stream| stream.passed >= number))
    }

    /// Forgets a stream whose work is done.
    pub(super) fn forget(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.remove(&id) {
            self.idle.extend(stream.outstanding.into_iter().map(|(_, event)| event));
        }
        let clocks = self.streams.values_mut().map(|stream| &mut stream.clock).chain(self.events.values_mut());
        for clock in clocks {
            clock.remove(&id);
        }
    }

    fn poll(&mut self, driver: &dyn Driver, id: StreamId) -> DriverResult<()> {
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        while let Some(&(number, event)) = stream.outstanding.front() {
            if !driver.event_query(event)? {
                break;
            }
            stream.passed = number;
            stream.outstanding.pop_front();
            self.idle.push(event);
        }
        Ok(())
    }

    /// Gives every event back to the driver, at the end of an allocator.
    pub(super) fn destroy_events(&mut self, driver: &dyn Driver) {
        let outstanding = self.streams.drain().flat_map(|(_, stream)| stream.outstanding).map(|(_, event)| event);
        destroy_events(driver, outstanding.chain(self.idle.drain(..)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sim::{SimConfig, SimGpu};

    const S: StreamId = StreamId(1);
    const T: StreamId = StreamId(2);
    const U: StreamId = StreamId(3);

    #[test]
    fn a_use_ends_with_its_work_or_with_a_wait() {
        let gpu = SimGpu::new(SimConfig::default()).unwrap();
        let mut uses = StreamUses::default();
        let done = uses.add(&gpu, T).unwrap();
        let hold = gpu.hold(T);
        let open = uses.add(&gpu, T).unwrap();
        assert_eq!(uses.comes_after(&gpu, S, (T, done)), Ok(true), "it had ended before");
        assert_eq!(uses.comes_after(&gpu, S, (T, open)), Ok(false));
        // U waits for T, and S waits for U.
        uses.record(70, T);
        uses.wait(U, 70);
        assert_eq!(uses.comes_after(&gpu, U, (T, open)), Ok(true));
        assert_eq!(uses.comes_after(&gpu, S, (T, open)), Ok(false));
        uses.record(71, U);
        uses.wait(S, 71);
        assert_eq!(uses.comes_after(&gpu, S, (T, open)), Ok(true));
        let later = uses.add(&gpu, T).unwrap();
        assert_eq!(uses.comes_after(&gpu, S, (T, later)), Ok(false), "the event was recorded before");
        gpu.finish_hold(hold);
        assert_eq!(uses.comes_after(&gpu, S, (T, later)), Ok(true));
        uses.forget(T);
        uses.destroy_events(&gpu);
        assert!(gpu.leaks().is_empty());
    }

    #[test]
    fn many_uses_share_events() {
        let gpu = SimGpu::new(SimConfig::default()).unwrap();
        let mut uses = StreamUses::default();
        let hold = gpu.hold(T);
        let first = uses.add(&gpu, T).unwrap();
        let mut last = first;
        for _ in 0..3 * OUTSTANDING {
            last = uses.add(&gpu, T).unwrap();
        }
        assert_eq!(gpu.leaks().events, OUTSTANDING);
        assert_eq!(uses.comes_after(&gpu, S, (T, first)), Ok(false));
        gpu.finish_hold(hold);
        assert_eq!(uses.comes_after(&gpu, S, (T, last)), Ok(true));
        uses.destroy_events(&gpu);
    }
}

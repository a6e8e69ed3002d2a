//! Waits on the GPU, for work of the present round, that stay pending for long.
//!
//! Owns: each stream's last wait for recent work, called work of the present round (`rounds.rs`), and whether the
//! stream has passed the wait. If ranks of a job wait for one another in a circle, the program hangs without a message.
//! The warning names the streams and the remedy.

use crate::driver::Driver;
use crate::error::Result;
use crate::ids::{EventId, StreamId};
use std::time::{Duration, Instant};

/// The most streams whose last wait is kept. Beyond that, a new wait replaces the oldest one.
const MOST: usize = 64;

/// The last wait of a stream for recent work (of the present round) of another stream.
#[derive(Debug)]
struct NewWait {
    waiting: StreamId,
    awaited: StreamId,
    /// The event recorded on the waiting stream after the wait.
    event: EventId,
    state: State,
    /// Whether a warning has named these two streams.
    warned: bool,
}

/// A wait that stays pending.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overdue {
    waiting: StreamId,
    awaited: StreamId,
    pending: Duration,
}

impl Overdue {
    /// Logs a warning that names both streams. Callers hold no lock, since the log may block.
    pub(crate) fn warn(&self) {
        tracing::warn!(
            target: "seamalloc::waits",
            stream = %self.waiting,
            awaited = %self.awaited,
            pending_s = self.pending.as_secs(),
            "a stream still waits for another one whose freed memory it was given; if the program hangs because its ranks wait for one \
             another, sharing:never adds no such waits"
        );
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No call of [`NewWaits::overdue`] has checked the wait yet.
    New,
    /// A call of [`NewWaits::overdue`] found the wait pending, for the first time at this moment.
    Pending(Instant),
    /// The stream has passed the wait, or a warning has named the wait.
    Over,
}

/// The last wait of each stream for recent work (of the present round).
#[derive(Debug, Default)]
pub(crate) struct NewWaits {
    waits: Vec<NewWait>,
    /// The index of the wait that is replaced next.
    next: usize,
}

impl NewWaits {
    /// Notes that a stream waits for another stream's recent work (of the present round). Records an event after the
    /// wait.
    ///
    /// # Errors
    /// The driver's error, or the host has too little memory. The wait is not noted.
    pub(crate) fn note(&mut self, driver: &dyn Driver, waiting: StreamId, awaited: StreamId) -> Result<()> {
        let known = self.waits.iter().position(|wait| wait.waiting == waiting);
        if known.is_some_and(|at| self.waits[at].warned && self.waits[at].awaited == awaited) {
            return Ok(());
        }
        let at = match known {
            Some(at) => at,
            None if self.waits.len() == MOST => {
                self.next = (self.next + 1) % MOST;
                self.next
            }
            None => {
                self.waits.try_reserve(1)?;
                let event = driver.event_create()?;
                self.waits.push(NewWait { waiting, awaited, event, state: State::Over, warned: false });
                self.waits.len() - 1
            }
        };
        let wait = &mut self.waits[at];
        (wait.state, wait.warned) = (State::Over, false);
        driver.event_record(wait.event, waiting)?;
        (wait.waiting, wait.awaited, wait.state) = (waiting, awaited, State::New);
        Ok(())
    }

    /// Returns whether [`Self::overdue`] would query the driver.
    pub(crate) fn has_pending(&self) -> bool {
        self.waits.iter().any(|wait| wait.state != State::Over)
    }

    /// Returns the waits that are still pending at least `at_least` after a call first found them pending. Each pair of
    /// streams is returned once.
    ///
    /// # Errors
    /// The driver's error, or the host has too little memory. Waits that were not queried are queried at the next call.
    pub(crate) fn overdue(&mut self, driver: &dyn Driver, at_least: Duration) -> Result<Vec<Overdue>> {
        let mut overdue = Vec::new();
        for wait in self.waits.iter_mut().filter(|wait| wait.state != State::Over) {
            overdue.try_reserve(1)?;
            if driver.event_query(wait.event)? {
                wait.state = State::Over;
                continue;
            }
            let since = match wait.state {
                State::Pending(since) => since,
                _ => Instant::now(),
            };
            wait.state = State::Pending(since);
            let pending = since.elapsed();
            if pending >= at_least {
                (wait.state, wait.warned) = (State::Over, true);
                overdue.push(Overdue { waiting: wait.waiting, awaited: wait.awaited, pending });
            }
        }
        Ok(overdue)
    }

    /// Returns the bytes of host memory that the list takes.
    pub(super) fn host_bytes(&self) -> usize {
        self.waits.capacity() * size_of::<NewWait>()
    }

    /// Gives every event back to the driver, at the end of an allocator.
    pub(super) fn destroy_events(&mut self, driver: &dyn Driver) {
        super::record_stream::destroy_events(driver, self.waits.drain(..).map(|wait| wait.event));
    }
}

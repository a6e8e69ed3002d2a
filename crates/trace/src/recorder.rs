//! Records the events of an allocator, for a trace or for PyTorch's memory viewer.
//!
//! Owns: the bounded history and its clock. The recorder's [`Observer`] calls no allocator.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde_json::Map;

use crate::error::{Place, TraceError};
use crate::history::trace_of_history;
use crate::memory::Memory;
use crate::trace::Trace;
use seamalloc::flight::TimedEvent;
use seamalloc::observer::{Event, Observer};
use seamalloc::snapshot::Snapshot;

/// A history of the latest events of an allocator. Clones share the history: the program that reads the history keeps a
/// clone, and the allocator gets the observer that comes with the recorder.
///
/// ```
/// use seamalloc::driver::StreamId;
/// use seamalloc::PoolId;
/// use seamalloc::observer::{Action, Event};
/// use seamalloc_trace::Recorder;
///
/// let (recorder, mut observer) = Recorder::new(100_000);
/// let (stream, pool) = (StreamId::DEFAULT, PoolId::NONE);
/// observer.event(&Event { action: Action::Alloc, address: 4096, size: 512, stream, pool });
/// assert_eq!(recorder.to_trace("job", None)?.events.len(), 1);
/// # Ok::<(), seamalloc_trace::TraceError>(())
/// ```
#[derive(Clone)]
pub struct Recorder {
    history: Arc<Mutex<History>>,
}

struct History {
    events: VecDeque<TimedEvent>,
    max_entries: usize,
    dropped: u64,
}

/// A clock that returns the time in microseconds since 1970.
type Clock = Box<dyn FnMut() -> u64 + Send>;

struct Tap {
    history: Arc<Mutex<History>>,
    clock: Clock,
}

impl Observer for Tap {
    fn event(&mut self, event: &Event) {
        let time_us = (self.clock)();
        let mut history = self.history.lock();
        if history.events.len() >= history.max_entries {
            history.events.pop_front();
            history.dropped = history.dropped.saturating_add(1);
        }
        if history.max_entries > 0 {
            history.events.push_back(TimedEvent { event: *event, time_us });
        }
    }
}

impl Recorder {
    /// Makes a recorder of the last `max_entries` events with the system's clock, and the observer that feeds the
    /// recorder.
    #[must_use]
    pub fn new(max_entries: usize) -> (Self, Box<dyn Observer>) {
        Self::with_clock(max_entries, || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
        })
    }

    /// Makes a recorder as [`Self::new`] does, with a clock that returns microseconds since 1970.
    #[must_use]
    pub fn with_clock(max_entries: usize, clock: impl FnMut() -> u64 + Send + 'static) -> (Self, Box<dyn Observer>) {
        let history = Arc::new(Mutex::new(History { events: VecDeque::new(), max_entries, dropped: 0 }));
        (Self { history: Arc::clone(&history) }, Box::new(Tap { history, clock: Box::new(clock) }))
    }

    /// Returns the kept events, the oldest first.
    #[must_use]
    pub fn history(&self) -> Vec<TimedEvent> {
        self.history.lock().events.iter().copied().collect()
    }

    /// Returns the number of events that were dropped for newer ones.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.history.lock().dropped
    }

    /// Drops all kept events.
    pub fn clear(&self) {
        let mut history = self.history.lock();
        history.events.clear();
        history.dropped = 0;
    }

    /// Returns the history as a trace. Blocks allocated before the history are found by their frees, and in `held`, the
    /// allocator's current snapshot, if it is given. The trace allocates these blocks at its start.
    ///
    /// # Errors
    /// [`TraceError::Rule`] with the index of the event, if events contradict each other.
    pub fn to_trace(&self, name: &str, held: Option<&Snapshot>) -> Result<Trace, TraceError> {
        let history = self.history();
        let mut meta = Map::new();
        meta.insert("source".to_owned(), "seamalloc recorder".into());
        let events = history.iter().map(|timed| Some(timed.event));
        trace_of_history(name, meta, events, held, Memory::default())
            .map_err(|(index, rule)| TraceError::rule(name, Place::Event(index), rule))
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let history = self.history.lock();
        f.debug_struct("Recorder")
            .field("events", &history.events.len())
            .field("max_entries", &history.max_entries)
            .field("dropped", &history.dropped)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::RuleError;
    use crate::trace::TraceEvent;
    use seamalloc::PoolId;
    use seamalloc::driver::StreamId;
    use seamalloc::observer::Action;

    fn event(action: Action, address: u64) -> Event {
        Event { action, address, size: 64, stream: StreamId(0), pool: PoolId::NONE }
    }

    #[test]
    fn the_handle_reads_what_the_observer_saw() {
        let mut time = 41;
        let (recorder, mut observer) = Recorder::with_clock(10, move || {
            time += 1;
            time
        });
        observer.event(&event(Action::Alloc, 512));
        observer.event(&event(Action::FreeRequested, 512));
        let history = recorder.clone().history();
        assert_eq!(history[1], TimedEvent { event: event(Action::FreeRequested, 512), time_us: 43 });
        assert_eq!(recorder.to_trace("t", None).unwrap().events.len(), 2);
        recorder.clear();
        assert!(recorder.history().is_empty());
    }

    #[test]
    fn the_history_is_bounded_and_what_it_lost_is_allocated_first() {
        let (recorder, mut observer) = Recorder::new(2);
        observer.event(&event(Action::Alloc, 512));
        observer.event(&event(Action::Alloc, 1024));
        observer.event(&event(Action::FreeRequested, 512));
        assert_eq!((recorder.history().len(), recorder.dropped()), (2, 1));
        let trace = recorder.to_trace("t", None).unwrap();
        assert_eq!(trace.events.len(), 3);
        assert_eq!(trace.events[2], TraceEvent::FreeRequested { block: 0 });
        let (recorder, mut observer) = Recorder::new(0);
        observer.event(&event(Action::Alloc, 512));
        assert_eq!((recorder.history().len(), recorder.dropped()), (0, 1));
    }

    #[test]
    fn events_that_contradict_each_other_are_an_error() {
        let (recorder, mut observer) = Recorder::new(9);
        observer.event(&event(Action::Alloc, 512));
        observer.event(&event(Action::Alloc, 512));
        let error = recorder.to_trace("t", None).unwrap_err();
        assert!(
            matches!(error, TraceError::Rule { place: Place::Event(1), source: RuleError::Reused(512), .. }),
            "{error}"
        );
    }
}

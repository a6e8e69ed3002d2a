//! The completion of work, which may depend on work whose end is not known yet.
//!
//! Owns: the arithmetic of completion. `streams.rs` has clocks and events.
//!
//! Times are times of the clock, in nanoseconds or in any unit that the clock counts.

use std::sync::{Arc, OnceLock};

use seamalloc_driver::StreamId;

/// The last moment of the clock. The moment is half of the largest `u64`, so that sums of times never overflow.
pub(super) const END_OF_TIME: u64 = u64::MAX >> 1;

/// A gate for work of one stream (held work), which ends only when the gate is opened.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) stream: StreamId,
    /// The number of the work that the gate holds. Held work of one stream ends in the order of these numbers.
    pub(super) number: u64,
    opened: OnceLock<u64>,
}

impl Gate {
    pub(super) fn new(stream: StreamId, number: u64) -> Self {
        Self { stream, number, opened: OnceLock::new() }
    }

    pub(super) fn open(&self, at: u64) {
        // If the gate was opened before, the time of the first opening stays.
        let _ = self.opened.set(at);
    }
}

/// The completion of work. The work completes at a known time, or later if gates hold work before it: at the earliest a
/// given delay after each of these gates opens.
#[derive(Clone, Debug, Default)]
pub(super) struct Completion {
    at: u64,
    gates: Vec<(Arc<Gate>, u64)>,
}

impl Completion {
    /// Returns the time of completion; `None` while a gate holds earlier work.
    pub(super) fn known_time(&mut self) -> Option<u64> {
        if !self.gates.is_empty() {
            let at = &mut self.at;
            self.gates.retain(|(gate, delay)| match gate.opened.get() {
                Some(opened) => {
                    *at = (*at).max(later(*opened, *delay));
                    false
                }
                None => true,
            });
        }
        self.gates.is_empty().then_some(self.at)
    }

    pub(super) fn is_done(&mut self, now: u64) -> bool {
        self.known_time().is_some_and(|at| at <= now)
    }

    pub(super) fn not_before(&mut self, at: u64) {
        self.at = self.at.max(at.min(END_OF_TIME));
    }

    pub(super) fn takes_longer(&mut self, duration: u64) {
        self.known_time();
        self.at = later(self.at, duration);
        for (_, delay) in &mut self.gates {
            *delay = later(*delay, duration);
        }
    }

    /// Delays the completion until `other` completes.
    pub(super) fn after(&mut self, other: &Self) {
        self.known_time();
        self.at = self.at.max(other.at);
        for (gate, delay) in &other.gates {
            match self.gates.iter_mut().find(|(known, _)| Arc::ptr_eq(known, gate)) {
                Some((_, known)) => *known = (*known).max(*delay),
                None => self.gates.push((Arc::clone(gate), *delay)),
            }
        }
    }

    /// Delays the completion until `gate` opens. Earlier gates of the same stream open before `gate`, so the completion
    /// drops them. A stream with many gates therefore stays cheap.
    pub(super) fn after_gate(&mut self, gate: Arc<Gate>) {
        self.known_time();
        self.gates.retain(|(earlier, delay)| earlier.stream != gate.stream || *delay > 0);
        self.gates.push((gate, 0));
    }

    /// Returns the gates that are still closed.
    pub(super) fn gates(&self) -> impl Iterator<Item = &Arc<Gate>> {
        self.gates.iter().map(|(gate, _)| gate)
    }
}

pub(super) fn later(at: u64, duration: u64) -> u64 {
    at.saturating_add(duration).min(END_OF_TIME)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(number: u64) -> Arc<Gate> {
        Arc::new(Gate::new(StreamId(1), number))
    }

    #[test]
    fn work_behind_a_gate_takes_its_time_after_it() {
        let closed = gate(0);
        let mut work = Completion::default();
        work.not_before(50);
        work.after_gate(Arc::clone(&closed));
        work.takes_longer(10);
        assert_eq!(work.known_time(), None);
        assert!(!work.is_done(END_OF_TIME));
        closed.open(100);
        closed.open(900);
        assert_eq!(work.known_time(), Some(110));
        assert!(!work.is_done(109) && work.is_done(110));
    }

    #[test]
    fn the_later_of_two_decides() {
        let (first, second) = (gate(0), gate(1));
        let mut a = Completion::default();
        a.after_gate(Arc::clone(&first));
        a.takes_longer(500);
        let mut b = a.clone();
        b.after_gate(Arc::clone(&second));
        let mut joined = Completion::default();
        joined.not_before(7);
        joined.after(&b);
        joined.after(&a);
        assert_eq!(joined.gates().count(), 2);
        first.open(100);
        second.open(200);
        assert_eq!((a.known_time(), b.known_time(), joined.known_time()), (Some(600), Some(600), Some(600)));
    }

    #[test]
    fn many_gates_of_a_stream_are_one() {
        let mut work = Completion::default();
        for number in 0..1000 {
            work.after_gate(gate(number));
        }
        assert_eq!(work.gates().count(), 1);
    }

    #[test]
    fn time_has_an_end() {
        let mut work = Completion::default();
        work.not_before(u64::MAX);
        work.takes_longer(u64::MAX);
        assert_eq!(work.known_time(), Some(END_OF_TIME));
    }
}

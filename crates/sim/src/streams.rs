//! The clock, streams and events of the simulated GPU.
//!
//! Owns: the times at which work runs, and the memory that it uses meanwhile. Other files have mappings and costs.
//!
//! Times are nanoseconds, or any unit that the caller lets the clock count.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::completion::{Completion, Gate, later};
use crate::bookkeeping::{Answer, Range, Refusal, refuse};
use seamalloc_driver::{EventId, Status, StreamId};

/// Work of a stream that lasts until `finish_hold`. [`SimGpu::hold`](super::SimGpu::hold) makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    stream: StreamId,
    number: u64,
}

/// A kernel that was launched and has not ended.
#[derive(Debug)]
struct Work {
    ranges: Vec<Range>,
    done: Completion,
    /// The kernel's number (point) among the operations of its stream.
    point: u64,
}

/// A vector clock: for each stream, the last operation (point) that precedes the work.
type Clock = Vec<(StreamId, u64)>;

/// Returns the clock's entry for `stream`; 0 if there is none.
fn after(clock: &Clock, stream: StreamId) -> u64 {
    clock.iter().find(|(of, _)| *of == stream).map_or(0, |(_, point)| *point)
}

/// Raises the clock's entry for `stream` to at least `point`.
fn comes_after(clock: &mut Clock, stream: StreamId, point: u64) {
    match clock.iter_mut().find(|(of, _)| *of == stream) {
        Some((_, known)) => *known = point.max(*known),
        None => clock.push((stream, point)),
    }
}

#[derive(Debug, Default)]
struct Stream {
    /// The completion of all work given to the stream.
    done: Completion,
    /// The number of points so far. A point is a kernel, an event, or a free of a pool's memory.
    points: u64,
    /// For each other stream, the last operation (point) for which this stream has waited.
    clock: Clock,
    work: VecDeque<Work>,
    /// Work that lasts until `finish_hold` (a [`Hold`]) and has not ended, oldest first.
    held: VecDeque<Arc<Gate>>,
    next_hold: u64,
    /// The number of streams that had the handle before.
    number: u64,
    /// Whether the last of these streams was destroyed, so that the handle belongs to no stream.
    destroyed: bool,
    /// The unfinished kernels of destroyed streams, and the completion of all work of these streams.
    left: VecDeque<Work>,
    left_done: Completion,
}

impl Stream {
    /// Destroys the stream. The stream's work goes on.
    fn destroy(&mut self) {
        self.destroyed = true;
        self.left.append(&mut self.work);
        self.left_done.after(&std::mem::take(&mut self.done));
    }

    /// Ends the stream's holds up to and including `number`, since a stream runs in order.
    fn open(&mut self, number: u64, now: u64) -> bool {
        let ended = self.held.partition_point(|gate| gate.number <= number);
        for gate in self.held.drain(..ended) {
            gate.open(now);
        }
        ended > 0
    }

    /// Forgets kernels that have ended.
    fn drop_ended(&mut self, now: u64) {
        while self.work.front_mut().is_some_and(|work| work.done.is_done(now)) {
            self.work.pop_front();
        }
        // The kernels of destroyed streams have no common order, so any of them may have ended.
        self.left.retain_mut(|work| !work.done.is_done(now));
    }
}

#[derive(Debug, Default)]
pub(super) struct Event {
    /// The completion of the event, which is immediate for an event that was never recorded.
    done: Completion,
    recorded: bool,
    /// The captured stream in which the event was last recorded, if any. The event then marks a place in a graph, not a
    /// time.
    captured: Option<StreamId>,
    /// For each stream, the event's own included, the last operation (point) before the event.
    clock: Clock,
}

impl Event {
    pub(super) fn captured(&self) -> Option<StreamId> {
        self.captured
    }

    pub(super) fn is_recorded(&self) -> bool {
        self.recorded
    }

    pub(super) fn is_complete(&mut self, now: u64) -> bool {
        self.done.is_done(now)
    }
}

#[derive(Debug, Default)]
pub(super) struct Timeline {
    now: u64,
    run_ahead: u64,
    streams: FxHashMap<StreamId, Stream>,
    events: FxHashMap<u64, Event>,
    next_event: u64,
    /// The number of waits of streams whose event was already complete.
    idle_waits: u64,
}

impl Timeline {
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    pub(super) fn advance(&mut self, duration: u64) {
        self.now = later(self.now, duration);
    }

    pub(super) fn set_run_ahead(&mut self, duration: u64) {
        self.run_ahead = duration;
    }

    pub(super) fn events(&self) -> usize {
        self.events.len()
    }

    pub(super) fn idle_waits(&self) -> u64 {
        self.idle_waits
    }

    pub(super) fn launch(&mut self, stream: StreamId, ranges: &[Range], duration: u64) {
        let now = self.now;
        let stream = self.streams.entry(stream).or_default();
        stream.drop_ended(now);
        stream.done.not_before(now);
        stream.done.takes_longer(duration);
        stream.points += 1;
        if !ranges.is_empty() {
            let (done, point) = (stream.done.clone(), stream.points);
            stream.work.push_back(Work { ranges: ranges.to_vec(), done, point });
        }
    }

    /// Returns the time at which all work given to `stream` is done; `None` if it is not known.
    pub(super) fn done_at(&mut self, stream: StreamId) -> Option<u64> {
        self.streams.get_mut(&stream).map_or(Some(0), |stream| stream.done.known_time())
    }

    /// Returns the parts of `range` that unfinished work may still use: for each kernel, the first part.
    pub(super) fn in_use(&mut self, range: Range) -> Vec<(Range, StreamId)> {
        let now = self.now;
        let mut found = Vec::new();
        for (&id, stream) in &mut self.streams {
            stream.drop_ended(now);
            for work in stream.work.iter().chain(&stream.left) {
                found.extend(work.ranges.iter().find_map(|used| used.overlap(range)).map(|used| (used, id)));
            }
        }
        found.sort_unstable_by_key(|(used, id)| (*id, used.address, used.size));
        found
    }

    /// Returns the number that distinguishes the stream from others with the same handle.
    pub(super) fn number_of(&self, stream: StreamId) -> u64 {
        self.streams.get(&stream).map_or(0, |stream| stream.number)
    }

    pub(super) fn destroy(&mut self, stream: StreamId) {
        self.streams.entry(stream).or_default().destroy();
    }

    /// Gives the handle to a new stream.
    pub(super) fn replace(&mut self, stream: StreamId) {
        let stream = self.streams.entry(stream).or_default();
        stream.destroy();
        stream.destroyed = false;
        stream.number += 1;
    }

    /// Refuses the handle of a destroyed stream, as an H200 does. In a real driver such a handle is a dangling pointer.
    pub(super) fn check_stream(&self, stream: StreamId) -> Answer<()> {
        match self.streams.get(&stream) {
            Some(known) if known.destroyed => {
                Err(refuse(Status::INVALID_CONTEXT, format!("stream {stream} was destroyed")))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn hold(&mut self, stream: StreamId) -> Hold {
        let entry = self.streams.entry(stream).or_default();
        let number = entry.next_hold;
        entry.next_hold += 1;
        let gate = Arc::new(Gate::new(stream, number));
        entry.held.push_back(Arc::clone(&gate));
        entry.done.after_gate(gate);
        Hold { stream, number }
    }

    pub(super) fn finish(&mut self, stream: StreamId) -> bool {
        let now = self.now;
        let Some(entry) = self.streams.get_mut(&stream) else { return false };
        entry.held.front().map(|gate| gate.number).is_some_and(|oldest| entry.open(oldest, now))
    }

    pub(super) fn finish_hold(&mut self, hold: Hold) -> bool {
        let now = self.now;
        self.streams.get_mut(&hold.stream).is_some_and(|entry| entry.open(hold.number, now))
    }

    pub(super) fn event_create(&mut self) -> EventId {
        self.next_event += 1;
        self.events.insert(self.next_event, Event::default());
        EventId(self.next_event)
    }

    pub(super) fn event_destroy(&mut self, event: EventId) -> Answer<()> {
        self.events.remove(&event.0).map(drop).ok_or_else(|| unknown(event))
    }

    pub(super) fn event(&mut self, event: EventId) -> Answer<&mut Event> {
        self.events.get_mut(&event.0).ok_or_else(|| unknown(event))
    }

    /// Records the event. Without `runs`, only adds the event to the graph that is being captured.
    pub(super) fn event_record(&mut self, event: EventId, stream: StreamId, runs: bool) -> Answer<()> {
        let recorded = self.events.get_mut(&event.0).ok_or_else(|| unknown(event))?;
        recorded.recorded = true;
        recorded.captured = (!runs).then_some(stream);
        if runs {
            let id = stream;
            let stream = self.streams.entry(stream).or_default();
            // The stream itself does not complete before its events, so that a wait for the stream includes them.
            stream.done.known_time();
            stream.done.not_before(later(self.now, self.run_ahead));
            recorded.done.clone_from(&stream.done);
            stream.points += 1;
            recorded.clock.clone_from(&stream.clock);
            comes_after(&mut recorded.clock, id, stream.points);
        }
        Ok(())
    }

    /// Marks a free of a pool's memory in a stream. Returns the free's number (point) in the stream, its completion,
    /// and the points of other streams for which the stream has waited.
    pub(super) fn mark_free(&mut self, stream: StreamId) -> (u64, Completion, Vec<(StreamId, u64)>) {
        let at = later(self.now, self.run_ahead);
        let stream = self.streams.entry(stream).or_default();
        // A wait for the stream includes the free, as it includes the stream's events.
        stream.done.known_time();
        stream.done.not_before(at);
        stream.points += 1;
        (stream.points, stream.done.clone(), stream.clock.clone())
    }

    /// Returns the last operation (point) of `other` for which the stream has waited.
    pub(super) fn comes_after(&self, stream: StreamId, other: StreamId) -> u64 {
        self.streams.get(&stream).map_or(0, |stream| after(&stream.clock, other))
    }

    /// Makes a stream wait for a free of another stream. `before` holds the operations (points) of further streams for
    /// which the other stream had waited.
    pub(super) fn wait_for_free(
        &mut self,
        stream: StreamId,
        (of, point): (StreamId, u64),
        before: &[(StreamId, u64)],
        done: &Completion,
    ) {
        let waiting = self.streams.entry(stream).or_default();
        waiting.done.after(done);
        for &(of, point) in before.iter().filter(|(of, _)| *of != stream).chain([&(of, point)]) {
            comes_after(&mut waiting.clock, of, point);
        }
    }

    /// Returns the parts of `range` that unfinished work may still use and for which `stream` has not waited.
    pub(super) fn unordered_uses(&mut self, range: Range, stream: StreamId) -> Vec<(Range, StreamId)> {
        let now = self.now;
        let clock = self.streams.get(&stream).map(|stream| stream.clock.clone()).unwrap_or_default();
        let mut found = Vec::new();
        for (&id, other) in &mut self.streams {
            other.drop_ended(now);
            let known = if id == stream { u64::MAX } else { after(&clock, id) };
            let open = other.work.iter().filter(|work| work.point > known).chain(&other.left);
            found.extend(
                open.filter_map(|work| work.ranges.iter().find_map(|used| used.overlap(range))).map(|used| (used, id)),
            );
        }
        found.sort_unstable_by_key(|(used, id)| (*id, used.address, used.size));
        found
    }

    pub(super) fn wait_for_event(&mut self, event: EventId) -> Answer<()> {
        let completion = self.event(event)?.done.clone();
        self.wait_for(completion);
        Ok(())
    }

    pub(super) fn stream_wait(&mut self, stream: StreamId, event: EventId) -> Answer<()> {
        let now = self.now;
        let event = self.events.get_mut(&event.0).ok_or_else(|| unknown(event))?;
        self.idle_waits += u64::from(event.done.is_done(now));
        let waiting = self.streams.entry(stream).or_default();
        waiting.done.after(&event.done);
        for &(of, point) in event.clock.iter().filter(|(of, _)| *of != stream) {
            comes_after(&mut waiting.clock, of, point);
        }
        Ok(())
    }

    /// Makes the CPU wait for all work given to `stream`.
    pub(super) fn wait_for_stream(&mut self, stream: StreamId) {
        if let Some(entry) = self.streams.get(&stream) {
            let completion = entry.done.clone();
            self.wait_for(completion);
        }
    }

    /// Makes the CPU wait for all work given to any stream.
    pub(super) fn wait_for_device(&mut self) {
        let mut all = Completion::default();
        for stream in self.streams.values() {
            all.after(&stream.done);
            all.after(&stream.left_done);
        }
        self.wait_for(all);
    }

    /// Makes the CPU wait for a completion. Ends the holds on which the completion depends, since otherwise the wait
    /// would never end.
    fn wait_for(&mut self, mut completion: Completion) {
        completion.known_time();
        for gate in completion.gates() {
            if let Some(stream) = self.streams.get_mut(&gate.stream) {
                stream.open(gate.number, self.now);
            }
        }
        self.now = completion.known_time().map_or(self.now, |at| at.max(self.now));
    }
}

fn unknown(event: EventId) -> Refusal {
    refuse(Status::INVALID_HANDLE, format!("event {:#x} does not exist or was destroyed", event.0))
}

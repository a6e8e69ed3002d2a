//! The streams of a host device: the lane (queue of work) of each handle, the order in which lanes run, and events.
//!
//! Owns: all lanes, behind one lock, and the CPU's waits for them. `state.rs` has the memory.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::lane::{Lane, LaneNumber, Mark, Next};
use super::work::HostWork;
use crate::bookkeeping::{Answer, Range, Refusal, refuse};
use seamalloc_driver::{EventId, Status, StreamId};

/// The most items that may wait in a stream before the CPU waits, which is about the limit of an H200's driver.
const MOST_WAITING: usize = 1_024;
/// The first handle of streams that `HostDriver::create_stream` makes. Handles that programs choose are smaller.
const FIRST_MADE: u64 = 1 << 40;

/// Work of a stream that lasts until `finish_hold`. [`HostDriver::hold`](super::HostDriver::hold) makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostHold {
    lane: LaneNumber,
    number: u64,
}

#[derive(Debug)]
pub(super) struct Event {
    /// The mark that the event's last record left in a stream. A mark passes once the stream's earlier work is done.
    /// For an event that was never recorded, the mark has passed.
    mark: Arc<Mark>,
    pub(super) is_recorded: bool,
    /// The captured stream in which the event was last recorded, if any.
    pub(super) captured: Option<StreamId>,
}

#[derive(Debug, Default)]
pub(super) struct Streams {
    lanes: FxHashMap<LaneNumber, Lane>,
    /// The lane (queue of work) of each handle; `None` if the handle's stream was destroyed.
    handles: FxHashMap<StreamId, Option<LaneNumber>>,
    next_lane: LaneNumber,
    next_handle: u64,
    events: FxHashMap<u64, Event>,
    next_event: u64,
    /// The lanes (streams' queues of work) of which a step, the next part of their work, can run now.
    due: VecDeque<LaneNumber>,
    /// The times at which pausing lanes continue.
    pauses: BinaryHeap<Reverse<(Instant, LaneNumber)>>,
    idle_waits: u64,
    /// The state of the random generator that chooses the next lane.
    drawn: u64,
    /// The number of lanes (streams' queues) whose next step of work has become due, but for which no waiting thread of
    /// the device was woken yet.
    new_steps: usize,
    /// Whether the work of a lane (a stream's queue) has begun a pause, and no waiting thread of the device was told
    /// its end yet.
    new_pause: bool,
    /// Whether a lane (a stream's queue) has advanced for which the CPU may be waiting.
    advanced: bool,
    /// Whether the threads must end.
    pub(super) ends: bool,
}

impl Streams {
    fn lane_of(&mut self, stream: StreamId) -> Answer<(LaneNumber, &mut Lane)> {
        let next = &mut self.next_lane;
        let number = *self.handles.entry(stream).or_insert_with(|| {
            *next += 1;
            Some(*next)
        });
        let gone = || refuse(Status::INVALID_CONTEXT, format!("stream {stream} was destroyed"));
        let number = number.ok_or_else(gone)?;
        Ok((number, self.lanes.entry(number).or_insert_with(|| Lane::new(stream))))
    }

    /// Refuses the handle of a destroyed stream.
    pub(super) fn check_stream(&self, stream: StreamId) -> Answer<()> {
        match self.handles.get(&stream) {
            Some(None) => Err(refuse(Status::INVALID_CONTEXT, format!("stream {stream} was destroyed"))),
            _ => Ok(()),
        }
    }

    pub(super) fn number_of(&mut self, stream: StreamId) -> Answer<u64> {
        self.lane_of(stream).map(|(number, _)| number)
    }

    pub(super) fn make(&mut self) -> StreamId {
        self.next_handle += 1;
        StreamId(FIRST_MADE + self.next_handle)
    }

    /// Destroys a stream. Work given to it before is still carried out.
    pub(super) fn destroy(&mut self, stream: StreamId) {
        if let Some(number) = self.handles.insert(stream, None).flatten()
            && let Some(lane) = self.lanes.get_mut(&number)
        {
            lane.has_ended = true;
            if lane.is_done() {
                self.lanes.remove(&number);
            }
        }
    }

    /// Gives the handle to a new stream.
    pub(super) fn replace(&mut self, stream: StreamId) {
        self.destroy(stream);
        self.handles.remove(&stream);
    }

    /// Returns whether a stream has so much work that some of it must be done before the stream gets more.
    pub(super) fn is_full(&mut self, stream: StreamId) -> Answer<bool> {
        let (_, lane) = self.lane_of(stream)?;
        Ok(lane.len() >= MOST_WAITING && lane.goes_on())
    }

    pub(super) fn give(&mut self, stream: StreamId, work: Arc<HostWork>) -> Answer<()> {
        let (number, lane) = self.lane_of(stream)?;
        lane.give(work);
        self.settle(number);
        Ok(())
    }

    pub(super) fn hold(&mut self, stream: StreamId) -> Answer<HostHold> {
        let (lane, entry) = self.lane_of(stream)?;
        let number = entry.hold(lane, false);
        Ok(HostHold { lane, number })
    }

    /// Returns whether the closed gate holds a stream, or will hold it once its earlier work is done.
    pub(super) fn is_at_gate(&self, stream: StreamId) -> bool {
        let lane = self.handles.get(&stream).copied().flatten();
        lane.and_then(|lane| self.lanes.get(&lane)).is_some_and(Lane::is_at_gate)
    }

    /// Holds a stream until `finish_hold`. Also returns the mark that passes once all earlier work is done.
    pub(super) fn hold_at_gate(&mut self, stream: StreamId) -> Answer<(HostHold, Arc<Mark>)> {
        let (lane, entry) = self.lane_of(stream)?;
        let mark = entry.mark();
        let number = entry.hold(lane, true);
        self.settle(lane);
        Ok((HostHold { lane, number }, mark))
    }

    /// Ends the oldest work of `hold` in a stream.
    pub(super) fn finish(&mut self, stream: StreamId) -> bool {
        let number = self.handles.get(&stream).copied().flatten();
        let oldest = number.and_then(|lane| Some((lane, self.lanes.get(&lane)?.oldest_hold()?)));
        oldest.is_some_and(|(lane, number)| self.finish_hold(HostHold { lane, number }))
    }

    /// Ends work of `hold`, and all earlier such work of its stream.
    pub(super) fn finish_hold(&mut self, HostHold { lane, number }: HostHold) -> bool {
        let ended = self.lanes.get_mut(&lane).is_some_and(|entry| entry.finish(number));
        if ended {
            self.settle(lane);
        }
        ended
    }

    pub(super) fn is_held(&self, HostHold { lane, number }: HostHold) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| lane.is_held(number))
    }

    /// Advances a lane (the queue of one stream), and all lanes that wait for it, as far as possible.
    fn settle(&mut self, first: LaneNumber) {
        let mut left = vec![first];
        while let Some(number) = left.pop() {
            let Some(lane) = self.lanes.get_mut(&number).filter(|lane| !lane.is_listed) else { continue };
            let before = lane.len();
            let next = lane.advance(number, Instant::now(), &mut left);
            self.advanced |= lane.len() < before;
            match next {
                Next::Step => {
                    lane.is_listed = true;
                    self.due.push_back(number);
                    self.new_steps += 1;
                }
                Next::Sleep(until) if lane.pause != Some(until) => {
                    lane.pause = Some(until);
                    self.pauses.push(Reverse((until, number)));
                    self.new_pause = true;
                }
                Next::Rest if lane.has_ended => drop(self.lanes.remove(&number)),
                Next::Rest | Next::Blocked | Next::Sleep(_) => {}
            }
        }
    }

    /// Returns a step that is due, from a lane chosen at random; `None` if no step is due.
    pub(super) fn next_step(&mut self) -> Option<(LaneNumber, StreamId, Arc<HostWork>, u64)> {
        let now = Instant::now();
        while let Some(Reverse((until, _))) = self.pauses.peek()
            && *until <= now
        {
            if let Some(Reverse((_, number))) = self.pauses.pop() {
                self.settle(number);
            }
        }
        // The choice uses splitmix64. A GPU might take any order, and a different order in each run finds more errors.
        self.drawn = self.drawn.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let drawn = (self.drawn ^ (self.drawn >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 31;
        let at = usize::try_from(drawn).unwrap_or(0).checked_rem(self.due.len())?;
        let number = self.due.swap_remove_back(at)?;
        let lane = self.lanes.get(&number)?;
        let (work, done) = lane.due()?;
        Some((number, lane.stream, work, done))
    }

    /// Returns the time at which the next pausing lane (a stream's queue) continues, if any.
    pub(super) fn next_pause(&self) -> Option<Instant> {
        self.pauses.peek().map(|Reverse((until, _))| *until)
    }

    /// Returns how many lanes (streams' queues) have got a due step since the last call, so that waiting threads of the
    /// device can be woken for these steps.
    pub(super) fn take_new_steps(&mut self) -> usize {
        std::mem::take(&mut self.new_steps)
    }

    /// Returns whether a lane (a stream's queue) has begun a pause since the last call, so that waiting threads of the
    /// device can be told its end.
    pub(super) fn take_new_pause(&mut self) -> bool {
        std::mem::take(&mut self.new_pause)
    }

    /// Returns whether any lane (a stream's queue) has advanced since the last call, so that a wait of the CPU may be
    /// over.
    pub(super) fn take_advanced(&mut self) -> bool {
        std::mem::take(&mut self.advanced)
    }

    /// Notes that a step was carried out. `done` is the number of bytes done; `None` means that the work is finished.
    pub(super) fn stepped(&mut self, number: LaneNumber, done: Option<u64>) {
        if let Some(lane) = self.lanes.get_mut(&number) {
            lane.is_listed = false;
            lane.stepped(done);
            self.advanced |= done.is_none();
            self.settle(number);
        }
    }

    /// Marks the end of the work given to a stream so far.
    pub(super) fn mark(&mut self, stream: StreamId) -> Answer<Arc<Mark>> {
        self.lane_of(stream).map(|(_, lane)| lane.mark())
    }

    /// Marks the end of the work given to each stream so far, including destroyed streams.
    pub(super) fn mark_all(&mut self) -> Vec<Arc<Mark>> {
        self.lanes.values_mut().filter(|lane| !lane.is_done()).map(Lane::mark).collect()
    }

    /// Ends the work of `hold` that keeps these marks from passing, since otherwise a wait for the marks would never
    /// end.
    pub(super) fn let_pass(&mut self, marks: &[Arc<Mark>]) {
        for gate in marks.iter().flat_map(|mark| &mark.gates).filter(|gate| !gate.stays) {
            self.finish_hold(HostHold { lane: gate.lane, number: gate.number });
        }
    }

    pub(super) fn stream_wait(&mut self, stream: StreamId, event: EventId) -> Answer<()> {
        let mark = Arc::clone(&self.event(event)?.mark);
        let (number, lane) = self.lane_of(stream)?;
        if mark.has_passed() {
            self.idle_waits += 1;
            return Ok(());
        }
        lane.wait_for(&mark);
        self.settle(number);
        Ok(())
    }

    pub(super) fn idle_waits(&self) -> u64 {
        self.idle_waits
    }

    pub(super) fn event_create(&mut self) -> EventId {
        self.next_event += 1;
        let event = Event { mark: Arc::new(Mark::passed()), is_recorded: false, captured: None };
        self.events.insert(self.next_event, event);
        EventId(self.next_event)
    }

    pub(super) fn event_destroy(&mut self, event: EventId) -> Answer<()> {
        self.events.remove(&event.0).map(drop).ok_or_else(|| unknown(event))
    }

    pub(super) fn event(&self, event: EventId) -> Answer<&Event> {
        self.events.get(&event.0).ok_or_else(|| unknown(event))
    }

    /// Returns the mark of the last record.
    pub(super) fn mark_of(&self, event: EventId) -> Answer<Arc<Mark>> {
        self.event(event).map(|event| Arc::clone(&event.mark))
    }

    /// Records the event. Without `runs`, only notes that the event was recorded in a capture.
    pub(super) fn event_record(&mut self, event: EventId, stream: StreamId, runs: bool) -> Answer<()> {
        self.event(event)?;
        let mark = if runs { Some(self.mark(stream)?) } else { None };
        let recorded = self.events.get_mut(&event.0).ok_or_else(|| unknown(event))?;
        recorded.is_recorded = true;
        recorded.captured = (!runs).then_some(stream);
        if let Some(mark) = mark {
            recorded.mark = mark;
        }
        Ok(())
    }

    pub(super) fn events(&self) -> usize {
        self.events.len()
    }

    /// Returns, for each unfinished piece of work that does not wait at a closed gate, the first part of `range` that
    /// it uses, with its stream.
    pub(super) fn in_use(&self, range: Range) -> Vec<(Range, StreamId)> {
        let all = self.lanes.values().flat_map(|lane| lane.in_use(range).map(|used| (used, lane.stream)));
        let mut found: Vec<_> = all.collect();
        found.sort_unstable_by_key(|(used, id)| (*id, used.address, used.size));
        found
    }

    /// Forgets all work that has not been carried out, and makes the threads end.
    pub(super) fn end(&mut self) {
        self.ends = true;
        self.due.clear();
        self.pauses.clear();
        self.lanes.clear();
    }
}

fn unknown(event: EventId) -> Refusal {
    refuse(Status::INVALID_HANDLE, format!("event {:#x} does not exist or was destroyed", event.0))
}

//! The work given to one stream, in order.
//!
//! Owns: one lane (the queue of one stream), and how far it can run before it must wait. A new stream with an old
//! handle gets a new lane, and the old lane runs to its end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::work::HostWork;
use crate::bookkeeping::Range;
use seamalloc_driver::StreamId;

/// The number of a lane (the queue of one stream), which no other lane of the device has had.
pub(super) type LaneNumber = u64;

/// Work of [`Lane::hold`], which lasts until this gate is opened.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) lane: LaneNumber,
    /// The number of this work in its lane. Such work of one lane ends in the order of these numbers.
    pub(super) number: u64,
    /// Whether the work ends only by [`Lane::finish`], even if the CPU waits for it.
    pub(super) stays: bool,
    open: AtomicBool,
}

impl Gate {
    pub(super) fn new(lane: LaneNumber, number: u64, stays: bool) -> Self {
        Self { lane, number, stays, open: AtomicBool::new(false) }
    }

    pub(super) fn open(&self) {
        self.open.store(true, Ordering::Release);
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }
}

/// A mark in a lane (the queue of one stream), which passes once all earlier work of the lane is done.
#[derive(Debug, Default)]
pub(super) struct Mark {
    passed: AtomicBool,
    /// The work of [`Lane::hold`] that must end before the mark passes.
    pub(super) gates: Vec<Arc<Gate>>,
    /// Lanes that wait for the mark.
    waiting: Mutex<Vec<LaneNumber>>,
}

impl Mark {
    pub(super) fn passed() -> Self {
        Self { passed: AtomicBool::new(true), ..Self::default() }
    }

    pub(super) fn has_passed(&self) -> bool {
        self.passed.load(Ordering::Acquire)
    }
}

/// One item of a lane.
#[derive(Debug)]
enum Item {
    /// Work, and the number of its bytes that are done.
    Work(Arc<HostWork>, u64),
    /// A pause that has begun, with its end.
    Until(Instant),
    Mark(Arc<Mark>),
    WaitFor(Arc<Mark>),
    Hold(Arc<Gate>),
}

/// The next action of a lane.
#[derive(Debug)]
pub(super) enum Next {
    /// A step of the lane's work is due.
    Step,
    /// The lane continues at this time.
    Sleep(Instant),
    /// The lane waits for earlier work of another lane (a mark), or for [`Lane::finish`].
    Blocked,
    /// The lane has no work.
    Rest,
}

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) stream: StreamId,
    items: VecDeque<Item>,
    /// The work of [`Self::hold`], in any lane, that must end before all work given to this lane so far can be done.
    gates: Vec<Arc<Gate>>,
    /// The work of [`Self::hold`] in this lane that has not ended, oldest first.
    held: VecDeque<Arc<Gate>>,
    next_hold: u64,
    /// Whether the lane (the queue of one stream) is in the list of lanes with work, or a thread carries out one of its
    /// steps.
    pub(super) is_listed: bool,
    /// The end of the current pause, if a thread watches for it.
    pub(super) pause: Option<Instant>,
    /// Whether the lane's stream was destroyed.
    pub(super) has_ended: bool,
}

impl Lane {
    pub(super) fn new(stream: StreamId) -> Self {
        Self {
            stream,
            items: VecDeque::new(),
            gates: Vec::new(),
            held: VecDeque::new(),
            next_hold: 0,
            is_listed: false,
            pause: None,
            has_ended: false,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the number of items that are not done.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns whether all work given to the lane can be done without a further [`Self::finish`] of any lane.
    pub(super) fn goes_on(&mut self) -> bool {
        self.gates.retain(|gate| !gate.is_open());
        self.gates.is_empty()
    }

    pub(super) fn give(&mut self, work: Arc<HostWork>) {
        self.items.push_back(Item::Work(work, 0));
    }

    /// Marks the end of the work given so far.
    pub(super) fn mark(&mut self) -> Arc<Mark> {
        if self.is_done() {
            return Arc::new(Mark::passed());
        }
        self.goes_on();
        let mark = Arc::new(Mark { gates: self.gates.clone(), ..Mark::default() });
        self.items.push_back(Item::Mark(Arc::clone(&mark)));
        mark
    }

    /// Makes work given from now on wait for a mark (a point in another lane).
    pub(super) fn wait_for(&mut self, mark: &Arc<Mark>) {
        self.goes_on();
        for gate in mark.gates.iter().filter(|gate| !gate.is_open()) {
            if !self.gates.iter().any(|known| Arc::ptr_eq(known, gate)) {
                self.gates.push(Arc::clone(gate));
            }
        }
        self.items.push_back(Item::WaitFor(Arc::clone(mark)));
    }

    /// Adds work that lasts until [`Self::finish`]. Returns the number of this work. With `stays`, the work lasts even
    /// while the CPU waits for it.
    pub(super) fn hold(&mut self, lane: LaneNumber, stays: bool) -> u64 {
        let number = self.next_hold;
        self.next_hold += 1;
        let gate = Arc::new(Gate::new(lane, number, stays));
        self.goes_on();
        // Earlier gates of this lane open before this gate, which therefore stands for them too.
        self.gates.retain(|earlier| earlier.lane != lane);
        self.gates.push(Arc::clone(&gate));
        self.held.push_back(Arc::clone(&gate));
        self.items.push_back(Item::Hold(gate));
        number
    }

    /// Returns the number of the oldest work of [`Self::hold`] that has not ended.
    pub(super) fn oldest_hold(&self) -> Option<u64> {
        self.held.front().map(|gate| gate.number)
    }

    /// Returns whether the work of [`Self::hold`] with this number has not ended.
    pub(super) fn is_held(&self, number: u64) -> bool {
        self.held.iter().any(|gate| gate.number == number)
    }

    /// Ends the work of [`Self::hold`] up to and including `number`. Returns whether any such work ended.
    pub(super) fn finish(&mut self, number: u64) -> bool {
        let ended = self.held.partition_point(|gate| gate.number <= number);
        self.held.drain(..ended).for_each(|gate| gate.open());
        ended > 0
    }

    /// Returns the work whose next step is due, and the number of its bytes that are done.
    pub(super) fn due(&self) -> Option<(Arc<HostWork>, u64)> {
        match self.items.front() {
            Some(Item::Work(work, done)) => Some((Arc::clone(work), *done)),
            _ => None,
        }
    }

    /// Notes that a step of the lane's work is done.
    pub(super) fn stepped(&mut self, done: Option<u64>) {
        match (self.items.front_mut(), done) {
            (Some(Item::Work(_, so_far)), Some(bytes)) => *so_far = bytes,
            _ => drop(self.items.pop_front()),
        }
    }

    /// Advances the lane (the queue of one stream) as far as possible without carrying out work. Adds to `freed` the
    /// lanes that can continue as a result.
    pub(super) fn advance(&mut self, own: LaneNumber, now: Instant, freed: &mut Vec<LaneNumber>) -> Next {
        loop {
            match self.items.front_mut() {
                None => return Next::Rest,
                Some(Item::Work(work, _)) => match **work {
                    HostWork::Pause { ns } => {
                        let end = now.checked_add(Duration::from_nanos(ns)).unwrap_or(now);
                        if let Some(front) = self.items.front_mut() {
                            *front = Item::Until(end);
                        }
                        continue;
                    }
                    HostWork::Use { .. } => {}
                    _ => return Next::Step,
                },
                Some(Item::Until(end)) if *end > now => return Next::Sleep(*end),
                Some(Item::WaitFor(mark)) if !mark.has_passed() => {
                    let mut waiting = mark.waiting.lock();
                    if !waiting.contains(&own) {
                        waiting.push(own);
                    }
                    return Next::Blocked;
                }
                Some(Item::Hold(gate)) if !gate.is_open() => return Next::Blocked,
                Some(Item::Mark(mark)) => {
                    mark.passed.store(true, Ordering::Release);
                    freed.append(&mut mark.waiting.lock());
                }
                Some(Item::Until(_) | Item::WaitFor(_) | Item::Hold(_)) => {}
            }
            self.items.pop_front();
        }
    }

    /// Returns whether the closed gate for streams holds the lane, or will hold it once its earlier work is done.
    pub(super) fn is_at_gate(&self) -> bool {
        self.held.iter().any(|gate| gate.stays)
    }

    /// Returns, for each unfinished piece of work that does not wait at the gate, the first part of `range` that it
    /// uses.
    pub(super) fn in_use(&self, range: Range) -> impl Iterator<Item = Range> + '_ {
        let before_gate = |item: &&Item| !matches!(item, Item::Hold(gate) if gate.stays && !gate.is_open());
        self.items.iter().take_while(before_gate).filter_map(move |item| match item {
            Item::Work(work, _) => work.ranges().find_map(|used| used.overlap(range)),
            _ => None,
        })
    }
}

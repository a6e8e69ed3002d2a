//! Threads, streams and events in time, and the path that determines how long a step takes.
//!
//! Owns: the arithmetic of time. Callers handle allocators and drivers.
//!
//! Every item that takes time is a node with a link to the node that it waited for last. A kernel begins when three
//! conditions hold: its stream is free, the kernel has been launched, and the work for which its stream waits is done.
//! The kernel's link is to the node whose end fulfilled the last of these conditions. The critical path of a step is
//! found by walking back from the step's end over these nodes.
//!
//! ```text
//! CPU        launch A   launch B               the step is over <-
//! stream 1           \->[ A      ]                              \
//! stream 2             \         \-- event -->[ B            ]---/       path: launch A, A, B
//! ```

use std::collections::BTreeMap;

use super::report::CriticalPath;
use crate::memory::SeededMap;
use seamalloc::driver::{EventId, StreamId};

/// The node at which every pass begins.
const ROOT: u32 = 0;

/// The kind of a node's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The program, on the CPU.
    Program,
    /// Driver calls of the allocator.
    Driver,
    /// Work of a stream.
    Work,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    /// The node (an item that takes time) for whose end this node waited last.
    from: u32,
    begin: u64,
    end: u64,
    part: Part,
    /// How long nothing but a wait of the allocator delayed the node's beginning, in nanoseconds.
    held: u64,
}

/// A moment, and the node (an item that takes time) that ended then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) at: u64,
    node: u32,
}

impl Moment {
    const START: Self = Self { at: 0, node: ROOT };

    fn or_later(self, other: Self) -> Self {
        if other.at > self.at { other } else { self }
    }

    /// Returns a moment with the same node, `ns` later.
    fn later_by(self, ns: u64) -> Self {
        Self { at: self.at.saturating_add(ns), ..self }
    }
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The moment when the stream has done all work given to it, including the program's waits.
    free: Moment,
    /// The moment until which waits of the allocator hold the stream back.
    held_until: Moment,
}

impl Stream {
    const fn free_at(start: Moment) -> Self {
        Self { free: start, held_until: start }
    }
}

/// The time in a replay.
#[derive(Debug)]
pub(super) struct Clock {
    gap_ns: u64,
    latency_ns: u64,
    nodes: Vec<Node>,
    /// The moment when the pass began.
    start: Moment,
    threads: Vec<Moment>,
    /// The thread that calls the allocator at present.
    caller: usize,
    streams: SeededMap<StreamId, Stream>,
    /// The program's events, by their number.
    events: Vec<Moment>,
    /// The allocator's events.
    own_events: BTreeMap<u64, Moment>,
    /// The moment when the allocator's lock is free.
    unlocked: Moment,
    /// The number of waits of the CPU for the GPU in driver calls of the allocator.
    cpu_waits: u64,
    /// The number of waits of the allocator that delayed work.
    effective_waits: u64,
}

impl Clock {
    pub(super) fn new(threads: usize, events: usize, gap_ns: u64, latency_ns: u64) -> Self {
        let mut clock = Self {
            gap_ns,
            latency_ns,
            nodes: Vec::new(),
            start: Moment::START,
            threads: vec![Moment::START; threads],
            caller: 0,
            streams: SeededMap::default(),
            events: vec![Moment::START; events],
            own_events: BTreeMap::new(),
            unlocked: Moment::START,
            cpu_waits: 0,
            effective_waits: 0,
        };
        clock.begin_pass();
        clock
    }

    /// Begins a pass once all work is done. All threads continue at the same moment.
    pub(super) fn begin_pass(&mut self) {
        let threads = self.threads.iter().fold(self.unlocked, |latest, thread| latest.or_later(*thread));
        self.start = Moment { at: threads.or_later(self.all_done()).at, node: ROOT };
        let at = self.start.at;
        self.nodes.clear();
        self.nodes.push(Node { from: ROOT, begin: at, end: at, part: Part::Program, held: 0 });
        self.threads.fill(self.start);
        self.unlocked = self.start;
        self.events.fill(self.start);
        self.streams.values_mut().for_each(|stream| *stream = Stream::free_at(self.start));
        self.own_events.values_mut().for_each(|event| *event = self.start);
    }

    /// Returns the number of waits of the CPU for the GPU in driver calls, and the number of waits that delayed work.
    pub(super) fn waits(&self) -> (u64, u64) {
        (self.cpu_waits, self.effective_waits)
    }

    /// Returns the present moment of a thread.
    pub(super) fn now(&self, thread: usize) -> Moment {
        self.threads.get(thread).copied().unwrap_or(self.start)
    }

    /// Keeps a thread busy for `ns` nanoseconds.
    pub(super) fn busy(&mut self, thread: usize, ns: u64, part: Part) {
        let now = self.now(thread);
        if ns > 0 {
            let then = self.add(Node { from: now.node, begin: now.at, end: now.at.saturating_add(ns), part, held: 0 });
            self.set(thread, then);
        }
    }

    /// Delays a thread until `moment`.
    pub(super) fn after(&mut self, thread: usize, moment: Moment) {
        self.set(thread, self.now(thread).or_later(moment));
    }

    /// Makes a thread take the allocator's lock, which one thread holds at a time.
    pub(super) fn lock(&mut self, thread: usize) {
        self.caller = thread;
        self.after(thread, self.unlocked);
    }

    /// Releases the allocator's lock.
    pub(super) fn unlock(&mut self) {
        self.unlocked = self.now(self.caller);
    }

    /// Adds `ns` nanoseconds of driver calls to the thread that holds the lock.
    pub(super) fn drive(&mut self, ns: u64) {
        self.busy(self.caller, ns, Part::Driver);
    }

    /// Returns the time of the thread that holds the allocator's lock.
    pub(super) fn caller_ns(&self) -> u64 {
        self.now(self.caller).at
    }

    /// Gives a stream work, from a thread.
    pub(super) fn work(&mut self, thread: usize, stream: StreamId, duration: u64) {
        let launched = self.now(thread).later_by(self.latency_ns);
        let of = self.stream(stream);
        let ready = of.free.later_by(self.gap_ns).or_later(launched);
        // If no wait has held the stream back since its last work, `of.held_until` is the pass's start.
        let held_until = of.held_until.later_by(if of.held_until.at > of.free.at { self.gap_ns } else { 0 });
        let held = held_until.at.saturating_sub(ready.at);
        let ready = if held > 0 { held_until } else { ready };
        self.effective_waits += u64::from(held > 0);
        let end = ready.at.saturating_add(duration);
        let done = self.add(Node { from: ready.node, begin: ready.at, end, part: Part::Work, held });
        self.streams.insert(stream, Stream { free: done, held_until: self.start });
    }

    /// Returns the moment at which a stream has done all work given to it, or the thread's present moment if that is
    /// later.
    fn record(&mut self, thread: usize, stream: StreamId) -> Moment {
        let of = self.stream(stream);
        let free = of.free.or_later(self.now(thread));
        let held = of.held_until.at.saturating_sub(free.at);
        if held == 0 {
            return free;
        }
        let (from, at) = (of.held_until.node, of.held_until.at);
        self.add(Node { from, begin: at, end: at, part: Part::Work, held })
    }

    /// Records an event of the program, from a thread.
    pub(super) fn record_event(&mut self, thread: usize, event: usize, stream: StreamId) {
        let moment = self.record(thread, stream);
        if let Some(known) = self.events.get_mut(event) {
            *known = moment;
        }
    }

    /// Returns the moment at which an event of the program completes.
    pub(super) fn event(&self, event: usize) -> Moment {
        self.events.get(event).copied().unwrap_or(self.start)
    }

    /// Makes a stream wait for an event of the program.
    pub(super) fn wait(&mut self, stream: StreamId, event: usize) {
        let moment = self.event(event);
        let of = self.stream(stream);
        self.streams.insert(stream, Stream { free: of.free.or_later(moment), ..of });
    }

    /// Records an event of the allocator.
    pub(super) fn record_own(&mut self, event: EventId, stream: StreamId) {
        let moment = self.record(self.caller, stream);
        self.own_events.insert(event.0, moment);
    }

    /// Destroys an event of the allocator.
    pub(super) fn destroy_own(&mut self, event: EventId) {
        self.own_events.remove(&event.0);
    }

    /// Returns whether an event of the allocator has completed by the time of the calling thread.
    pub(super) fn is_complete(&self, event: EventId) -> bool {
        self.own_events.get(&event.0).is_none_or(|moment| moment.at <= self.now(self.caller).at)
    }

    /// Makes a stream wait for an event of the allocator.
    pub(super) fn hold_back(&mut self, stream: StreamId, event: EventId) {
        if let Some(&moment) = self.own_events.get(&event.0) {
            let of = self.stream(stream);
            self.streams.insert(stream, Stream { held_until: of.held_until.or_later(moment), ..of });
        }
    }

    /// Makes the calling thread wait for an event of the allocator.
    pub(super) fn wait_for_own(&mut self, event: EventId) {
        let moment = self.own_events.get(&event.0).copied().unwrap_or(self.start);
        self.wait_on_cpu(moment);
    }

    /// Makes the calling thread wait for a stream.
    pub(super) fn wait_for_stream(&mut self, stream: StreamId) {
        self.wait_on_cpu(self.done(stream));
    }

    /// Makes the calling thread wait for all streams.
    pub(super) fn wait_for_device(&mut self) {
        self.wait_on_cpu(self.all_done());
    }

    fn wait_on_cpu(&mut self, moment: Moment) {
        self.cpu_waits += 1;
        self.after(self.caller, moment);
    }

    /// Returns the moment when a stream has done all work given to it.
    pub(super) fn done(&self, stream: StreamId) -> Moment {
        let of = self.stream(stream);
        of.free.or_later(of.held_until)
    }

    /// Returns the moment when all streams have done all work given to them.
    pub(super) fn all_done(&self) -> Moment {
        // The map has no fixed order. If two streams end at the same time, the one whose last node (an item that takes
        // time) was made first is taken, so that each run gives the same result.
        let earlier = |a: Moment, b: Moment| if (b.at, a.node) > (a.at, b.node) { b } else { a };
        self.streams.values().map(|of| of.free.or_later(of.held_until)).fold(self.start, earlier)
    }

    /// Returns the critical path between two moments of a thread.
    pub(super) fn path(&self, begin: Moment, end: Moment) -> CriticalPath {
        let mut path = CriticalPath::default();
        let (mut node, mut until) = (end.node, end.at);
        while until > begin.at {
            let Some(found) = self.nodes.get(node as usize) else { break };
            let within = |from: u64, to: u64| to.min(until).saturating_sub(from.max(begin.at));
            let own = within(found.begin, found.end);
            match found.part {
                Part::Program => path.program_ns += own,
                Part::Driver => path.driver_ns += own,
                Part::Work => path.work_ns += own,
            }
            // The time for which waits of the allocator held the node (an item that takes time) back counts only as far
            // as it lies in the step.
            path.held_ns = path.held_ns.saturating_add(found.held.min(found.begin.saturating_sub(begin.at)));
            let before = self.nodes.get(found.from as usize).map_or(begin.at, |from| from.end);
            path.launch_ns += within(before, found.begin) + until.saturating_sub(found.end.max(begin.at));
            until = before.min(found.begin);
            if node == ROOT {
                break;
            }
            node = found.from;
        }
        path
    }

    fn stream(&self, stream: StreamId) -> Stream {
        self.streams.get(&stream).copied().unwrap_or(Stream::free_at(self.start))
    }

    fn set(&mut self, thread: usize, moment: Moment) {
        if let Some(now) = self.threads.get_mut(thread) {
            *now = moment;
        }
    }

    fn add(&mut self, node: Node) -> Moment {
        let index = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        self.nodes.push(node);
        Moment { at: node.end, node: index }
    }
}

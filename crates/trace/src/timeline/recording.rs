//! A timeline in memory.
//!
//! Owns: the plain values. `read.rs` owns the rules that make one valid.

use seamalloc::driver::StreamId;

/// A program's work in time: for each thread of the CPU what it did, one thing after the other. Times are nanoseconds.
///
/// Streams, threads, blocks and events are numbered from 0 in the order in which the file names them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Short name for output.
    pub name: String,
    /// What is known of the job, as a JSON object. Copied through, but for the keys that the fields below say.
    pub meta: serde_json::Map<String, serde_json::Value>,
    /// How long each step took when it was recorded (key `steps_ns`); may be empty.
    pub recorded_ns: Vec<u64>,
    /// Between two pieces of work of a stream that has more to do (key `gap_ns`).
    pub gap_ns: u64,
    /// From the end of the call that launches work to its begin on an idle stream (key `latency_ns`).
    pub latency_ns: u64,
    /// The streams, as the driver's handles.
    pub streams: Vec<StreamId>,
    /// How many threads there are.
    pub threads: u32,
    /// How many events are recorded.
    pub events: u32,
    /// How many blocks there are; the first of them are [`Self::start`].
    pub blocks: u32,
    /// The blocks that are live at the beginning, and again when it is replayed over.
    pub start: Vec<StartBlock>,
    /// What the threads did, in the order in which it began.
    pub lines: Vec<Line>,
}

/// A block that is live at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartBlock {
    /// Requested bytes.
    pub size: u64,
    /// Index into [`Timeline::streams`].
    pub stream: u32,
}

/// What a thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The thread.
    pub thread: u32,
    /// How long the program ran before it, since the line of the same thread before.
    pub gap_ns: u64,
    /// How long the call took, waiting left out. 0 of allocations and frees, whose time is the allocator's.
    pub call_ns: u64,
    /// The line of another thread that must be over first.
    pub needs: Option<u32>,
    /// What it did.
    pub what: What,
}

/// What a thread can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A step of the job begins.
    StepBegins,
    /// A step of the job is over.
    StepEnds,
    /// Asks for memory.
    Allocate {
        /// The new block.
        block: u32,
        /// Requested bytes.
        size: u64,
        /// Index into [`Timeline::streams`].
        stream: u32,
    },
    /// Names another stream that uses a block.
    Use {
        /// The block.
        block: u32,
        /// Index into [`Timeline::streams`].
        stream: u32,
    },
    /// Frees a block.
    Free {
        /// The block.
        block: u32,
    },
    /// Gives a stream a kernel, a copy or a fill.
    Work {
        /// Index into [`Timeline::streams`].
        stream: u32,
        /// How long it runs.
        duration_ns: u64,
    },
    /// Records an event.
    Record {
        /// The event.
        event: u32,
        /// Index into [`Timeline::streams`].
        stream: u32,
    },
    /// Lets a stream wait for an event.
    Wait {
        /// The event.
        event: u32,
        /// Index into [`Timeline::streams`].
        stream: u32,
    },
    /// Waits for the GPU.
    Synchronize(Synchronized),
    /// Waits for another thread.
    Join,
}

/// What of the GPU a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synchronized {
    /// All streams.
    Device,
    /// A stream: an index into [`Timeline::streams`].
    Stream(u32),
    /// An event.
    Event(u32),
}

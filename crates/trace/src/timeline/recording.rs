//! A timeline in memory.
//!
//! Owns: the plain values. `read.rs` owns the rules that make a timeline valid.

use seamalloc::driver::StreamId;

/// A program's work in time: the calls of each thread of the CPU, in order. Times are nanoseconds.
///
/// Streams, threads, blocks and events are numbered from 0 in the order in which the file names them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Short name for output.
    pub name: String,
    /// The description of the job, as a JSON object. Copied through, except for the keys of the fields below.
    pub meta: serde_json::Map<String, serde_json::Value>,
    /// How long each step took when it was recorded (key `steps_ns`); may be empty.
    pub recorded_ns: Vec<u64>,
    /// The time between two pieces of work of a stream that has more to do (key `gap_ns`).
    pub gap_ns: u64,
    /// The time from the end of the call that launches work to the work's begin on an idle stream (key `latency_ns`).
    pub latency_ns: u64,
    /// The streams, as the driver's handles.
    pub streams: Vec<StreamId>,
    /// The number of threads.
    pub threads: u32,
    /// The number of events that are recorded.
    pub events: u32,
    /// The number of blocks; the first of them are [`Self::start`].
    pub blocks: u32,
    /// The blocks that are live at the beginning of each pass.
    pub start: Vec<StartBlock>,
    /// The calls of the threads, in the order in which they began.
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

/// One call of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The thread.
    pub thread: u32,
    /// How long the program ran before the call, since the previous line of the same thread.
    pub gap_ns: u64,
    /// How long the call took, without waiting. 0 for allocations and frees, whose time is the allocator's.
    pub call_ns: u64,
    /// The line of another thread that must end first.
    pub needs: Option<u32>,
    /// The call.
    pub what: What,
}

/// A call of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Begins a step of the job.
    StepBegins,
    /// Ends a step of the job.
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
    /// Declares that another stream uses a block.
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
        /// How long the work runs, in nanoseconds.
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

/// The work of the GPU that a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synchronized {
    /// All streams.
    Device,
    /// A stream: an index into [`Timeline::streams`].
    Stream(u32),
    /// An event.
    Event(u32),
}

//! A timeline in memory.
//!
//! Owns: the plain values. `read.rs` owns the rules that make a timeline valid.

use seamalloc::driver::StreamId;

/// A program's work in time: the calls of each CPU thread, in order. Times are nanoseconds.
///
/// Streams, threads, blocks and events are numbered from 0, in the order in which the file names them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// The short name for output.
    pub name: String,
    /// The description of the job as a JSON object. The description is copied, except for the keys of the fields below.
    pub meta: serde_json::Map<String, serde_json::Value>,
    /// The recorded time of each step (key `steps_ns`); may be empty.
    pub recorded_ns: Vec<u64>,
    /// The pause between two pieces of work of a stream if the second one is launched before the first one ends (key
    /// `gap_ns`).
    pub gap_ns: u64,
    /// The time from the end of a launch call to the begin of its work on an idle stream (key `latency_ns`).
    pub latency_ns: u64,
    /// The streams, as the driver's handles.
    pub streams: Vec<StreamId>,
    /// The number of threads.
    pub threads: u32,
    /// The number of events that are recorded.
    pub events: u32,
    /// The number of blocks. The first blocks are [`Self::start`].
    pub blocks: u32,
    /// The blocks that are live at the beginning of each pass.
    pub start: Vec<StartBlock>,
    /// The calls of the threads, in the order in which they began.
    pub lines: Vec<Line>,
}

/// A block that is live at the beginning of each pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartBlock {
    /// The requested bytes.
    pub size: u64,
    /// The stream, as an index into [`Timeline::streams`].
    pub stream: u32,
}

/// One call of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The thread.
    pub thread: u32,
    /// The time that the program ran before the call, since the previous call of the same thread.
    pub gap_ns: u64,
    /// The time of the call without waiting. 0 for allocations and frees, whose time is that of the allocator.
    pub call_ns: u64,
    /// The line (a call) of another thread that must end before this call begins, if any.
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
    /// Requests memory.
    Allocate {
        /// The new block.
        block: u32,
        /// The requested bytes.
        size: u64,
        /// The stream, as an index into [`Timeline::streams`].
        stream: u32,
    },
    /// Declares that another stream uses a block.
    Use {
        /// The block.
        block: u32,
        /// The stream, as an index into [`Timeline::streams`].
        stream: u32,
    },
    /// Frees a block.
    Free {
        /// The block.
        block: u32,
    },
    /// Gives a stream a kernel, a copy or a fill.
    Work {
        /// The stream, as an index into [`Timeline::streams`].
        stream: u32,
        /// The duration of the work, in nanoseconds.
        duration_ns: u64,
    },
    /// Records an event.
    Record {
        /// The event.
        event: u32,
        /// The stream, as an index into [`Timeline::streams`].
        stream: u32,
    },
    /// Makes a stream wait for an event.
    Wait {
        /// The event.
        event: u32,
        /// The stream, as an index into [`Timeline::streams`].
        stream: u32,
    },
    /// Waits for the GPU.
    Synchronize(Synchronized),
    /// Waits for another thread.
    Join,
}

/// The work of the GPU for which a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synchronized {
    /// All streams.
    Device,
    /// A stream: an index into [`Timeline::streams`].
    Stream(u32),
    /// An event.
    Event(u32),
}

//! Allocation traces: what a program asked of its allocator, in order.
//!
//! Owns: the [`Trace`] in memory and the rules that make one valid. The formats, the recorder, the generated workloads
//! and the replay stand in files of their own and meet here.

#![deny(unsafe_code)]

pub mod builder;
pub mod columns;
pub mod compact;
pub mod csv;
mod error;
pub mod fit;
mod fragmentation;
mod history;
pub mod pytorch;
pub mod read;
pub mod recorded;
mod recorder;
pub mod replay;
mod summary;
pub mod whatif;
pub mod workload;
mod write;

pub use builder::{MAX_BLOCK_SIZE, TraceBuilder};
pub use compact::{read_compact, write_compact};
pub use csv::{read_csv, write_csv};
pub use error::{Place, RuleError, TraceError};
pub use fragmentation::{FRAGMENTATION_COLUMNS, fragmentation_json};
pub use pytorch::{PyTorchSnapshot, read_snapshot, write_snapshot_json, write_snapshot_pickle};
pub use read::{read_bytes, read_path};
pub use recorder::{Recorder, TimedEvent};
pub use summary::Summary;
pub use write::{ENDINGS, can_write, write_path, write_snapshot_path};

use seamalloc::driver::StreamId;

/// One thing a program asked of its allocator. Blocks are numbered from 0 in the order in which they were allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// The program asked for `size` bytes on a stream (an index into [`Trace::streams`]). The n-th `Alloc` of a trace
    /// makes block n.
    Alloc {
        /// Requested bytes, more than 0.
        size: u64,
        /// Index into [`Trace::streams`].
        stream: u32,
    },
    /// The program freed the block; work of other streams may still use it until the `FreeCompleted`.
    FreeRequested {
        /// The block.
        block: u32,
    },
    /// Every stream has finished with the block. Follows its `FreeRequested`, at once in the common case.
    FreeCompleted {
        /// The block.
        block: u32,
    },
}

/// A program's allocations and frees, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Short name for output: `gpt2xl-N`.
    pub name: String,
    /// What is known of the job, as a JSON object: the keys `job`, `torch`, `device`, `peak_req`, `peak_res_native`
    /// and others of the recording program. Copied through, never interpreted.
    pub meta: serde_json::Map<String, serde_json::Value>,
    /// The streams of the trace, as the driver's handles.
    pub streams: Vec<StreamId>,
    /// What happened, in order.
    pub events: Vec<TraceEvent>,
}

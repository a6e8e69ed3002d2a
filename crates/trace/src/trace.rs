//! A trace in memory: the requests and frees of a program, in order.
//!
//! Owns: the plain values. `builder.rs` owns the rules that make a trace valid.

use seamalloc::driver::StreamId;

/// The largest block in bytes: 128 TiB, the user addresses of x86-64, in which CUDA's unified addresses lie.
pub const MAX_BLOCK_SIZE: u64 = 1 << 47;

/// One request or free of a program. Blocks are numbered from 0 in the order in which they are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// The program requests `size` bytes on a stream (an index into [`Trace::streams`]). The n-th `Alloc` of a trace
    /// makes block n.
    Alloc {
        /// Requested bytes, more than 0.
        size: u64,
        /// Index into [`Trace::streams`].
        stream: u32,
    },
    /// The program frees the block. Work of other streams may still use the block until the `FreeCompleted`.
    FreeRequested {
        /// The block.
        block: u32,
    },
    /// Every stream has finished with the block. The event follows the block's `FreeRequested`, in most cases as the
    /// next event.
    FreeCompleted {
        /// The block.
        block: u32,
    },
}

/// A program's allocations and frees, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// The short name for output, such as `gpt2xl-N`.
    pub name: String,
    /// The description of the job as a JSON object, with the keys `job`, `torch`, `device`, `peak_req`,
    /// `peak_res_native` and others of the recording program. The description is copied and never interpreted.
    pub meta: serde_json::Map<String, serde_json::Value>,
    /// The streams of the trace, as the driver's handles.
    pub streams: Vec<StreamId>,
    /// The events, in order.
    pub events: Vec<TraceEvent>,
}

impl Trace {
    /// Returns the trace with all requests on one stream, for a host pool: the CPU uses a host pool's memory, and no
    /// stream orders what the CPU does. A free that completes later than it is requested keeps its completion.
    #[must_use]
    pub fn on_one_stream(&self) -> Self {
        let one = |event: &TraceEvent| match *event {
            TraceEvent::Alloc { size, .. } => TraceEvent::Alloc { size, stream: 0 },
            other => other,
        };
        Self {
            streams: vec![self.streams.first().copied().unwrap_or(StreamId::DEFAULT)],
            events: self.events.iter().map(one).collect(),
            name: self.name.clone(),
            meta: self.meta.clone(),
        }
    }
}

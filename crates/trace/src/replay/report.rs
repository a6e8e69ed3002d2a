//! The options of a replay, and its result.
//!
//! Owns: the plain values of a replay. `columns.rs` has their JSON.

use seamalloc::driver::CallStats;
use seamalloc::driver::cuda::CudaOpenError;
use seamalloc::driver::host::HostConfigError;
use seamalloc::driver::sim::{SimConfig, SimConfigError};
use seamalloc::{
    Config, ConfigError, Error, Fragmentation, OutOfMemoryReport, PendingWaits, SpillStats, SplitStats, Stalls, Waits,
};

/// The options of a replay.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// The allocator's options, including its strategy.
    pub config: Config,
    /// The simulated device.
    pub device: SimConfig,
    /// The number of operations by which the CPU runs ahead of the GPU. An event recorded at operation k completes when
    /// the replay has reached operation k + lag. With 0, the GPU keeps up.
    pub lag: u64,
    /// The number of passes. Blocks that are live at a pass's end are freed before the next pass.
    pub passes: u32,
}

impl ReplayOptions {
    /// Makes options of one pass on a device, with a GPU that keeps up with the CPU (`lag` 0).
    #[must_use]
    pub fn new(config: Config, device: SimConfig) -> Self {
        Self { config, device, lag: 0, passes: 1 }
    }
}

/// The reason why a replay could not be made. Running out of memory is a result, not an error.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReplayError {
    /// The simulated device cannot be made with these options.
    #[error(transparent)]
    Device(#[from] SimConfigError),
    /// The real device cannot be opened, or cannot make streams.
    #[error(transparent)]
    Cuda(#[from] CudaOpenError),
    /// Host memory cannot be used.
    #[error(transparent)]
    Host(#[from] HostConfigError),
    /// A host pool refuses the options.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The allocator cannot be made, or failed for a reason other than lack of memory.
    #[error("trace `{trace}`, event {event}: {error}")]
    Allocator {
        /// The trace's name.
        trace: String,
        /// The event of the trace, from 0.
        event: usize,
        /// The allocator's error.
        error: Error,
    },
    /// The trace frees a block that it has not allocated, or names a stream that is not in its list.
    #[error("trace `{trace}`, event {event}: {what}")]
    BadTrace {
        /// The trace's name.
        trace: String,
        /// The event of the trace, from 0.
        event: usize,
        /// The error of the event.
        what: &'static str,
    },
}

/// The result of one pass over a trace. Sizes are bytes. Peaks are those of this pass.
#[derive(Clone, Debug, PartialEq)]
pub struct PassReport {
    /// The trace's name.
    pub trace: String,
    /// The strategy's name.
    pub strategy: &'static str,
    /// The device's name.
    pub device: String,
    /// The number of the pass, from 1.
    pub pass: u32,
    /// The number of allocations and frees.
    pub ops: u64,
    /// The number of allocations.
    pub allocations: u64,
    /// The most bytes that were requested and not freed; if memory ran out, the most until then.
    pub peak_live: u64,
    /// The most bytes in blocks in use, including freed blocks that other streams still used.
    pub peak_active: u64,
    /// The most bytes of device memory that were held.
    pub peak_reserved: u64,
    /// The wall time of the pass divided by `ops`, in nanoseconds. The time includes the replay's own work and the
    /// simulation.
    pub ns_per_op: f64,
    /// The driver calls of the pass and the time in them (simulated).
    pub driver: CallStats,
    /// The operations that called the driver, and the time that they spent there.
    pub stalls: Stalls,
    /// The number of views built in the pass.
    pub views_built: u64,
    /// The number of requests of the pass that an existing view served.
    pub views_reused: u64,
    /// The number of views dropped in the pass.
    pub views_dropped: u64,
    /// The chunks that were split in the pass, the chunks made of them, and the bytes copied for the splits.
    pub splits: SplitStats,
    /// Live memory that was spilled to host memory in the pass, and moved back.
    pub spills: SpillStats,
    /// The most spilled bytes at any moment of the pass.
    pub peak_spilled: u64,
    /// The sum of the bytes that were spilled in the pass.
    pub spilled_bytes: u64,
    /// Waits of the CPU in the pass for freed memory that was still in use. On a simulated device the time of these
    /// waits is counted in operations.
    pub pending_waits: PendingWaits,
    /// The number of mappings at the end of the pass.
    pub mappings: u64,
    /// The number of these mappings that belong to views.
    pub view_mappings: u64,
    /// The bytes of host memory in the allocator's own tables at the end of the pass.
    pub host_bytes: u64,
    /// The number of GPU-side waits of one stream for another.
    pub stream_waits: u64,
    /// The number of waits among `stream_waits` whose event was already complete, by the simulated clock.
    pub idle_waits: u64,
    /// The bytes that the waits in `stream_waits` made reusable, and the ages of the awaited events in operations.
    pub waits: Waits,
    /// The number of times that the CPU waited for the GPU: synchronizations, and frees that imply a wait.
    pub cpu_syncs: u64,
    /// The memory by its use, measured shortly after the most memory was held, if possible before the next free. In a
    /// pass in which no memory was reserved, the measurement is made at the event with the most live bytes.
    pub fragmentation: Fragmentation,
    /// The event at which `fragmentation` was measured.
    pub peak_event: usize,
    /// The bytes held after the pass, when all blocks were freed; with `idle_release_s`, at the end of a pause of the
    /// required length.
    pub held_after: u64,
    /// The event at which memory ran out, and the report. The pass ended at this event.
    pub oom: Option<(usize, OutOfMemoryReport)>,
}

impl PassReport {
    /// Returns peak live bytes divided by peak reserved bytes. 1 is perfect.
    #[must_use]
    pub fn utilization(&self) -> f64 {
        if self.peak_reserved == 0 { 1.0 } else { self.peak_live as f64 / self.peak_reserved as f64 }
    }
}

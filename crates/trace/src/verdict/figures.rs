//! The values of a verdict: its figures, and its kinds.

use crate::whatif::DeviceFrom;

/// The next step towards PyTorch's expandable segments.
pub const EXPANDABLE_SETTING: &str = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
/// The most owners that a verdict names.
pub(super) const OWNERS: usize = 3;
/// The command that runs a program with seamalloc.
pub const SEAMALLOC_COMMAND: &str = "python -m seamalloc run train.py";

/// The memory of the device that a CUDA context is assumed to hold; every process on the device has one. PyTorch's took
/// 0.7 GiB on an H100 with cuBLAS and cuDNN loaded, of which the context itself is about half a GiB.
pub const CONTEXT_BYTES: u64 = 512 << 20;

/// The figures from which a verdict is derived. Sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// The memory that the job has: that of the device, or less if PyTorch could have less of it when a request was refused; `None` if
    /// it is unknown.
    pub capacity: Option<u64>,
    /// The memory of the device, if it is known.
    pub device: Option<u64>,
    /// How the memory of the device is known; `None` is as unknown.
    pub device_from: Option<DeviceFrom>,
    /// The most bytes requested and not freed; a request that was refused while the job was recorded counts.
    pub live: u64,
    /// The largest request that was refused while the job was recorded; 0 if none was.
    pub refused: u64,
    /// The part of `live` that no step frees: weights, optimizer state; `None` if it is unknown.
    pub persistent: Option<u64>,
    /// The lines of the program with the most bytes at the peak, the largest first.
    pub owners: Vec<Holder>,
    /// PyTorch's native allocator on this memory; if none of the three runs the job on it, on the whole device.
    pub native: Need,
    /// PyTorch's expandable segments.
    pub expandable: Need,
    /// seamalloc's `stitch`.
    pub stitch: Need,
    /// The figures of a search, if none of the three runs the job.
    pub shortage: Option<Shortage>,
    /// The memory that PyTorch could have when a request was refused while the job was recorded; if a limit refused it,
    /// the memory held.
    pub available: Option<u64>,
    /// The free memory of the device at that moment, if a limit of PyTorch's refused the request.
    pub free_beyond_limit: Option<u64>,
    /// Whether the job was recorded with expandable segments.
    pub is_expandable_set: bool,
    /// The options of the replays that differ from the defaults.
    pub options: Options,
}

/// Options of the replays, as text; empty if all are the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The options that PyTorch's allocators have too.
    pub pytorch: String,
    /// All options.
    pub seamalloc: String,
}

/// The figures of a search, if neither PyTorch's allocators nor `stitch` run the job on the memory that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Whether one of the three runs the job on the whole device, of which PyTorch could have less.
    pub runs_on_device: bool,
    /// The allocator to choose if memory is short, by the memory that each holds on a large device.
    pub choice: Choice,
    /// The memory that native, expandable segments and `stitch` hold on the whole device, or else on a large one.
    pub enough: [Option<u64>; 3],
    /// The least memory on which `choice` runs the job, to 2 MiB; 0 if there is none.
    pub needs: u64,
    /// Options with which seamalloc still runs the job.
    pub remedy: Option<String>,
    /// The percentage by which all but persistent memory must shrink for `choice` to run the job; `None` if persistent
    /// memory leaves no room.
    pub smaller: Option<u64>,
    /// Options with which seamalloc runs the job by spilling.
    pub spill: Option<String>,
}

/// A line of the program that holds memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The line and its function: `train.py:12 forward`.
    pub name: String,
    /// Bytes that are live at the peak.
    pub bytes: u64,
}

/// The memory and the waits of an allocator on the job. Sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// The most bytes that the allocator holds; `None` if it runs out of memory on the device.
    pub reserved: Option<u64>,
    /// Bytes that were held and not in use at the moment of `reserved`, or when the allocator ran out of memory: free,
    /// or freed and still used by other streams.
    pub idle: u64,
    /// The part of `idle` that the requesting stream could not take, because it was free on other streams.
    pub elsewhere: u64,
    /// The part of `idle` that the program had freed and other streams still used (`record_stream`).
    pub pending: u64,
    /// How often the CPU waited for the GPU, to give memory back or to get it.
    pub waits: u64,
}

impl Need {
    /// Returns the part of `idle` that streams keep apart.
    #[must_use]
    pub fn apart(&self) -> u64 {
        self.elsewhere.saturating_add(self.pending)
    }
}

/// An allocator that a verdict recommends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// PyTorch's native allocator, its default.
    Native,
    /// PyTorch's expandable segments.
    Expandable,
    /// seamalloc's `stitch`.
    Seamalloc,
}

/// The verdict on a job: the first of the five questions of `docs/why.md` that fits. Sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Question 1: more bytes are live than the device has, or so nearly as many that no allocator runs the job.
    TooMuchLive {
        /// Bytes by which live memory exceeds the device; 0 if it is nearly as much as the device has.
        by: u64,
    },
    /// Question 2: other processes or libraries hold the missing memory.
    Others {
        /// Bytes that must become free.
        missing: u64,
    },
    /// Question 2: a limit keeps the missing memory from PyTorch, and the device has it.
    Limit {
        /// The least limit under which the job runs.
        to: u64,
    },
    /// Question 3: an allocator of PyTorch's serves the job, and leaves room or is beaten by no other.
    PyTorchIsEnough {
        /// The allocator: native or expandable segments.
        allocator: Choice,
        /// Whether the device is known, and this allocator leaves room on it.
        has_room: bool,
    },
    /// Question 4: memory that streams keep apart is the difference.
    Streams {
        /// Bytes that streams keep apart.
        apart: u64,
        /// Whether seamalloc saves these bytes. Memory that is freed and still in use serves no request under any
        /// allocator.
        is_saved: bool,
    },
    /// Question 5: seamalloc runs the job and PyTorch's allocators do not, or seamalloc holds notably less, or does not
    /// wait for memory.
    SeamallocHelps {
        /// Bytes that seamalloc holds less than the better of PyTorch's allocators; `None` if neither runs the job.
        saves: Option<u64>,
        /// Waits of the CPU for memory with that allocator of PyTorch's, which seamalloc avoids.
        waits: u64,
    },
}

impl Verdict {
    /// Returns the name, as in lines of JSON.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::TooMuchLive { .. } => "too_much_live",
            Self::Others { .. } => "others",
            Self::Limit { .. } => "limit",
            Self::PyTorchIsEnough { .. } => "pytorch_is_enough",
            Self::Streams { .. } => "streams",
            Self::SeamallocHelps { .. } => "seamalloc_helps",
        }
    }
}

/// A verdict with the figures from which it is derived.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// The figures.
    pub figures: Figures,
}

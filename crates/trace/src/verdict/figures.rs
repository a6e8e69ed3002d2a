//! The values of a verdict: the figures that it follows from, and its kinds.

use crate::whatif::DeviceFrom;

/// The next step towards PyTorch's expandable segments.
pub const EXPANDABLE_SETTING: &str = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
/// The most owners that a verdict names.
pub(super) const OWNERS: usize = 3;
/// The command that runs a program with seamalloc.
pub const SEAMALLOC_COMMAND: &str = "python -m seamalloc run train.py";

/// The memory of the device that a CUDA context is taken to hold, which every process on it has. A PyTorch process with
/// cuBLAS and cuDNN loaded took 0.7 GiB on an H100, about half a GiB of it for the context itself.
pub const CONTEXT_BYTES: u64 = 512 << 20;

/// The figures that a verdict follows from. Sizes are bytes.
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
    /// The lines of the program that hold most at the peak, the largest first.
    pub owners: Vec<Holder>,
    /// PyTorch's native allocator on this memory, or where none of the three runs the job on it, on the device as it is named.
    pub native: Need,
    /// PyTorch's expandable segments.
    pub expandable: Need,
    /// seamalloc's `stitch`.
    pub stitch: Need,
    /// The figures of a search, where none of the three runs the job.
    pub shortage: Option<Shortage>,
    /// The memory that PyTorch could have when a request was refused while the job was recorded; where a limit refused it, what was
    /// held.
    pub available: Option<u64>,
    /// The free memory of the device at that moment, where not the device but a limit of PyTorch's refused it.
    pub free_beyond_limit: Option<u64>,
    /// Whether the job was recorded with expandable segments.
    pub is_expandable_set: bool,
    /// The options of the replays that differ from the defaults.
    pub options: Options,
}

/// Options of the replays, as text; empty if all are the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Options that PyTorch's native allocator has too.
    pub native: String,
    /// Options of PyTorch that have an effect with expandable segments.
    pub expandable: String,
    /// Options that have an effect with `stitch`.
    pub seamalloc: String,
}

/// The figures of a search, where none of PyTorch's allocators and `stitch` runs the job on the memory that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Whether one of the three runs the job on the device, of which PyTorch could have less.
    pub runs_on_device: bool,
    /// The allocator with which the batch must be least smaller; where one runs the job on the device, the one to take there.
    pub choice: Choice,
    /// Bytes that native, expandable segments and `stitch` hold on that device, or else where memory is plenty.
    pub enough: [Option<u64>; 3],
    /// The least memory on which that allocator runs the job, to 2 MiB; 0 if there is none.
    pub needs: u64,
    /// Options with which seamalloc runs the job all the same.
    pub remedy: Option<String>,
    /// The percentage by which all that is not persistent must be smaller, for `choice` to run the job; `None` if nothing that is not
    /// persistent fits.
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

/// How an allocator serves the job. Sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// The most bytes that the allocator holds; `None` if it runs out of memory on the device.
    pub reserved: Option<u64>,
    /// Bytes that were held and not in use at that moment, or when the allocator ran out of memory: free, or freed and
    /// still used by other streams.
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
    /// PyTorch's native one, its default.
    Native,
    /// PyTorch's expandable segments.
    Expandable,
    /// seamalloc's `stitch`.
    Seamalloc,
}

impl Choice {
    /// Every allocator, PyTorch's default first.
    pub(super) const ALL: [Self; 3] = [Self::Native, Self::Expandable, Self::Seamalloc];
}

/// The verdict on a job: the first of the five questions of `docs/why.md` that fits. Sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Question 1: more is live than the device has, or so nearly as much that no allocator runs the job.
    TooMuchLive {
        /// Bytes by which live memory exceeds the device; 0 if it is nearly as much as the device has.
        by: u64,
    },
    /// Question 2: other processes or libraries hold what is missing.
    Others {
        /// Bytes that must become free.
        missing: u64,
    },
    /// Question 2: a limit keeps what is missing from PyTorch, and the device has it.
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
        /// Bytes that are kept apart.
        apart: u64,
        /// Whether seamalloc saves it. Memory that is freed and still in use serves nobody under any allocator.
        is_saved: bool,
    },
    /// Question 5: seamalloc runs the job where PyTorch's allocators do not, holds notably less, or does not wait for memory.
    SeamallocHelps {
        /// Bytes that it holds less than the one of PyTorch's that holds less; `None` if neither runs the job.
        saves: Option<u64>,
        /// Waits of the CPU for memory with that one of PyTorch's that seamalloc does without.
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

/// A verdict with the figures that it follows from.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// The figures.
    pub figures: Figures,
}

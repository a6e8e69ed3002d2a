//! The values of a verdict: the figures from which it follows, and its kinds.

use crate::whatif::DeviceFrom;

/// The setting that switches PyTorch's expandable segments on.
pub const EXPANDABLE_SETTING: &str = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
/// The most owners that a verdict names.
pub(super) const OWNERS: usize = 3;
/// The command that runs a program with seamalloc.
pub const SEAMALLOC_COMMAND: &str = "python -m seamalloc run train.py";

/// The device memory that a CUDA context is assumed to hold. Every process on the device has a context. A PyTorch
/// process with cuBLAS and cuDNN loaded took 0.7 GiB on an H100, about half a GiB of it for the context itself.
pub const CONTEXT_BYTES: u64 = 512 << 20;

/// The figures from which a verdict follows. Sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// The memory that the job has: the device's memory, or less if PyTorch could have less of it when a request was
    /// refused. `None` if it is unknown.
    pub capacity: Option<u64>,
    /// The memory of the device, if it is known.
    pub device: Option<u64>,
    /// The source of the device's memory. `None` has the meaning of [`DeviceFrom::Unknown`].
    pub device_from: Option<DeviceFrom>,
    /// The most bytes that were requested and not freed, including a request that was refused while the job was
    /// recorded.
    pub live: u64,
    /// The largest request that was refused while the job was recorded; 0 if none was refused.
    pub refused: u64,
    /// The part of `live` that no step frees (weights, optimizer state); `None` if it is unknown.
    pub persistent: Option<u64>,
    /// The lines of the program that hold the most memory at the peak, the largest first.
    pub owners: Vec<Holder>,
    /// The need of PyTorch's native allocator with `capacity` bytes. If one of the three allocators runs the job only
    /// on the whole device of the caller's options, the value is the need there.
    pub native: Need,
    /// The need of PyTorch's expandable segments.
    pub expandable: Need,
    /// The need of seamalloc's `stitch`.
    pub stitch: Need,
    /// The figures of the search for a way to run the job, if none of the three allocators runs the job.
    pub shortage: Option<Shortage>,
    /// The memory that PyTorch could have when a request was refused while the job was recorded. If a limit refused the
    /// request, the value is the memory that PyTorch held.
    pub available: Option<u64>,
    /// The free memory of the device when a limit of PyTorch's refused a request; `None` if no limit did.
    pub free_beyond_limit: Option<u64>,
    /// Whether the job was recorded with expandable segments.
    pub is_expandable_set: bool,
    /// The options of the replays that differ from the defaults.
    pub options: Options,
}

/// Options of the replays, as text; empty if all are the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The options that PyTorch's native allocator has too.
    pub native: String,
    /// The options of PyTorch that have an effect with expandable segments.
    pub expandable: String,
    /// The options that have an effect with `stitch`.
    pub seamalloc: String,
}

/// The figures of the search for more memory, other options or a smaller batch. The search is made if neither PyTorch's
/// allocators nor `stitch` run the job with the memory that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Whether one of the three allocators runs the job on the whole device, of which PyTorch could have only a part.
    pub runs_on_device: bool,
    /// The allocator that needs the smallest reduction of the batch. If an allocator runs the job on the whole device,
    /// the value is the allocator that is recommended for it.
    pub choice: Choice,
    /// The bytes that native, expandable segments and `stitch` hold on the device if one of them runs the job there,
    /// else on a device with plenty of memory.
    pub enough: [Option<u64>; 3],
    /// The least memory with which `choice` runs the job, to 2 MiB; 0 if there is no such memory.
    pub needs: u64,
    /// Options with which seamalloc nevertheless runs the job.
    pub remedy: Option<String>,
    /// The percentage by which all memory that is not persistent must shrink for `choice` to run the job; `None` if not
    /// even a hundredth of it fits, or if no search was needed.
    pub smaller: Option<u64>,
    /// Options with which seamalloc runs the job by spilling.
    pub spill: Option<String>,
}

/// A line of the program that holds memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The line and its function, such as `train.py:12 forward`.
    pub name: String,
    /// The bytes that are live at the peak.
    pub bytes: u64,
}

/// The needs of an allocator for the job. Sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// The most bytes that the allocator holds; `None` if it runs out of memory on the device.
    pub reserved: Option<u64>,
    /// The bytes that were held and not in use when the most was held, or when the allocator ran out of memory. These
    /// bytes were free, or freed and still used by other streams.
    pub idle: u64,
    /// The part of `idle` that the requesting stream could not take because it was free on other streams.
    pub elsewhere: u64,
    /// The part of `idle` that the program had freed and other streams still used (`record_stream`).
    pub pending: u64,
    /// The number of waits of the CPU for the GPU, to give memory back or to get it.
    pub waits: u64,
}

impl Need {
    /// Returns the part of `idle` that streams keep apart: memory that is free on other streams, or freed and still
    /// used by them.
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

impl Choice {
    /// Every allocator, PyTorch's default first.
    pub(super) const ALL: [Self; 3] = [Self::Native, Self::Expandable, Self::Seamalloc];
}

/// The verdict on a job: the first of the five questions of `docs/why.md` whose answer is yes. Sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Question 1 of `docs/why.md`: live memory exceeds the device's memory, or is so close to it that no allocator
    /// runs the job.
    TooMuchLive {
        /// The bytes by which live memory exceeds the device; 0 if it only comes close to the device's memory.
        by: u64,
    },
    /// Question 2 of `docs/why.md`: other processes or libraries hold the missing memory.
    Others {
        /// The bytes that must become free.
        missing: u64,
    },
    /// Question 2 of `docs/why.md`: a limit keeps the missing memory from PyTorch, although the device has it.
    Limit {
        /// The least limit under which the job runs.
        to: u64,
    },
    /// Question 3 of `docs/why.md`: one of PyTorch's allocators serves the job, and leaves room or is beaten by no
    /// other allocator.
    PyTorchIsEnough {
        /// The allocator, which is native or expandable segments.
        allocator: Choice,
        /// Whether the device is known, and `allocator` leaves room on it.
        has_room: bool,
    },
    /// Question 4 of `docs/why.md`: at least half of the memory that PyTorch's allocator holds too much is memory that
    /// streams keep from one another.
    Streams {
        /// The bytes that are kept apart.
        apart: u64,
        /// Whether seamalloc saves this memory. Memory that other streams still use after its free serves no request
        /// under any allocator.
        is_saved: bool,
    },
    /// Question 5 of `docs/why.md`: seamalloc runs the job where PyTorch's allocators do not, holds notably less
    /// memory, or does not wait for memory.
    SeamallocHelps {
        /// The bytes that seamalloc holds less than the better one of PyTorch's allocators; `None` if neither of them
        /// runs the job.
        saves: Option<u64>,
        /// The number of waits of the CPU for memory that the better one of PyTorch's allocators makes and seamalloc
        /// avoids.
        waits: u64,
    },
}

impl Verdict {
    /// Returns the name in lines of JSON.
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

/// A verdict with the figures from which it follows.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// The figures.
    pub figures: Figures,
}

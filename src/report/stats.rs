//! The statistics of an allocator, as users get them.
//!
//! Owns: [`Stats`] and its parts. Names and meanings are those of PyTorch's `torch.cuda.memory_stats`, so that figures
//! can be compared. `heap/counters.rs` counts them.

use super::guard::GuardStats;
pub use super::pending_waits::PendingWaits;
pub use super::stalls::{STALL_BUCKETS, Stalls};
pub use super::waits::Waits;
use crate::config::StrategyKind;

/// One figure over time, as PyTorch reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Stat {
    /// The present value.
    pub current: u64,
    /// The highest value since the last reset of peaks.
    pub peak: u64,
    /// The sum of all increases since the last reset of accumulated figures.
    pub allocated: u64,
    /// The sum of all decreases since the last reset of accumulated figures.
    pub freed: u64,
}

/// One figure for all pools, for requests of up to 1 MiB, and for larger ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct StatByPool {
    /// Both pools together.
    pub all: Stat,
    /// The pool of small requests.
    pub small_pool: Stat,
    /// The pool of large requests.
    pub large_pool: Stat,
}

/// What was done for the headroom ([`Config::headroom`](crate::Config::headroom)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct HeadroomStats {
    /// How often the device was asked how much is free, to give memory back where that is too little.
    pub looks: u64,
    /// How often it was too little.
    pub short: u64,
    /// How often memory went back for it.
    pub yields: u64,
    /// The bytes that went back.
    pub yielded_bytes: u64,
}

/// Chunks of physical memory that were split ([`Config::split`](crate::Config::split)). The time that it took is part of
/// [`Stats::stalls`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SplitStats {
    /// How many were.
    pub chunks: u64,
    /// The chunks that they became.
    pub parts: u64,
    /// Bytes that were copied, because they were in use.
    pub copied_bytes: u64,
}

impl SplitStats {
    /// Returns what was done since `earlier`, which must be an older copy of the same figures.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            chunks: self.chunks.saturating_sub(earlier.chunks),
            parts: self.parts.saturating_sub(earlier.parts),
            copied_bytes: self.copied_bytes.saturating_sub(earlier.copied_bytes),
        }
    }
}

/// Tags that sleep ([`Tags::sleep`](crate::operations::Tags::sleep)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SleepStats {
    /// How often one fell asleep.
    pub sleeps: u64,
    /// How often one woke.
    pub wakes: u64,
    /// Bytes that waking all of them takes from the device. They are not part of `reserved_bytes`.
    pub asleep_bytes: u64,
    /// Page-locked memory of the host for backups, whether it serves one at present or is kept for the next.
    pub page_locked_bytes: u64,
}

/// Live memory that was spilled to the machine's memory ([`Config::spill`](crate::Config::spill)), and came back.
/// [`Stats::spilled_bytes`] has the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SpillStats {
    /// How many times a request was served only because memory was spilled for it.
    pub requests: u64,
    /// Pieces of memory that were spilled.
    pub chunks: u64,
    /// Bytes that were spilled to memory of the machine which was kept of an earlier spill.
    pub reused_bytes: u64,
    /// Pieces that came back to the device.
    pub returned_chunks: u64,
    /// Bytes of them.
    pub returned_bytes: u64,
    /// The time in the driver, in nanoseconds, that spilling and coming back took, with the waits for the device. It is part of
    /// [`Stats::stalls`].
    pub total_ns: u64,
}

impl SpillStats {
    /// Returns what was done since `earlier`, which must be an older copy of the same figures.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(earlier.requests),
            chunks: self.chunks.saturating_sub(earlier.chunks),
            reused_bytes: self.reused_bytes.saturating_sub(earlier.reused_bytes),
            returned_chunks: self.returned_chunks.saturating_sub(earlier.returned_chunks),
            returned_bytes: self.returned_bytes.saturating_sub(earlier.returned_bytes),
            total_ns: self.total_ns.saturating_sub(earlier.total_ns),
        }
    }
}

/// What an allocator has done and holds. Figures in bytes end in `_bytes`; the others are counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// The strategy in force.
    pub strategy: StrategyKind,
    /// The strategy in whose place it is, because the device has no virtual memory, or the driver refused all addresses
    /// ([`Reports::fallback_from`](crate::operations::Reports::fallback_from)).
    pub instead_of: Option<StrategyKind>,
    /// Blocks that were handed out and that the program has not freed.
    pub allocation: StatByPool,
    /// Segments taken with `malloc`. As in PyTorch, expandable segments are not counted.
    pub segment: StatByPool,
    /// Blocks that are handed out, or freed and waiting for other streams.
    pub active: StatByPool,
    /// Free blocks that are part of a segment with other blocks in it. As in PyTorch, without expandable segments.
    pub inactive_split: StatByPool,
    /// Bytes of the blocks in `allocation`.
    pub allocated_bytes: StatByPool,
    /// Bytes held from the driver: segments, and memory mapped into expandable segments.
    pub reserved_bytes: StatByPool,
    /// Bytes of the blocks in `active`.
    pub active_bytes: StatByPool,
    /// Bytes of the blocks in `inactive_split`.
    pub inactive_split_bytes: StatByPool,
    /// Bytes as requested, before rounding, of the blocks in `active`.
    pub requested_bytes: StatByPool,
    /// Blocks of at least `max_split_size`.
    pub oversize_allocations: Stat,
    /// Segments of at least `max_split_size`.
    pub oversize_segments: Stat,
    /// Requests for which all cached memory was given back before they were tried again.
    pub num_alloc_retries: u64,
    /// Requests that were refused.
    pub num_ooms: u64,
    /// How often the CPU waited for all outstanding events.
    pub num_sync_all_streams: u64,
    /// How often memory was taken from the driver (`malloc`, or memory mapped into an expandable segment).
    pub num_device_alloc: u64,
    /// How often memory was given back to the driver.
    pub num_device_free: u64,
    /// The option of that name in bytes; `None` is unlimited.
    pub max_split_size: Option<u64>,
    /// Mappings of physical chunks that exist at present: at their own places, and in views.
    pub mappings: u64,
    /// The part of `mappings` in views.
    pub view_mappings: u64,
    /// Views that exist at present.
    pub views: u64,
    /// Bytes of address space that they take.
    pub view_address_space_bytes: u64,
    /// Views built by stitching; 0 with strategies that do not stitch.
    pub views_built: u64,
    /// Requests served by an existing view.
    pub views_reused: u64,
    /// Views that were unmapped, to make room for others, or because their memory was given back.
    pub views_dropped: u64,
    /// GPU-side waits of a stream for work of another on freed memory: for its epoch, or for a recorded use.
    pub stream_waits: u64,
    /// How much memory those waits passed on, and how old their events were.
    pub waits: Waits,
    /// Waits of the CPU for memory before a request would be refused, with the strategy `stitch`.
    pub pending_waits: PendingWaits,
    /// Chunks that were split.
    pub splits: SplitStats,
    /// Tags that sleep.
    pub sleep: SleepStats,
    /// Bytes of the machine's memory that were taken to spill live memory to it. They are no part of `reserved_bytes`; the blocks
    /// in them are part of `allocated_bytes`.
    pub spilled_bytes: Stat,
    /// Bytes of the machine's memory that are kept for the next spill, beside `spilled_bytes`. Both together are no more than
    /// lay spilled at most; [`Allocator::empty_cache`](crate::Allocator::empty_cache) gives them back.
    pub spill_kept_bytes: u64,
    /// How memory was spilled.
    pub spills: SpillStats,
    /// What went back for the sake of others, with a headroom.
    pub headroom: HeadroomStats,
    /// About how many bytes of host memory the allocator's own tables take, including untouched parts, which take no
    /// memory yet.
    pub host_bytes: u64,
    /// Guard mode; all 0 where it is off.
    pub guard: GuardStats,
    /// Operations that made a driver call, and the time in the driver. Not part of PyTorch's statistics.
    pub stalls: Stalls,
}

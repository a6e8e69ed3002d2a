//! The statistics of an allocator, as users get them.
//!
//! Owns: [`Stats`] and its parts. Names and meanings are those of PyTorch's `torch.cuda.memory_stats`, so that figures
//! can be compared. `heap/journal/counters.rs` counts the figures.

use super::guard::GuardStats;
pub use super::pending_waits::PendingWaits;
pub use super::stalls::{STALL_BUCKETS, Stalls};
pub use super::waits::Waits;
use seamalloc_config::StrategyKind;

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

/// The looks at the device's free memory, and the releases of memory, for the headroom that stays free for others
/// ([`Config::headroom`](seamalloc_config::Config::headroom)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct HeadroomStats {
    /// The number of looks at the device's free memory.
    pub looks: u64,
    /// The number of looks at the device that found less free memory than the headroom.
    pub short: u64,
    /// The number of times that memory went back to the driver to keep the headroom free.
    pub yields: u64,
    /// The bytes that went back to the driver to keep the headroom free.
    pub yielded_bytes: u64,
}

/// Chunks of physical memory that were split ([`Config::split`](seamalloc_config::Config::split)). The time of the
/// splits is part of [`Stats::stalls`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SplitStats {
    /// The number of chunks that were split.
    pub chunks: u64,
    /// The number of chunks that the splits made.
    pub parts: u64,
    /// Bytes that the splits copied, because they were in use.
    pub copied_bytes: u64,
}

impl SplitStats {
    /// Returns the figures since `earlier`, which must be an older copy of the same figures.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            chunks: self.chunks.saturating_sub(earlier.chunks),
            parts: self.parts.saturating_sub(earlier.parts),
            copied_bytes: self.copied_bytes.saturating_sub(earlier.copied_bytes),
        }
    }
}

/// Tags that sleep (`Tags::sleep`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SleepStats {
    /// The number of times that a tag fell asleep.
    pub sleeps: u64,
    /// The number of times that a tag woke.
    pub wakes: u64,
    /// Bytes that waking all sleeping tags takes from the device. These bytes are not part of `reserved_bytes`.
    pub asleep_bytes: u64,
    /// Bytes of page-locked host memory for backups, in use by a backup or kept for the next backup.
    pub page_locked_bytes: u64,
}

/// Live memory that was spilled to host memory ([`Config::spill`](seamalloc_config::Config::spill)), and came back.
/// [`Stats::spilled_bytes`] has the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SpillStats {
    /// The number of requests that were served only because memory was spilled.
    pub requests: u64,
    /// Pieces of memory that were spilled.
    pub chunks: u64,
    /// Bytes that were spilled to host memory which was kept from an earlier spill.
    pub reused_bytes: u64,
    /// Spilled pieces of memory that came back to the device.
    pub returned_chunks: u64,
    /// Bytes of the pieces that came back.
    pub returned_bytes: u64,
    /// The time in the driver, in nanoseconds, that spilling and coming back took, including the waits for the device.
    /// This time is part of [`Stats::stalls`].
    pub total_ns: u64,
}

impl SpillStats {
    /// Returns the figures since `earlier`, which must be an older copy of the same figures.
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

/// The table of the statistics, passed to a macro that makes code of it: the struct in this file, and the counters in
/// `heap/journal/counters.rs`.
///
/// To add a statistic, add a row to this table, and count the statistic in a function of `heap/journal/`. The JSON of
/// the C library then has the statistic, and a row in `ffi/src/figures.rs` adds it to the struct for C.
#[doc(hidden)]
#[macro_export]
macro_rules! statistics {
    ($then:ident) => {
        $then! {
            by_pool {
                /// Blocks that were handed out and that the program has not freed.
                allocation,
                /// Segments taken with `malloc`. As in PyTorch, expandable segments are not counted.
                segment,
                /// Blocks that are handed out, or freed and waiting for other streams.
                active,
                /// Free blocks that are part of a segment with other blocks in it. As in PyTorch, expandable segments
                /// are not counted.
                inactive_split,
                /// Bytes of the blocks in `allocation`.
                allocated_bytes,
                /// Bytes held from the driver: segments, and memory mapped into expandable segments.
                reserved_bytes,
                /// Bytes of the blocks in `active`.
                active_bytes,
                /// Bytes of the blocks in `inactive_split`.
                inactive_split_bytes,
                /// Bytes as requested, before rounding, of the blocks in `active`.
                requested_bytes,
            }
            over_time {
                /// Blocks of at least `max_split_size`.
                oversize_allocations,
                /// Segments of at least `max_split_size`.
                oversize_segments,
                /// Bytes of host memory that were taken for spilled live memory. These bytes are no part of
                /// `reserved_bytes`; the blocks in them are part of `allocated_bytes`. Without the option `spill`, a
                /// split on a full device takes host memory for a moment.
                spilled_bytes,
            }
            since_reset {
                /// Requests for which all cached memory was given back before they were tried again.
                num_alloc_retries: u64,
                /// Requests that were refused.
                num_ooms: u64,
                /// The number of times that the CPU waited for all outstanding events.
                num_sync_all_streams: u64,
                /// The number of times that memory was taken from the driver (`malloc`, or memory mapped into an
                /// expandable segment).
                num_device_alloc: u64,
                /// The number of times that memory was given back to the driver.
                num_device_free: u64,
                /// Operations that made a driver call, and the time in the driver. PyTorch's statistics do not have
                /// this figure.
                stalls: Stalls,
            }
            since_the_beginning {
                /// Mappings of physical chunks that exist at present: at their permanent addresses (home), and in
                /// views.
                mappings: u64,
                /// Views built by stitching; 0 with strategies that do not stitch.
                views_built: u64,
                /// Requests served by an existing view.
                views_reused: u64,
                /// Views that were unmapped, to make room for other views, or because their memory was given back.
                views_dropped: u64,
                /// GPU-side waits of a stream for another stream's work on freed memory: for that stream's epoch, or
                /// for a recorded use.
                stream_waits: u64,
                /// The memory that streams took from others with the `stream_waits`, and the ages of the awaited
                /// events.
                waits: Waits,
                /// Waits of the CPU for memory before a request would be refused, with the strategy `stitch`.
                pending_waits: PendingWaits,
                /// Chunks that were split.
                splits: SplitStats,
                /// The figures of spilled memory.
                spills: SpillStats,
                /// Memory that went back for other processes, with the option `headroom`.
                headroom: HeadroomStats,
            }
            looked_up {
                /// The strategy in force.
                strategy: StrategyKind,
                /// The strategy that `strategy` replaces, because the device has no virtual memory, or the driver
                /// refused all addresses (`Reports::fallback_from`).
                instead_of: Option<StrategyKind>,
                /// The option of that name in bytes; `None` is unlimited.
                max_split_size: Option<u64>,
                /// The part of `mappings` in views.
                view_mappings: u64,
                /// Views that exist at present.
                views: u64,
                /// Bytes of address space that the views take.
                view_address_space_bytes: u64,
                /// The figures of tags that sleep.
                sleep: SleepStats,
                /// Bytes of host memory that are kept for the next spill, beside `spilled_bytes`. The sum of both never
                /// exceeds the peak of spilled bytes; `Allocator::empty_cache` gives the kept bytes back.
                spill_kept_bytes: u64,
                /// About how many bytes of host memory the allocator's own tables take, including untouched parts,
                /// which take no memory yet.
                host_bytes: u64,
                /// The figures of guard mode; all are 0 if guard mode is off.
                guard: GuardStats,
            }
        }
    };
}

macro_rules! struct_of {
    (
        by_pool { $( $(#[$by_pool_doc:meta])* $by_pool:ident, )* }
        over_time { $( $(#[$over_time_doc:meta])* $over_time:ident, )* }
        $( $since:ident { $( $(#[$doc:meta])* $field:ident: $type:ty, )* } )*
    ) => {
        /// The statistics of an allocator. Figures in bytes end in `_bytes`; the others are counts.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        #[non_exhaustive]
        pub struct Stats {
            $( $(#[$by_pool_doc])* pub $by_pool: StatByPool, )*
            $( $(#[$over_time_doc])* pub $over_time: Stat, )*
            $( $( $(#[$doc])* pub $field: $type, )* )*
        }
    };
}
statistics!(struct_of);

//! What an allocator has done so far, as users get it.
//!
//! Owns: [`Stats`] and its parts. Names and meanings are those of PyTorch's `torch.cuda.memory_stats`, so that figures can
//! be laid side by side. The counting is the heap's (`heap/counters.rs`).

pub use super::stalls::{STALL_BUCKETS, Stalls};
pub use super::waits::Waits;

/// One figure over time, as PyTorch reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Now.
    pub current: u64,
    /// The most at any time since the last reset of peaks.
    pub peak: u64,
    /// All that was ever added, since the last reset of accumulated figures.
    pub allocated: u64,
    /// All that was ever taken away, since the last reset of accumulated figures.
    pub freed: u64,
}

/// One figure for all pools, for requests of up to 1 MiB, and for larger ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatByPool {
    /// Both pools together.
    pub all: Stat,
    /// The pool of small requests.
    pub small_pool: Stat,
    /// The pool of large requests.
    pub large_pool: Stat,
}

/// What an allocator has done and holds. Byte figures end in `_bytes`, the others count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks handed out and not freed by the program.
    pub allocation: StatByPool,
    /// Segments taken with `malloc`. As in PyTorch, expandable segments are not counted.
    pub segment: StatByPool,
    /// Blocks handed out, or freed and waiting for other streams.
    pub active: StatByPool,
    /// Free blocks that are part of a segment with other blocks in it. As in PyTorch, without expandable segments.
    pub inactive_split: StatByPool,
    /// Bytes of the blocks in `allocation`.
    pub allocated_bytes: StatByPool,
    /// Bytes held of the driver: segments, and memory mapped into expandable segments.
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
    /// Requests for which all cached memory was given back before they were tried once more.
    pub num_alloc_retries: u64,
    /// Requests that could not be met.
    pub num_ooms: u64,
    /// How often the CPU waited for all outstanding events.
    pub num_sync_all_streams: u64,
    /// How often memory was taken from the driver (`malloc`, or memory mapped into an expandable segment).
    pub num_device_alloc: u64,
    /// How often memory was given back to the driver.
    pub num_device_free: u64,
    /// The option of that name in bytes; `None` is unlimited.
    pub max_split_size: Option<u64>,
    /// Mappings of physical chunks that exist now: at their own places, and in views.
    pub mappings: u64,
    /// Of `mappings`, those in views.
    pub view_mappings: u64,
    /// Views that exist now.
    pub views: u64,
    /// Bytes of address space that they take.
    pub view_address_space_bytes: u64,
    /// Views built by stitching; 0 with strategies that do not stitch.
    pub views_built: u64,
    /// Requests served by a view that was there already.
    pub views_reused: u64,
    /// Views unmapped again: to make room for others, or because their memory was given back.
    pub views_dropped: u64,
    /// GPU-side waits of a stream for another's epoch.
    pub stream_waits: u64,
    /// What those waits passed on, and how old their events were.
    pub waits: Waits,
    /// Bytes of host memory that the allocator's own tables take, about; parts of tables that were never touched, and so
    /// take no memory yet, included.
    pub host_bytes: u64,
    /// Operations that made a driver call, and the time in the driver. Not part of PyTorch's statistics.
    pub stalls: Stalls,
}

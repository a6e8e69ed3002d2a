//! What an allocator tells whoever watches it: one event for each thing that changes.
//!
//! Owns: the [`Event`] and the [`Observer`] trait. The events and their sizes are PyTorch's (`device_traces` of a
//! memory snapshot), so that its tools read what is recorded here.

use crate::ids::PoolId;
use crate::ids::StreamId;

/// What happened. The names in a snapshot are PyTorch's `TraceEntry` actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A block was handed out; size as requested.
    Alloc,
    /// The program freed a block; size as requested.
    FreeRequested,
    /// Every stream has finished with a freed block; size as requested.
    FreeCompleted,
    /// A segment was taken from the driver by `malloc`.
    SegmentAlloc,
    /// A segment was given back to the driver.
    SegmentFree,
    /// Physical memory was mapped into a segment.
    SegmentMap,
    /// Physical memory was unmapped from a segment and given back.
    SegmentUnmap,
    /// Memory left a segment for another, of which the next [`Action::SegmentJoined`] tell: a stitched block, which is a
    /// segment of its own as long as it is live, took it or gave it back, or it serves other requests. To the driver
    /// nothing changed.
    SegmentLeft,
    /// Memory that had left other segments is part of this one.
    SegmentJoined,
    /// A request could not be met. The address holds the device's free bytes, as in PyTorch.
    Oom,
}

impl Action {
    /// The name in PyTorch's snapshots, which know mapping alone.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap | Self::SegmentJoined => "segment_map",
            Self::SegmentUnmap | Self::SegmentLeft => "segment_unmap",
            Self::Oom => "oom",
        }
    }
}

/// One thing that happened in an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub action: Action,
    /// Where; for [`Action::Oom`] the bytes that the device had free.
    pub address: u64,
    /// How many bytes.
    pub size: u64,
    /// On which stream.
    pub stream: StreamId,
    /// Of which private pool; [`PoolId::NONE`] of none.
    pub pool: PoolId,
}

/// Watches an allocator. Called under the allocator's lock: be quick, and do not call the allocator.
pub trait Observer: Send {
    /// Something happened.
    fn event(&mut self, event: &Event);
}

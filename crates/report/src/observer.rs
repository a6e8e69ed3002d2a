//! The events that an observer of an allocator gets, one for each change.
//!
//! Owns: the [`Event`] and the [`Observer`] trait. The events and their sizes are PyTorch's (`device_traces` of a
//! memory snapshot), so that PyTorch's tools can read them.

use crate::pool::PoolId;
use seamalloc_driver::StreamId;

/// The kind of an event. The names in a snapshot are PyTorch's `TraceEntry` actions; PyTorch lacks some of the events
/// ([`Action::is_of_pytorch`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Action {
    /// A block was handed out. The size is the requested size.
    Alloc,
    /// The program freed a block. The size is the requested size.
    FreeRequested,
    /// Every stream has finished with a freed block. The size is the requested size.
    FreeCompleted,
    /// A segment was taken from the driver by `malloc`.
    SegmentAlloc,
    /// A segment was given back to the driver.
    SegmentFree,
    /// Physical memory was mapped into a segment.
    SegmentMap,
    /// Physical memory was unmapped from a segment and given back.
    SegmentUnmap,
    /// Memory left a segment for another segment, which the following [`Action::SegmentJoined`] events name. A stitched
    /// block, which is a segment of its own while it is live, took or returned the memory, or the memory serves other
    /// requests. No driver call is made.
    SegmentLeft,
    /// Memory that left other segments joined this segment.
    SegmentJoined,
    /// A request was refused. The address holds the device's free bytes, as in PyTorch.
    Oom,
    /// Memory of live blocks was spilled: a range at home lies in host memory from now on
    /// ([`Config::spill`](seamalloc_config::Config::spill)). The range stays in its segment, and its live blocks stay
    /// live. [`Action::SegmentUnmap`] follows once the range is freed.
    Spilled,
    /// A range that was spilled has memory of the device again.
    Returned,
    /// A private pool fell asleep, and this range at home of the pool has no memory from now on
    /// (`Tags::sleep`). The range stays in its segment, and its live blocks stay
    /// live.
    Asleep,
    /// A range that slept has memory again.
    Awake,
}

impl Action {
    /// Returns whether PyTorch's snapshots know such an event. The snapshots have no events for memory that is spilled,
    /// sleeps or comes back, and PyTorch's viewer fails on unknown events.
    #[must_use]
    pub const fn is_of_pytorch(self) -> bool {
        !matches!(self, Self::Spilled | Self::Returned | Self::Asleep | Self::Awake)
    }

    /// Returns the name in PyTorch's snapshots, where joining counts as mapping. Events that PyTorch lacks have a name
    /// of seamalloc's own.
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
            Self::Spilled => "spilled",
            Self::Returned => "returned",
            Self::Asleep => "asleep",
            Self::Awake => "awake",
        }
    }
}

/// One change in an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Event {
    /// The kind of the event.
    pub action: Action,
    /// The address; for [`Action::Oom`] the bytes that the device had free.
    pub address: u64,
    /// The size in bytes.
    pub size: u64,
    /// The stream.
    pub stream: StreamId,
    /// The private pool, or [`PoolId::NONE`].
    pub pool: PoolId,
}

/// The id of an observer that was added (`Reports::add_observer`), for its
/// removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObserverId(u64);

impl ObserverId {
    /// Returns the id with this number.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// An observer of an allocator. [`Self::event`] is called under the allocator's lock: it must be quick, and must not
/// call the allocator.
pub trait Observer: Send {
    /// Receives each event.
    fn event(&mut self, event: &Event);
}

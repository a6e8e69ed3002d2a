//! A callback of C's as an observer of an allocator.
//!
//! Owns: the conversion of an event for the callback.

use crate::boundary::{User, handle};
use crate::fork::in_callback;
use crate::ids::{Pool, Stream};
use seamalloc::observer::{Action as What, Event as Happened, Observer};
use std::ffi::c_void;

/// The kind of an event. Names and meanings are those of PyTorch's memory snapshots.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// A block was handed out; bytes as requested.
    Alloc = 0,
    /// The program freed a block; bytes as requested.
    FreeRequested = 1,
    /// Every stream has finished with a freed block; bytes as requested.
    FreeCompleted = 2,
    /// A segment was taken from the driver.
    SegmentAlloc = 3,
    /// A segment was given back to the driver.
    SegmentFree = 4,
    /// Physical memory was mapped into a segment.
    SegmentMap = 5,
    /// Physical memory was unmapped from a segment and given back.
    SegmentUnmap = 6,
    /// A request could not be met. The address holds the device's free bytes.
    Oom = 7,
    /// Memory left a segment for another one; the next events `SEAM_ACTION_SEGMENT_JOINED` say for which. A stitched
    /// block, which is a segment of its own as long as it is live, took the memory or gave it back, or free memory
    /// passed to a pool that is shown as another segment. For the driver nothing changed. PyTorch's snapshots call this
    /// event `segment_unmap`.
    SegmentLeft = 8,
    /// Memory that had left other segments is part of this segment; PyTorch's snapshots call this event `segment_map`.
    SegmentJoined = 9,
    /// Memory of live blocks was spilled: a range at home has host memory from now on. PyTorch's snapshots have no such
    /// event, and none for the next three kinds.
    Spilled = 10,
    /// A range that was spilled has memory of the device again.
    Returned = 11,
    /// A private pool fell asleep, and this range of the pool has no memory from now on.
    Asleep = 12,
    /// A range that slept has memory again.
    Awake = 13,
}

impl Action {
    /// Returns the number of an action; `None` if the C header has no number for it.
    fn of(action: What) -> Option<Self> {
        Some(match action {
            What::Alloc => Self::Alloc,
            What::FreeRequested => Self::FreeRequested,
            What::FreeCompleted => Self::FreeCompleted,
            What::SegmentAlloc => Self::SegmentAlloc,
            What::SegmentFree => Self::SegmentFree,
            What::SegmentMap => Self::SegmentMap,
            What::SegmentUnmap => Self::SegmentUnmap,
            What::SegmentLeft => Self::SegmentLeft,
            What::SegmentJoined => Self::SegmentJoined,
            What::Oom => Self::Oom,
            What::Spilled => Self::Spilled,
            What::Returned => Self::Returned,
            What::Asleep => Self::Asleep,
            What::Awake => Self::Awake,
            _ => return None,
        })
    }
}

/// One thing that happened in an allocator.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The size of this struct in the library: fields beyond this size do not exist.
    pub size: usize,
    /// The kind of the event.
    pub action: Action,
    /// The address of the event.
    pub address: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The stream of the event.
    pub stream: Stream,
    /// The private pool of the event; both numbers are 0 for no pool.
    pub pool: Pool,
}

/// Receives each event. The function is called under the allocator's lock, by the thread whose call causes the event:
/// it must be quick, call nothing of this library (`SEAM_STATUS_REENTRANT`), and return (no exception, no longjmp).
pub type ObserverCallback = Option<unsafe extern "C" fn(event: *const Event, user: *mut c_void)>;

/// A callback of C's and its user pointer.
pub(crate) struct Callback {
    pub(crate) function: unsafe extern "C" fn(event: *const Event, user: *mut c_void),
    pub(crate) user: User,
}

impl Observer for Callback {
    fn event(&mut self, event: &Happened) {
        let Some(action) = Action::of(event.action) else { return };
        let event = Event {
            size: size_of::<Event>(),
            action,
            address: event.address,
            bytes: event.size,
            stream: handle(event.stream),
            pool: event.pool.into(),
        };
        // SAFETY: the caller of `seam_observe` promised that this call is allowed until the callback is replaced.
        in_callback(|| unsafe { (self.function)(&raw const event, self.user.get()) });
    }
}

//! The checked contents of a snapshot file.

use crate::memory::list_bytes;
use crate::trace::Trace;
use seamalloc::snapshot::{BlockInfo, SegmentInfo, Snapshot};

/// The contents of a snapshot file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PyTorchSnapshot {
    /// The memory that the allocator held at the end: one snapshot for each device with segments or a history, by
    /// ordinal.
    pub snapshots: Vec<Snapshot>,
    /// The history of each device that has one, by ordinal. Blocks from before the history are allocated at its start.
    pub traces: Vec<Trace>,
}

impl PyTorchSnapshot {
    /// Returns the heap bytes that the snapshots take.
    pub(crate) fn heap_bytes(&self) -> u64 {
        let segments = self.snapshots.iter().map(|snapshot| list_bytes::<SegmentInfo>(snapshot.segments.capacity()));
        let each = self.snapshots.iter().flat_map(|snapshot| &snapshot.segments);
        let blocks = each.map(|segment| list_bytes::<BlockInfo>(segment.blocks.capacity()));
        segments.chain(blocks).fold(0, u64::saturating_add)
    }

    /// Returns the bytes that the allocator held, of all devices together.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.snapshots.iter().map(reserved).fold(0, u64::saturating_add)
    }
}

/// Returns the bytes that the allocator held on one device.
pub(super) fn reserved(snapshot: &Snapshot) -> u64 {
    snapshot.segments.iter().map(|segment| segment.total_size).fold(0, u64::saturating_add)
}

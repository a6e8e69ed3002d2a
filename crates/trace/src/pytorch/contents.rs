//! What a snapshot file holds, once it is read and checked.

use crate::memory::list_bytes;
use crate::trace::Trace;
use seamalloc::snapshot::{BlockInfo, SegmentInfo, Snapshot};

/// What a snapshot file holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PyTorchSnapshot {
    /// What the allocator held at the end: one for each device that has segments or a history, by ordinal.
    pub snapshots: Vec<Snapshot>,
    /// The history of each device that has one, by ordinal; what was allocated before it is allocated at its start.
    pub traces: Vec<Trace>,
}

impl PyTorchSnapshot {
    /// Bytes of the heap that its snapshots take.
    pub(crate) fn heap_bytes(&self) -> u64 {
        let segments = self.snapshots.iter().map(|snapshot| list_bytes::<SegmentInfo>(snapshot.segments.capacity()));
        let each = self.snapshots.iter().flat_map(|snapshot| &snapshot.segments);
        let blocks = each.map(|segment| list_bytes::<BlockInfo>(segment.blocks.capacity()));
        segments.chain(blocks).fold(0, u64::saturating_add)
    }

    /// Bytes that the allocator held, of all devices together.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.snapshots.iter().map(reserved).fold(0, u64::saturating_add)
    }
}

/// Bytes that the allocator held on one device.
pub(super) fn reserved(snapshot: &Snapshot) -> u64 {
    snapshot.segments.iter().map(|segment| segment.total_size).fold(0, u64::saturating_add)
}

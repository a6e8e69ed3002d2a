//! What a snapshot file holds, once it is read and checked.

use crate::trace::Trace;
use seamalloc::snapshot::Snapshot;

/// What a snapshot file holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PyTorchSnapshot {
    /// What the allocator held at the end: one for each device that has segments or a history, by ordinal.
    pub snapshots: Vec<Snapshot>,
    /// The history of each device that has one, by ordinal; what was allocated before it is allocated at its start.
    pub traces: Vec<Trace>,
}

impl PyTorchSnapshot {
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

//! Pools as snapshots and events show them.

use super::table::Pools;
use crate::heap::journal::PoolNames;
use crate::ids::{Class, PoolId, PoolIndex, StreamId};

/// The properties by which a snapshot distinguishes segments.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::heap) struct Shown {
    pub(in crate::heap) class: Class,
    pub(in crate::heap) stream: StreamId,
    pub(in crate::heap) pool: PoolId,
    /// For a private pool, the stream that the memory serves. As in PyTorch, each stream of a private pool has segments
    /// of its own.
    pub(in crate::heap) serves: StreamId,
}

impl Pools {
    /// Returns the properties of the segment that shows a pool's memory. `shared` memory belongs to no single stream.
    pub(in crate::heap) fn shown(&self, pool: PoolIndex, shared: bool) -> Shown {
        let of = &self[pool];
        let stream = if shared || pool.large() == self.idle { StreamId::DEFAULT } else { of.stream };
        let owner = self.owner_of(pool);
        let serves = if owner == PoolId::NONE { StreamId::DEFAULT } else { of.stream };
        Shown { class: of.class, stream, pool: owner, serves }
    }
}

impl PoolNames for Pools {
    fn exists(&self, pool: PoolIndex) -> bool {
        pool.slot() < self.len()
    }

    fn name(&self, pool: PoolIndex) -> (StreamId, PoolId) {
        (self[pool].stream, self.owner_of(pool))
    }

    fn segment_name(&self, pool: PoolIndex, shared: bool) -> (StreamId, PoolId) {
        let Shown { stream, pool, .. } = self.shown(pool, shared);
        (stream, pool)
    }
}

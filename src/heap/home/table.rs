//! The tables of home: segments, chunks, views, and which of their bytes are not held at present.
//!
//! Owns: [`Home`]. The other files of this folder change its fields.

use super::chunk_map::ChunkMap;
use super::pool_bytes::DriverPoolBytes;
use super::segment::Segment;
use super::spilling::Spilling;
use super::views::Views;
use crate::ids::{BlockId, PoolIndex, SegmentId};

/// The memory that a heap has, and its addresses.
#[derive(Default)]
pub(in crate::heap) struct Home {
    pub(super) segments: Vec<Option<Segment>>,
    /// No slot of `segments` before this slot is vacant.
    pub(super) vacant_from: usize,
    /// The chunks at home; `None` before home exists.
    pub(super) map: Option<ChunkMap>,
    /// The views over chunks at home.
    pub(super) views: Views,
    /// Freed guarded blocks whose memory is to be unmapped.
    pub(super) retired: Vec<BlockId>,
    /// The bytes held that are part of no block, because a failed growth could not be undone yet: one sum for each
    /// [`Class`].
    ///
    /// [`Class`]: crate::ids::Class
    pub(super) pending_rollback: [u64; 2],
    /// The bytes of blocks in sleeping chunks: one sum for each [`Class`]. The device does not hold these bytes.
    ///
    /// [`Class`]: crate::ids::Class
    pub(super) asleep: [u64; 2],
    /// The state of spilled chunks. The device does not hold their bytes.
    pub(super) spilling: Spilling,
    /// Whether a segment has become free that is large enough to be given back to the driver
    /// ([`Layout::release_from`]).
    ///
    /// [`Layout::release_from`]: crate::heap::Layout::release_from
    pub(super) release_due: bool,
    /// The bytes of the driver's pool; 0 for a strategy without such a pool.
    pub(super) driver_pool: DriverPoolBytes,
}

impl Home {
    /// Returns the bytes of host memory in the tables.
    pub(in crate::heap) fn host_bytes(&self) -> usize {
        self.segments.capacity() * size_of::<Option<Segment>>()
            + self.map.as_ref().map_or(0, ChunkMap::host_bytes)
            + self.views.host_bytes()
    }

    /// Returns the chunks at home, or `None` before home exists.
    pub(in crate::heap) fn map(&self) -> Option<&ChunkMap> {
        self.map.as_ref()
    }

    pub(in crate::heap) fn views(&self) -> &Views {
        &self.views
    }

    pub(in crate::heap) fn views_mut(&mut self) -> &mut Views {
        &mut self.views
    }

    /// Returns every segment with its number.
    pub(in crate::heap) fn segments(&self) -> impl Iterator<Item = (SegmentId, &Segment)> {
        let numbered = (0..).map(SegmentId).zip(&self.segments);
        numbered.filter_map(|(id, segment)| segment.as_ref().map(|segment| (id, segment)))
    }

    pub(in crate::heap) fn segment(&self, id: SegmentId) -> Option<&Segment> {
        self.segments.get(id.0 as usize).and_then(Option::as_ref)
    }

    pub(super) fn segment_mut(&mut self, id: SegmentId) -> Option<&mut Segment> {
        self.segments.get_mut(id.0 as usize).and_then(Option::as_mut)
    }

    /// Assigns the segments of a pair of pools to another pair of pools.
    pub(in crate::heap) fn move_segments(&mut self, from: PoolIndex, to: PoolIndex) {
        for segment in self.segments.iter_mut().flatten().filter(|segment| segment.pool.large() == from) {
            segment.pool = to.of(segment.pool.class());
        }
    }

    /// Notes whether a free segment is due to be released.
    #[inline]
    pub(in crate::heap) fn set_release_due(&mut self, due: bool) {
        self.release_due |= due;
    }

    /// Returns, by class, the bytes held that are part of no block, because a failed growth could not be undone yet.
    pub(in crate::heap) fn pending_rollback(&self) -> [u64; 2] {
        self.pending_rollback
    }

    /// Returns, by class, the bytes of blocks in sleeping chunks.
    pub(in crate::heap) fn asleep(&self) -> [u64; 2] {
        self.asleep
    }

    pub(in crate::heap) fn spilling(&self) -> &Spilling {
        &self.spilling
    }

    /// Returns the bytes that the driver's pool holds outside of blocks.
    pub(in crate::heap) fn idle_in_driver_pool(&self) -> u64 {
        self.driver_pool.idle
    }
}

#[cfg(test)]
impl Home {
    /// Returns the chunks, for tests that break the table.
    pub(in crate::heap) fn map_mut(&mut self) -> &mut ChunkMap {
        self.map.as_mut().expect("a home")
    }

    /// Counts bytes as asleep, for tests that break the count.
    pub(in crate::heap) fn count_asleep(&mut self, bytes: u64) {
        self.asleep[0] += bytes;
    }
}

//! The division of an allocator's memory at one moment: how much is in use, how much is free for which streams, and the
//! largest request that could be served.
//!
//! Owns: the plain values of [`Fragmentation`] and the figures derived from them. `heap/measure.rs` measures the
//! values, in one walk over the free ranges.

use crate::pool::PoolId;
use seamalloc_driver::StreamId;
use std::fmt;

/// The owner of free memory, which may take this memory first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Owner {
    /// One stream, whose work used the memory last.
    Stream(StreamId),
    /// Every stream, since the GPU has passed all uses of the memory.
    Everyone,
    /// A private pool, until it is released.
    Pool(PoolId),
}

impl fmt::Display for Owner {
    /// Prints `everyone`, `pool (n, m)`, or the stream.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream(stream) => stream.fmt(f),
            Self::Everyone => f.write_str("everyone"),
            Self::Pool(pool) => write!(f, "pool {pool}"),
        }
    }
}

/// The free memory of one pool. Sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PoolMemory {
    /// The owner that may take the memory first.
    pub owner: Owner,
    /// Whether the pool serves requests of up to 1 MiB, which have segments or slabs of their own. Other pools serve
    /// larger requests.
    pub small: bool,
    /// Free bytes.
    pub free: u64,
    /// The number of ranges that the free bytes lie in.
    pub ranges: u64,
    /// Bytes of the longest of these ranges.
    pub largest: u64,
    /// The part of `free` that other streams, if any make requests, cannot take at present. Memory of the only stream
    /// is not stranded. Where streams share no memory, all memory of a stream is stranded, if there is another stream.
    /// With `sharing:completed`, memory that other streams may not take yet is stranded, and the free parts of slabs in
    /// use are always stranded. A private pool's memory is stranded as a whole.
    pub stranded: u64,
}

impl PoolMemory {
    /// Returns a pool without free memory.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(owner: Owner, small: bool) -> Self {
        Self { owner, small, free: 0, ranges: 0, largest: 0, stranded: 0 }
    }
}

/// The largest request of more than 1 MiB that a stream could be given without new memory from the driver. Sizes are
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct StreamMemory {
    /// The stream.
    pub stream: StreamId,
    /// Bytes of the longest free range that the stream may take.
    pub largest: u64,
    /// The largest request that the stream could be given: by stitching if the strategy stitches and the bounds on
    /// views (`max_views` and others) allow it, otherwise `largest`. Memory of other streams is included if this stream
    /// could take it after a GPU-side wait (`sharing:wait`). If views are near their bounds, the figure may be too low:
    /// a larger request may succeed once the GPU has passed the uses of existing views.
    pub reachable: u64,
}

impl StreamMemory {
    /// Returns the figures of a stream.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(stream: StreamId, largest: u64, reachable: u64) -> Self {
        Self { stream, largest, reachable }
    }
}

/// The division of an allocator's memory, from `Reports::fragmentation`.
/// Sizes are bytes.
///
/// Every byte held is counted once: `reserved` is `allocated + pending + free + unsettled - asleep - spilled`, and
/// `free` is the sum over `pools`. Memory that sleeps or is spilled is subtracted because it is part of blocks but not
/// of the device's memory. In guard mode `reserved` also includes two kinds of memory that are in no other figure,
/// since they serve no requests: the memory before guarded allocations, and the memory of freed guarded allocations
/// until it is unmapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Fragmentation {
    /// Bytes held from the driver.
    pub reserved: u64,
    /// The part of `reserved` in blocks that the program has not freed, rounding included.
    pub allocated: u64,
    /// The part of `reserved` in blocks that the program has freed and other streams still use.
    pub pending: u64,
    /// The bytes that the program asked for in the blocks of `allocated` and `pending`.
    pub requested: u64,
    /// Free bytes of all owners together.
    pub free: u64,
    /// Bytes of a growth that failed halfway and could not be undone yet; part of no block.
    pub unsettled: u64,
    /// The part of `allocated` and `pending` in private pools that sleep, for which no memory is held. No figure counts
    /// free ranges in such pools.
    pub asleep: u64,
    /// The part of `allocated` and `free` that is spilled: it lies in host memory, and holds no device memory.
    pub spilled: u64,
    /// The pools that have free memory.
    pub pools: Vec<PoolMemory>,
    /// The default stream, and every other stream that made a request.
    pub streams: Vec<StreamMemory>,
    /// Chunks of physical memory; 0 with strategies that do not stitch.
    pub chunks: u64,
    /// Chunks that are partly free and partly in use. A view maps whole chunks, so a block can use the free parts of at
    /// most two chunks, one at each end of its view.
    pub partly_free_chunks: u64,
    /// The free bytes in partly free chunks.
    pub partly_free_bytes: u64,
    /// The part of `partly_free_bytes` in ranges that touch neither end of their chunk, so that no view can use them.
    pub landlocked_bytes: u64,
    /// Views that exist.
    pub views: u64,
    /// Mappings of chunks in views.
    pub view_mappings: u64,
    /// Mappings of memory at its permanent address (home).
    pub home_mappings: u64,
}

impl Fragmentation {
    /// Returns the part (0 to 1) of the reserved bytes that the program asked for and that is still in use, by the
    /// program or by other streams. Returns 1 if no memory is held. Sleeping and spilled memory counts as held.
    #[must_use]
    pub fn utilization(&self) -> f64 {
        let held = self.reserved.saturating_add(self.asleep).saturating_add(self.spilled);
        if held == 0 { 1.0 } else { self.requested as f64 / held as f64 }
    }

    /// Returns the bytes lost to rounding, because blocks are larger than the requests.
    #[must_use]
    pub fn rounding_loss(&self) -> u64 {
        (self.allocated + self.pending).saturating_sub(self.requested)
    }

    /// Returns the longest free range that any stream may take.
    #[must_use]
    pub fn largest_free(&self) -> u64 {
        self.streams.iter().map(|stream| stream.largest).max().unwrap_or(0)
    }

    /// Returns the largest request that any stream could be given without new memory.
    #[must_use]
    pub fn largest_reachable(&self) -> u64 {
        self.streams.iter().map(|stream| stream.reachable).max().unwrap_or(0)
    }

    /// Returns the external fragmentation without stitching: 1 - longest free range / all free bytes. Returns 0 if no
    /// memory is free.
    #[must_use]
    pub fn external(&self) -> f64 {
        self.unreached(self.largest_free())
    }

    /// Returns the external fragmentation with stitching: 1 - largest request that could be served / all free bytes.
    #[must_use]
    pub fn external_after_stitching(&self) -> f64 {
        self.unreached(self.largest_reachable())
    }

    /// Returns the free bytes of a stream that the other streams cannot take at present; see [`PoolMemory::stranded`].
    #[must_use]
    pub fn stranded_on(&self, stream: StreamId) -> u64 {
        let own = self.pools.iter().filter(|pool| pool.owner == Owner::Stream(stream));
        own.map(|pool| pool.stranded).sum()
    }

    /// Returns the stranded bytes of all streams together.
    #[must_use]
    pub fn stranded(&self) -> u64 {
        self.pools.iter().map(|pool| pool.stranded).sum()
    }

    /// Returns the free bytes of an owner, for small requests or for larger ones.
    #[must_use]
    pub fn free_of(&self, owner: Owner, small: bool) -> u64 {
        let pools = self.pools.iter().filter(|pool| pool.owner == owner && pool.small == small);
        pools.map(|pool| pool.free).sum()
    }

    fn unreached(&self, reached: u64) -> f64 {
        if self.free == 0 { 0.0 } else { 1.0 - reached as f64 / self.free as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_from_the_parts() {
        let stream = |stream, largest, reachable| StreamMemory { stream, largest, reachable };
        let pool = |owner, small, free, stranded| PoolMemory { owner, small, free, ranges: 2, largest: 10, stranded };
        let memory = Fragmentation {
            reserved: 200,
            allocated: 90,
            pending: 10,
            requested: 80,
            free: 100,
            streams: vec![stream(StreamId(0), 40, 50), stream(StreamId(7), 20, 75)],
            pools: vec![
                pool(Owner::Stream(StreamId(0)), false, 40, 40),
                pool(Owner::Stream(StreamId(0)), true, 20, 5),
                pool(Owner::Stream(StreamId(7)), false, 30, 30),
                pool(Owner::Everyone, false, 10, 0),
            ],
            ..Fragmentation::default()
        };
        assert_eq!((memory.utilization(), memory.rounding_loss()), (0.4, 20));
        assert_eq!((memory.external(), memory.external_after_stitching()), (0.6, 0.25));
        assert_eq!((memory.stranded_on(StreamId(0)), memory.stranded_on(StreamId(7)), memory.stranded()), (45, 30, 75));
        assert_eq!(memory.free_of(Owner::Stream(StreamId(0)), true), 20);
        assert_eq!(memory.free_of(Owner::Everyone, true), 0);
    }

    #[test]
    fn nothing_held_is_nothing_lost() {
        let nothing = Fragmentation::default();
        assert_eq!((nothing.utilization(), nothing.external(), nothing.external_after_stitching()), (1.0, 0.0, 0.0));
    }
}

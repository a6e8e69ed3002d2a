//! Identifiers: numbers that name a pool, block or chunk, each of a type of its own.
//!
//! Owns: the types, and the arithmetic on them that has a meaning. This file knows no tables.

pub use seamalloc_driver::StreamId;
pub(crate) use seamalloc_driver::{EventId, Handle, HostBuffer};
pub use seamalloc_report::pool::PoolId;

/// The two kinds of requests, which never share a pool: up to 1 MiB, and larger ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Large = 0,
    Small = 1,
}

impl Class {
    /// Both classes, large first.
    pub(crate) const ALL: [Self; 2] = [Self::Large, Self::Small];

    /// Returns the class of small requests, or of large ones.
    pub(crate) fn of(small: bool) -> Self {
        if small { Self::Small } else { Self::Large }
    }
}

/// The account that counts physical memory which is part of no block, because a failed call could not be undone yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Account {
    /// Memory of the device, for a class of requests.
    Device(Class),
    /// Host memory.
    Host,
}

impl From<Class> for Account {
    fn from(class: Class) -> Self {
        Self::Device(class)
    }
}

/// The index of one of the heap's pools. A stream has a pair of pools: one for large requests, one for small ones. Each
/// stream of a private pool has such a pair too, and so has idle memory.
///
/// ```text
/// bit 31 … 1   the number of the pair
/// bit 0        0 large, 1 small
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PoolIndex(u32);

impl PoolIndex {
    /// The large pool of the default stream.
    pub(crate) const DEFAULT: Self = Self(0);

    /// Returns the large pool of the pair `number`.
    pub(crate) const fn of_pair(number: usize) -> Self {
        Self((number as u32) << 1)
    }

    /// Returns the large pool of each pair in a table of `pools` pools.
    pub(crate) fn large_of(pools: usize) -> impl DoubleEndedIterator<Item = Self> {
        (0..pools / 2).map(Self::of_pair)
    }

    /// Returns the pool of large requests in the same pair.
    pub(crate) const fn large(self) -> Self {
        Self(self.0 & !1)
    }

    /// Returns the pool of small requests in the same pair.
    pub(crate) const fn small(self) -> Self {
        Self(self.0 | 1)
    }

    /// Returns the pool of this class in the same pair.
    pub(crate) const fn of(self, class: Class) -> Self {
        Self(self.large().0 | class as u32)
    }

    /// Returns whether the pool serves small requests.
    pub(crate) const fn is_small(self) -> bool {
        self.0 & 1 == 1
    }

    /// Returns the class of the requests that the pool serves.
    pub(crate) const fn class(self) -> Class {
        if self.is_small() { Class::Small } else { Class::Large }
    }

    /// Returns the number of the pool's pair, which indexes tables of streams.
    pub(crate) const fn stream(self) -> usize {
        (self.0 >> 1) as usize
    }

    /// Returns the pool at an index in the table of pools.
    pub(crate) const fn of_slot(slot: usize) -> Self {
        Self(slot as u32)
    }

    /// Returns the pool's index in the table of pools.
    pub(crate) const fn slot(self) -> usize {
        self.0 as usize
    }
}

/// A block: an index into the table of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockId(pub(crate) u32);

impl BlockId {
    /// The id of no block.
    pub(crate) const NONE: Self = Self(0);

    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }

    pub(crate) fn is_some(self) -> bool {
        self != Self::NONE
    }

    /// Returns the block, or `None` for [`Self::NONE`].
    pub(crate) fn some(self) -> Option<Self> {
        (self != Self::NONE).then_some(self)
    }
}

/// A segment: an index into the table of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SegmentId(pub(crate) u32);

/// A view: an index into the table of views.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ViewId(pub(crate) u32);

impl ViewId {
    /// The id of no view.
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(crate) fn is_some(self) -> bool {
        self != Self::NONE
    }
}

/// A chunk: an index into the chunks at home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ChunkId(pub(crate) u32);

impl ChunkId {
    /// The id of no chunk.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pools_of_a_stream_lie_side_by_side() {
        let large = PoolIndex::of_pair(3);
        assert_eq!((large.slot(), large.small().slot(), large.stream()), (6, 7, 3));
        for pool in [large, large.small()] {
            assert_eq!((pool.large(), pool.small(), pool.stream()), (large, large.small(), 3));
            assert_eq!(pool.of(pool.class()), pool);
        }
        assert_eq!((large.class(), large.small().class()), (Class::Large, Class::Small));
        assert!(large.small().is_small() && !large.is_small());
        assert_eq!(PoolIndex::DEFAULT, PoolIndex::of_pair(0));
    }
}

//! A pool: the free blocks that requests of one stream and one class may take.
//!
//! Owns: [`Pool`], and the table of all pools. A pool does not know what its blocks are for.

use super::free_index::FreeIndex;
use crate::ids::{BlockId, Class, PoolIndex, StreamId};
use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};

/// The free blocks that requests of one stream and one class may take.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) stream: StreamId,
    /// Whether it is part of a private pool, or of nothing any more.
    pub(crate) private: bool,
    pub(crate) class: Class,
    pub(crate) free: FreeIndex,
    /// Unmapped blocks by address.
    pub(crate) unmapped: BTreeSet<(u64, BlockId)>,
    /// The epoch of its stream that is open: what `freed_at` of free blocks at home counts.
    pub(crate) epoch: u64,
    /// Whether anything was freed in it.
    pub(crate) freed_in_epoch: bool,
    /// Bytes that the program freed on its stream since an epoch was last ended for being long.
    pub(crate) freed_bytes: u64,
    /// The first epoch that the GPU has not passed yet.
    pub(crate) passed: u64,
    /// Of a private pool: whether memory that lies free was used outside of the capture that is under way, so that only
    /// this stream may take it.
    pub(crate) in_stream_order: bool,
    /// Whether its stream is no more, and all that it was given is done.
    pub(crate) ended: bool,
    /// What tells its stream from others that get the same handle, where the driver tells.
    pub(crate) number: Option<u64>,
}

impl Pool {
    pub(super) fn new(stream: StreamId, private: bool, class: Class) -> Self {
        Self {
            stream,
            private,
            class,
            free: FreeIndex::new(),
            unmapped: BTreeSet::new(),
            epoch: 1,
            freed_in_epoch: false,
            freed_bytes: 0,
            passed: 0,
            in_stream_order: false,
            ended: false,
            number: None,
        }
    }
}

/// Every pool, in pairs: large, small.
#[derive(Debug, Default)]
pub(super) struct Pools(Vec<Pool>);

impl Pools {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a pair. Returns its large pool.
    pub(super) fn push_pair(&mut self, pair: [Pool; 2]) -> PoolIndex {
        let large = PoolIndex::of_pair(self.0.len() / 2);
        self.0.extend(pair);
        large
    }

    /// Every pool with its index.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (PoolIndex, &Pool)> {
        let indices = self.large().flat_map(|large| [large, large.small()]).collect::<Vec<_>>();
        indices.into_iter().zip(&self.0)
    }

    /// The large pool of each pair.
    pub(super) fn large(&self) -> impl DoubleEndedIterator<Item = PoolIndex> + use<> {
        (0..self.0.len() / 2).map(PoolIndex::of_pair)
    }
}

impl Index<PoolIndex> for Pools {
    type Output = Pool;

    #[inline]
    fn index(&self, pool: PoolIndex) -> &Pool {
        &self.0[pool.slot()]
    }
}

impl IndexMut<PoolIndex> for Pools {
    #[inline]
    fn index_mut(&mut self, pool: PoolIndex) -> &mut Pool {
        &mut self.0[pool.slot()]
    }
}

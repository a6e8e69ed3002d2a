//! The table of all pools, and which pool serves a stream or a private pool.
//!
//! Owns: [`Pools`]. The other files of this folder change its fields.

use super::pool::Pool;
use super::private_pools::PrivatePools;
use crate::fallible::Grown;
use crate::ids::{Class, PoolId, PoolIndex, StreamId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::ops::{Index, IndexMut};

/// Up to this number of streams, no stream loses its unused pools to another stream. The pools of one stream take 10
/// KB.
pub(super) const FEW_STREAMS: usize = 16;

/// The pair of pools that serves one stream of a private pool.
#[derive(Clone, Copy, Debug)]
pub(in crate::heap) struct PrivatePair {
    pub(in crate::heap) owner: PoolId,
    pub(in crate::heap) stream: StreamId,
    pub(in crate::heap) large: PoolIndex,
}

/// Every pool, and the streams and private pools that the pools serve.
#[derive(Debug)]
pub(in crate::heap) struct Pools {
    /// The pools, in pairs of a large pool and a small pool.
    pub(super) table: Vec<Pool>,
    /// The large pool of each stream.
    pub(super) of_stream: FxHashMap<StreamId, PoolIndex>,
    /// The stream that was looked up last, and its large pool. Most programs use one stream.
    pub(super) last: (StreamId, PoolIndex),
    /// Whether any request of the default stream has missed. The default stream always has pools, even if the program
    /// does not use it.
    pub(super) default_stream_asks: bool,
    /// The external streams. Their owners may destroy them without telling the allocator. So an external stream's
    /// handle is passed to the driver only within a call of the program that names the stream.
    pub(super) external: FxHashSet<StreamId>,
    /// The large pool of idle ranges. Every stream has passed idle ranges and may take them.
    pub(super) idle: PoolIndex,
    /// The private pools, with their uses and routes.
    pub(super) private: PrivatePools,
    /// The pairs of a large and a small pool that belong to private pools, one for each stream. If a private pool has
    /// several pairs for a stream, the last pair serves the stream.
    pub(super) pairs: Vec<PrivatePair>,
    /// The large pools of vacant pairs.
    pub(super) vacant: Vec<PoolIndex>,
    /// If there are at least this many pools, the unused pairs of streams become vacant before a pair is added.
    pub(super) vacate_from: usize,
    /// How often the pools of a class were searched, for any stream. This number is the clock for the ages of free
    /// blocks.
    searches: [u64; 2],
}

impl Default for Pools {
    fn default() -> Self {
        Self {
            table: Vec::new(),
            of_stream: FxHashMap::default(),
            last: (StreamId::DEFAULT, PoolIndex::DEFAULT),
            default_stream_asks: false,
            external: FxHashSet::default(),
            idle: PoolIndex::DEFAULT,
            private: PrivatePools::default(),
            pairs: Vec::new(),
            vacant: Vec::new(),
            vacate_from: 2 * FEW_STREAMS,
            searches: [0; 2],
        }
    }
}

impl Pools {
    /// Returns the number of pools.
    pub(in crate::heap) fn len(&self) -> usize {
        self.table.len()
    }

    /// Makes room for one more pair.
    pub(super) fn reserve_pair(&mut self) -> Grown<()> {
        self.table.try_reserve(2)
    }

    /// Adds a pair. The table has room for the pair. Returns the pair's large pool.
    pub(super) fn push_pair(&mut self, pair: [Pool; 2]) -> PoolIndex {
        let large = PoolIndex::of_slot(self.table.len());
        self.table.extend(pair);
        large
    }

    /// Returns every pool with its index.
    pub(in crate::heap) fn iter(&self) -> impl DoubleEndedIterator<Item = (PoolIndex, &Pool)> {
        self.table.iter().enumerate().map(|(slot, pool)| (PoolIndex::of_slot(slot), pool))
    }

    /// Returns the large pool of each pair.
    pub(in crate::heap) fn large(&self) -> impl DoubleEndedIterator<Item = PoolIndex> + use<> {
        PoolIndex::large_of(self.table.len())
    }

    /// Returns the large pool of idle ranges. Every stream has passed idle ranges and may take them.
    #[inline]
    pub(in crate::heap) fn idle(&self) -> PoolIndex {
        self.idle
    }

    pub(in crate::heap) fn private(&self) -> &PrivatePools {
        &self.private
    }

    pub(in crate::heap) fn private_mut(&mut self) -> &mut PrivatePools {
        &mut self.private
    }

    /// Returns the pairs of private pools. Of several pairs of one stream, the last pair serves the stream.
    pub(in crate::heap) fn pairs(&self) -> &[PrivatePair] {
        &self.pairs
    }

    /// Returns the large pools of vacant pairs.
    pub(in crate::heap) fn vacant(&self) -> &[PoolIndex] {
        &self.vacant
    }

    /// Returns whether a pool is part of a private pool, or vacant.
    pub(in crate::heap) fn is_private(&self, pool: PoolIndex) -> bool {
        self[pool].private
    }

    /// Returns the private pool to which a pool belongs; [`PoolId::NONE`] if the pool is public.
    pub(in crate::heap) fn owner_of(&self, pool: PoolIndex) -> PoolId {
        if !self.is_private(pool) {
            return PoolId::NONE;
        }
        let found = self.pairs.iter().find(|pair| pair.large == pool.large());
        found.map_or(PoolId::NONE, |pair| pair.owner)
    }

    /// Counts a search of the pools of a class.
    #[inline]
    pub(in crate::heap) fn count_search(&mut self, class: Class) {
        self.searches[class as usize] += 1;
    }

    /// Returns how often the pools of a class were searched so far. This number is the clock for the ages of free
    /// blocks.
    #[inline]
    pub(in crate::heap) fn clock(&self, class: Class) -> u64 {
        self.searches[class as usize]
    }
}

#[cfg(test)]
impl Pools {
    /// Returns the first pair, for tests that break the table.
    pub(in crate::heap) fn pair_mut(&mut self) -> &mut PrivatePair {
        &mut self.pairs[0]
    }

    /// Lists a pool as vacant, whatever blocks the pool holds, for tests that break the table.
    pub(in crate::heap) fn vacate(&mut self, large: PoolIndex) {
        self.vacant.push(large);
    }
}

impl Index<PoolIndex> for Pools {
    type Output = Pool;

    #[inline]
    fn index(&self, pool: PoolIndex) -> &Pool {
        &self.table[pool.slot()]
    }
}

impl IndexMut<PoolIndex> for Pools {
    #[inline]
    fn index_mut(&mut self, pool: PoolIndex) -> &mut Pool {
        &mut self.table[pool.slot()]
    }
}

//! Which pools are public, and which belong to a private pool.

use super::table::PrivatePair;
use crate::error::Result;
use crate::fallible::TryCollect;
use crate::heap::tables::Heap;
use crate::ids::{Class, PoolId, PoolIndex, StreamId};

impl Heap {
    /// Returns whether a pool is part of a private pool, or vacant (unused, for the next stream).
    pub(crate) fn is_private(&self, pool: PoolIndex) -> bool {
        self.pools.is_private(pool)
    }

    /// Returns the private pool to which a pool belongs; [`PoolId::NONE`] if the pool is public.
    pub(crate) fn owner_of(&self, pool: PoolIndex) -> PoolId {
        self.pools.owner_of(pool)
    }

    /// Returns the public pools of a class: all pools that are neither vacant (unused, for the next stream) nor part of
    /// a private pool.
    pub(crate) fn public_pools(&self, class: Class) -> impl Iterator<Item = PoolIndex> + '_ {
        let pools = self.pools.large().map(move |large| large.of(class));
        pools.filter(|pool| !self.is_private(*pool))
    }

    /// Returns every public pool: first the large pools, then the small ones.
    pub(crate) fn every_public_pool(&self) -> Result<Vec<PoolIndex>> {
        Ok(Class::ALL.into_iter().flat_map(|class| self.public_pools(class)).try_to_vec()?)
    }

    /// Returns the large pools of a private pool. If several of these pools belong to one stream, the last pool serves
    /// the stream.
    pub(super) fn pairs_of(&self, owner: PoolId) -> impl Iterator<Item = PoolIndex> + '_ {
        self.pools.pairs.iter().filter(move |pair| pair.owner == owner).map(|pair| pair.large)
    }

    /// Returns whether a pool is part of the private pool `owner`.
    pub(in crate::heap) fn is_owned_by(&self, pool: PoolIndex, owner: PoolId) -> bool {
        self.is_private(pool) && self.pairs_of(owner).any(|large| large == pool.large())
    }

    /// Returns the large pool with which a private pool serves a stream, or `None`.
    pub(crate) fn private_pair(&self, owner: PoolId, stream: StreamId) -> Option<PoolIndex> {
        let of_stream = |pair: &&PrivatePair| pair.owner == owner && pair.stream == stream;
        self.pools.pairs.iter().rev().find(of_stream).map(|pair| pair.large)
    }

    /// Returns whether a pool is part of a private pool with segments of its own.
    pub(crate) fn is_segmented(&self, pool: PoolIndex) -> bool {
        self.is_private(pool) && self.pools.private.segments(self.owner_of(pool)).is_some()
    }

    /// Returns whether a pool is part of a private pool with a source of its own.
    pub(crate) fn has_source(&self, pool: PoolIndex) -> bool {
        self.is_private(pool) && self.pools.private.segments(self.owner_of(pool)).is_some_and(|own| own.have_source())
    }

    /// Returns whether a private pool has pools of blocks, even if they have no blocks.
    pub(crate) fn has_pairs(&self, owner: PoolId) -> bool {
        self.pair_of(owner).is_some()
    }

    /// Returns the last large pool of a private pool, or `None`.
    pub(crate) fn pair_of(&self, owner: PoolId) -> Option<PoolIndex> {
        self.pairs_of(owner).last()
    }

    /// Returns whether requests of a pool may take idle memory.
    pub(crate) fn takes_idle(&self, pool: PoolIndex) -> bool {
        !self.pools[pool].apart
    }

    /// Returns whether a pool is part of a sleeping private pool. The free blocks of such a pool have no memory.
    pub(crate) fn is_asleep(&self, pool: PoolIndex) -> bool {
        self.pools[pool].apart && self.pools.private.asleep(self.owner_of(pool)).is_some()
    }

    /// Returns whether a released private pool sleeps.
    pub(crate) fn has_released_asleep(&self) -> bool {
        self.pools.private.sleeps_released()
    }
}

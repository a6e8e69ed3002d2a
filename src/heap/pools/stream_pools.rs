//! The pools of each stream.
//!
//! Owns: how a stream gets its pools, and their epochs. A program may create streams without end, so the pools of a
//! stream that holds no memory are given to other streams. Pools of an ended stream stay until the program names the
//! stream's handle again. Until then the handle is never passed to the driver.

use super::pool::Pool;
use super::table::{FEW_STREAMS, Pools};
use crate::error::Result;
use crate::fallible::{filled, try_insert};
use crate::heap::blocks::block::{Freeing, State};
use crate::heap::tables::Heap;
use crate::ids::{BlockId, Class, PoolIndex, StreamId};
use crate::span::Span;

/// The stream id under which idle memory has its pools. Idle memory belongs to no stream.
const IDLE: StreamId = StreamId(u64::MAX);

impl Heap {
    /// Returns the large pools of streams. Pools of idle memory and of private pools are left out.
    pub(crate) fn stream_pools(&self) -> impl Iterator<Item = PoolIndex> + '_ {
        self.pairs().filter(|pool| self.is_of_stream(*pool))
    }

    /// Returns the large pool of every pair of pools: of streams, of idle memory, of private pools, and of pairs that
    /// serve no stream now. The iterator does not borrow the heap.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = PoolIndex> + use<> {
        self.pools.large()
    }

    /// Returns the large pools of the streams that make requests. The default stream's pool is included only after its
    /// first miss. Pools of ended streams are left out.
    pub(crate) fn asking_pools(&self) -> impl Iterator<Item = PoolIndex> + '_ {
        let asks = |pool: &PoolIndex| *pool != PoolIndex::DEFAULT || self.pools.default_stream_asks;
        self.stream_pools().filter(move |pool| asks(pool) && !self.pools[*pool].ended)
    }

    /// Notes a miss of a pool.
    pub(crate) fn note_miss(&mut self, pool: PoolIndex) {
        self.pools.default_stream_asks |= pool.large() == PoolIndex::DEFAULT;
    }

    /// Returns whether the program has named any stream but the default stream. Another handle of the default stream
    /// counts as another stream here.
    #[inline]
    pub(crate) fn knows_streams(&self) -> bool {
        self.pools.of_stream.len() > 1
    }

    /// Returns whether a pool belongs to a stream.
    pub(crate) fn is_of_stream(&self, pool: PoolIndex) -> bool {
        pool.large() != self.pools.idle && !self.is_private(pool)
    }

    /// Returns the pool that serves a rounded size of `size` bytes on `stream`, or `None` if the stream is not
    /// registered.
    #[inline]
    pub(crate) fn pool_for(&mut self, stream: StreamId, size: u64) -> Option<(PoolIndex, Class)> {
        let class = self.rules.layout.class_of(size);
        if self.pools.last.0 != stream {
            self.pools.last = (stream, self.known_pool(stream)?);
        }
        Some((self.pools.last.1.of(class), class))
    }

    /// Returns the large pool of a stream, or `None` if the stream is not registered or has ended.
    fn known_pool(&self, stream: StreamId) -> Option<PoolIndex> {
        self.pools.of_stream.get(&stream).copied().filter(|pool| !self.pools[*pool].ended)
    }

    /// Registers a stream. The stream's handle may be the handle of a stream that has ended.
    pub(crate) fn register_stream(&mut self, stream: StreamId, number: Option<u64>) -> Result<()> {
        let large = self.stream_pool(stream)?;
        let pool = &mut self.pools[large];
        (pool.ended, pool.number) = (false, number);
        Ok(())
    }

    /// Notes that a stream is external: its owner may destroy the stream without telling the allocator.
    pub(crate) fn mark_external(&mut self, stream: StreamId) -> Result<()> {
        self.pools.external.try_reserve(1)?;
        self.pools.external.insert(stream);
        Ok(())
    }

    /// Returns whether a stream is external: its owner may destroy the stream without telling the allocator.
    pub(crate) fn is_external(&self, stream: StreamId) -> bool {
        self.pools.external.contains(&stream)
    }

    /// Returns whether any stream is external.
    #[inline]
    pub(crate) fn has_external(&self) -> bool {
        !self.pools.external.is_empty()
    }

    /// Registers another handle of the default stream. The pools of the default stream never pass to another stream.
    pub(crate) fn alias_default(&mut self, alias: StreamId) -> Result<()> {
        try_insert(&mut self.pools.of_stream, alias, PoolIndex::DEFAULT)?;
        Ok(())
    }

    /// Returns the large pools that serve this handle, in private pools too.
    pub(crate) fn pools_of(&self, stream: StreamId) -> impl Iterator<Item = PoolIndex> + '_ {
        let private = self.pools.pairs.iter().filter(move |pair| pair.stream == stream).map(|pair| pair.large);
        self.pools.of_stream.get(&stream).copied().into_iter().chain(private)
    }

    /// Returns whether a live block belongs to no stream, because the block's stream has ended. A new stream with the
    /// same handle may already have the pool.
    #[inline]
    pub(crate) fn has_no_stream(&self, id: BlockId) -> bool {
        let block = &self.blocks[id];
        // The bitwise or makes one branch instead of two, since every free with a stream runs this code.
        self.pools[block.pool.large()].ended | (block.freeing == Freeing::OfNoStream)
    }

    /// Notes that memory of a large pool is freed while another stream is current, without an event on the other
    /// stream.
    pub(crate) fn set_used_by_others(&mut self, large: PoolIndex) {
        self.pools[large].used_by_others = true;
        let owner = self.owner_of(large);
        self.pools.private.set_used_by_others(owner);
    }

    /// Notes that a stream has ended and all its work is done. The method walks all blocks, since the stream's live
    /// blocks belong to no stream from then on.
    pub(crate) fn end_stream(&mut self, stream: StreamId) {
        self.pools.external.remove(&stream);
        let Pools { table, of_stream, pairs, .. } = &mut self.pools;
        let private = pairs.iter().filter(|pair| pair.stream == stream).map(|pair| pair.large);
        for large in of_stream.get(&stream).copied().into_iter().chain(private) {
            let pool = &mut table[large.slot()];
            (pool.ended, pool.number, pool.in_stream_order, pool.used_by_others) = (true, None, false, false);
        }
        let left = self.blocks.iter_mut().filter(|block| block.state == State::Allocated);
        for block in left.filter(|block| self.pools[block.pool.large()].ended) {
            block.freeing = Freeing::OfNoStream;
        }
        if self.pools.last.0 == stream {
            self.pools.last = (StreamId::DEFAULT, PoolIndex::DEFAULT);
        }
    }

    /// Notes that the handle of a pool's stream now belongs to another stream.
    pub(crate) fn renumber_stream(&mut self, large: PoolIndex, number: Option<u64>) {
        self.pools[large].number = number;
    }

    /// Counts bytes that the program freed on the stream of a pool. Returns the bytes freed since the last reset.
    #[inline]
    pub(crate) fn count_freed(&mut self, pool: PoolIndex, size: u64) -> u64 {
        let freed = &mut self.pools[pool.large()].freed_bytes;
        *freed += size;
        *freed
    }

    /// Resets the count of bytes freed on a stream.
    pub(crate) fn reset_freed(&mut self, large: PoolIndex) {
        self.pools[large].freed_bytes = 0;
    }

    /// Ends the open epoch of a stream, and begins the next epoch.
    pub(crate) fn end_epoch(&mut self, large: PoolIndex) {
        let pool = &mut self.pools[large];
        pool.epoch += 1;
        pool.freed_in_epoch = false;
    }

    /// Notes that the GPU has passed all epochs of a stream before `epoch`.
    pub(crate) fn set_passed(&mut self, large: PoolIndex, epoch: u64) {
        self.pools[large].passed = epoch;
    }

    /// Adds the pools that every heap has: the pools of the default stream and of idle memory.
    pub(in crate::heap) fn add_first_pools(&mut self) -> Result<()> {
        self.add_pools(StreamId::DEFAULT)?;
        self.pools.idle = self.add_pools(IDLE)?;
        // `IDLE` is no stream of a program, so no request may find the pools of idle memory.
        self.pools.of_stream.remove(&IDLE);
        Ok(())
    }

    /// Returns the large pool of a stream. Adds the stream's pools if there are none.
    pub(super) fn stream_pool(&mut self, stream: StreamId) -> Result<PoolIndex> {
        match self.pools.of_stream.get(&stream) {
            Some(pool) => Ok(*pool),
            None => self.add_pools(stream),
        }
    }

    pub(super) fn add_pools(&mut self, stream: StreamId) -> Result<PoolIndex> {
        self.pools.of_stream.try_reserve(1)?;
        if self.pools.vacant.is_empty() && self.pools.len() >= self.pools.vacate_from {
            self.vacate_pools()?;
            // The next walk over the pools comes when there are twice as many pools, so that walks take constant time
            // for each added stream on average.
            self.pools.vacate_from = (2 * (self.pools.len() - 2 * self.pools.vacant.len())).max(2 * FEW_STREAMS);
        }
        let first = self.add_pair(stream, false)?;
        self.pools.of_stream.insert(stream, first);
        Ok(first)
    }

    pub(super) fn add_pair(&mut self, stream: StreamId, private: bool) -> Result<PoolIndex> {
        let pair = Class::ALL.map(|class| Pool::new(stream, private, class));
        let Some(large) = self.pools.vacant.pop() else {
            let free = self.blocks.reserve_pair()?;
            self.pools.reserve_pair()?;
            // The list gets room for every pair of pools, so that taking a pair from its stream needs no host memory.
            self.pools.vacant.try_reserve(self.pools.len() / 2 + 1)?;
            self.blocks.push_pair(free);
            return Ok(self.pools.push_pair(pair));
        };
        self.journal.note_pool_was(large, self.pools[large].stream);
        for (index, pool) in [large, large.small()].into_iter().zip(pair) {
            // Epoch numbers continue, because events of the former stream may still be queried.
            let slot = &mut self.pools[index];
            *slot = Pool { epoch: slot.epoch, passed: slot.passed, ..pool };
        }
        Ok(large)
    }

    /// Takes their pools, for other streams, from streams that have neither memory nor a view that they may still use.
    /// The default stream keeps its pools. The stream that was looked up last keeps its pools too, since the lookup is
    /// cached.
    fn vacate_pools(&mut self) -> Result<()> {
        let mut kept = filled(false, self.pools.len() / 2)?;
        let mut keep = |pool: PoolIndex| kept[pool.stream()] = true;
        keep(PoolIndex::DEFAULT);
        keep(self.pools.last.1);
        self.blocks.iter().for_each(|(_, block)| keep(block.pool));
        for (_, view) in self.home.views().iter() {
            let used = view.last_uses.iter().filter(|(pool, epoch)| *epoch >= self.pools[*pool].passed);
            used.for_each(|(pool, _)| keep(*pool));
        }
        self.home.views_mut().forget_uses(|pool| !kept[pool.stream()]);
        for large in self.pairs() {
            if self.is_of_stream(large) && !kept[large.stream()] {
                let stream = self.pools[large].stream;
                self.pools.of_stream.remove(&stream);
                [large, large.small()].into_iter().for_each(|pool| self.pools[pool].private = true);
                self.pools.vacant.push(large);
            }
        }
        Ok(())
    }

    /// Gives a part of another pool's free block to the pool `to`, whose stream waits for the part on the GPU. From
    /// then on, this stream must pass the part before other streams may have it.
    pub(crate) fn pass_on(&mut self, id: BlockId, part: Span, to: PoolIndex) -> Result<()> {
        let id = if self.blocks[id].span() == part {
            id
        } else {
            let id = self.blocks.carve(id, part)?;
            self.blocks.insert_free(id);
            id
        };
        self.pools[to].freed_in_epoch = true;
        self.blocks[id].freed_at = self.pools[to].epoch;
        self.hand_over(id, to);
        Ok(())
    }
}

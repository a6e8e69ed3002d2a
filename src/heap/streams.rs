//! The pools of streams: which stream has which.
//!
//! Owns: how a stream comes by its pools, and that streams which have nothing any more leave theirs to others: a program
//! may create streams for ever. Pools of a stream that has ended stay, until the program names its handle again; the handle
//! is never given to the driver meanwhile.

use super::Heap;
use crate::blocks::BlockId;
use crate::free_index::FreeIndex;
use crate::ids::StreamId;
use crate::rounding::SMALL_LIMIT;
use crate::stats::Class;
use std::collections::BTreeSet;

/// Stands for the stream of memory that no stream has to itself.
pub(super) const IDLE: StreamId = StreamId(u64::MAX);
/// With no more streams than this nobody asks which of them have nothing any more. The pools of one take 10 KB.
pub(super) const FEW_STREAMS: usize = 16;

/// The free blocks that requests of one stream and one class may take.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) stream: StreamId,
    /// Whether it is part of a private pool, or of nothing any more.
    pub(super) private: bool,
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
    fn new(stream: StreamId, private: bool, class: Class) -> Self {
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

    /// The next epoch begins.
    pub(crate) fn end_epoch(&mut self) {
        self.epoch += 1;
        self.freed_in_epoch = false;
    }
}

impl Heap {
    /// The large pools of streams: all but that of idle memory and those of private pools.
    pub(crate) fn stream_pools(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.pools.len() as u32).step_by(2).filter(|pool| *pool != self.idle && !self.is_private(*pool))
    }

    /// The pool that serves rounded `size` bytes on `stream`; `None` for a stream that is yet to be met.
    pub(crate) fn pool_for(&mut self, stream: StreamId, size: u64) -> Option<(u32, Class)> {
        let class = Class::of(size <= SMALL_LIMIT);
        if self.last_pool.0 != stream {
            self.last_pool = (stream, self.known_pool(stream)?);
        }
        Some((self.last_pool.1 + class as u32, class))
    }

    /// The large pool of a stream that was met and has not ended.
    fn known_pool(&self, stream: StreamId) -> Option<u32> {
        self.pool_of.get(&stream).copied().filter(|pool| !self.pools[*pool as usize].ended)
    }

    /// A stream is met, whose handle another may have had that has ended.
    pub(crate) fn meet(&mut self, stream: StreamId, number: Option<u64>) {
        let large = self.stream_pool(stream);
        let pool = &mut self.pools[large as usize];
        (pool.ended, pool.number) = (false, number);
    }

    /// Another handle of the default stream, whose pools are never anyone else's.
    pub(crate) fn alias_default(&mut self, alias: StreamId) {
        self.pool_of.insert(alias, 0);
    }

    /// The large pools of that handle, those of private pools too.
    pub(crate) fn pools_of(&self, stream: StreamId) -> Vec<u32> {
        let private = self.private_pairs.iter().filter(|(_, on, _)| *on == stream).map(|(.., large)| *large);
        self.pool_of.get(&stream).copied().into_iter().chain(private).collect()
    }

    /// The stream is no more, and all that it was given is done.
    pub(crate) fn end_stream(&mut self, stream: StreamId) {
        for large in self.pools_of(stream) {
            let pool = &mut self.pools[large as usize];
            (pool.ended, pool.number, pool.in_stream_order) = (true, None, false);
        }
        if self.last_pool.0 == stream {
            self.last_pool = (StreamId::DEFAULT, 0);
        }
    }

    /// The large pool of a stream.
    pub(super) fn stream_pool(&mut self, stream: StreamId) -> u32 {
        match self.pool_of.get(&stream) {
            Some(pool) => *pool,
            None => self.add_pools(stream),
        }
    }

    pub(super) fn add_pools(&mut self, stream: StreamId) -> u32 {
        if self.vacant_pools.is_empty() && self.pools.len() >= self.most_pools {
            self.vacate_pools();
            // Seldom enough that the time to look is constant for each stream.
            self.most_pools = (2 * (self.pools.len() - 2 * self.vacant_pools.len())).max(2 * FEW_STREAMS);
        }
        let first = self.add_pair(stream, false);
        self.pool_of.insert(stream, first);
        first
    }

    pub(super) fn add_pair(&mut self, stream: StreamId, private: bool) -> u32 {
        let pair = [Class::Large, Class::Small].map(|class| Pool::new(stream, private, class));
        let Some(first) = self.vacant_pools.pop() else {
            let first = self.pools.len() as u32;
            self.pools.extend(pair);
            return first;
        };
        for (slot, pool) in self.pools.iter_mut().skip(first as usize).zip(pair) {
            // Epochs go on: events of those before may still be asked about.
            *slot = Pool { epoch: slot.epoch, passed: slot.passed, ..pool };
        }
        first
    }

    /// The pools of streams that have neither memory nor a view which they may still use become vacant. The default
    /// stream keeps its own, and so does the one asked for last, which is remembered.
    fn vacate_pools(&mut self) {
        let mut kept = vec![false; self.pools.len() / 2];
        let mut keep = |pool: u32| kept[pool as usize / 2] = true;
        keep(0);
        keep(self.last_pool.1);
        self.blocks.iter().for_each(|(_, block)| keep(block.pool));
        for (_, view) in self.views.iter() {
            let used = view.last_uses.iter().filter(|(pool, epoch)| *epoch >= self.pools[*pool as usize].passed);
            used.for_each(|(pool, _)| keep(*pool));
        }
        let vacant: Vec<u32> = self.stream_pools().filter(|pool| !kept[*pool as usize / 2]).collect();
        for &large in &vacant {
            self.pool_of.remove(&self.pools[large as usize].stream);
            self.pools.iter_mut().skip(large as usize).take(2).for_each(|pool| pool.private = true);
        }
        self.views.forget_uses(|pool| !kept[pool as usize / 2]);
        self.vacant_pools.extend(vacant);
    }
}

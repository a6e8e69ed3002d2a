//! The heap's tables, and the methods with which callers read the tables.
//!
//! Owns: the fields of [`Heap`]. The other files of this folder change these fields.

use super::blocks::block::Block;
use super::blocks::layout::Layout;
use super::blocks::table::Blocks;
use super::fingerprint::Fingerprint;
use super::home::chunk_map::{Chunk, ChunkMap};
use super::home::segment::Segment;
use super::home::table::Home;
use super::home::views::Views;
use super::journal::Journal;
use super::journal::counters::Counters;
use super::pools::pool::Pool;
use super::pools::private_pools::PrivatePools;
use super::pools::table::Pools;
use crate::error::Result;
use crate::fallible::Grown;
use crate::ids::{BlockId, Class, PoolIndex, SegmentId};
use crate::span::Span;

/// The settings that do not change while a heap exists and holds memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeapRules {
    /// The least bytes of a block that counts as oversize.
    pub(crate) oversize_from: u64,
    /// Whether idle ranges join the pool of a block freed beside them. Such ranges are then no longer idle: at most
    /// after a wait on the GPU can another stream get them. So the rule is off with `sharing:completed`, with which no
    /// stream waits.
    pub(crate) adopts_idle: bool,
    /// Whether memory at home moves between streams, so that no single stream owns it.
    pub(crate) home_is_shared: bool,
    pub(crate) layout: Layout,
    /// How many operations the flight recorder keeps.
    pub(crate) flight: usize,
    /// Whether live blocks have an age, because they may be spilled.
    pub(crate) ages: bool,
}

/// All memory that an allocator holds.
pub(crate) struct Heap {
    pub(super) rules: HeapRules,
    pub(super) blocks: Blocks,
    pub(super) pools: Pools,
    pub(super) home: Home,
    pub(super) journal: Journal,
}

impl Heap {
    /// Sets the rules of another strategy. The heap holds no memory under the earlier rules. The flight recorder stays.
    pub(crate) fn set_rules(&mut self, rules: HeapRules) {
        self.journal.set_oversize_from(rules.oversize_from);
        self.rules = rules;
    }

    /// Returns the bytes held from the driver.
    #[inline]
    pub(crate) fn reserved(&self) -> u64 {
        self.journal.counters().reserved_bytes.current()
    }

    /// Returns whether any chunk was ever split. From then on, blocks are placed so that whole granules stay free.
    pub(crate) fn has_split(&self) -> bool {
        self.counters().splits.chunks > 0
    }

    /// Returns the held bytes outside of live allocations: free bytes, and bytes that wait for streams.
    pub(crate) fn not_allocated(&self) -> u64 {
        self.reserved().saturating_sub(self.counters().allocated_bytes.current())
    }

    /// Returns about how many bytes of host memory the tables take. Tables count whole, although their untouched parts
    /// take no memory. The flight recorder is not counted: its size is an option.
    pub(crate) fn host_bytes(&self) -> usize {
        self.blocks.host_bytes() + self.pools.len() * size_of::<Pool>() + self.home.host_bytes()
    }

    /// Returns the block with this id, or the vacant sentinel.
    #[inline]
    pub(crate) fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id]
    }

    /// Returns every block with its id, in no particular order.
    #[cfg(feature = "baselines")]
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        self.blocks.iter()
    }

    /// Returns a pool. The caller got the index from this heap.
    #[inline]
    pub(crate) fn pool(&self, pool: PoolIndex) -> &Pool {
        &self.pools[pool]
    }

    /// Returns the large pool of idle memory, which every stream has passed.
    pub(crate) fn idle(&self) -> PoolIndex {
        self.pools.idle()
    }

    /// Returns home, or `None` before home exists.
    pub(crate) fn home(&self) -> Option<&ChunkMap> {
        self.home.map()
    }

    pub(crate) fn views(&self) -> &Views {
        self.home.views()
    }

    pub(crate) fn counters(&self) -> &Counters {
        self.journal.counters()
    }

    pub(crate) fn private(&self) -> &PrivatePools {
        self.pools.private()
    }

    pub(crate) fn private_mut(&mut self) -> &mut PrivatePools {
        self.pools.private_mut()
    }

    pub(crate) fn segment(&self, id: SegmentId) -> Option<&Segment> {
        self.home.segment(id)
    }

    /// Returns the smallest free block of a pool with at least `size` bytes, at the lowest address among equal blocks,
    /// or [`BlockId::NONE`].
    pub(crate) fn best_fit(&self, pool: PoolIndex, size: u64) -> BlockId {
        self.blocks.best_fit(pool, size)
    }

    /// Returns the largest free block of a pool, or [`BlockId::NONE`].
    pub(crate) fn largest_free(&self, pool: PoolIndex) -> BlockId {
        self.blocks.largest_free(pool)
    }

    /// Returns the free blocks of a pool in the order of size and address.
    pub(crate) fn free_blocks(&self, pool: PoolIndex) -> Result<Vec<BlockId>> {
        self.blocks.free_blocks(pool)
    }

    /// Visits the free blocks of a pool with at least `min_size` bytes, in the order of size and address.
    pub(crate) fn visit_free(
        &self,
        pool: PoolIndex,
        min_size: u64,
        visit: impl FnMut(BlockId) -> Grown<()>,
    ) -> Result<()> {
        Ok(self.blocks.visit_free(pool, min_size, visit)?)
    }

    /// Returns whether a pool has free blocks.
    pub(crate) fn has_free(&self, pool: PoolIndex) -> bool {
        self.blocks.free_count(pool) > 0
    }

    /// Puts a block that was already free into the index of its pool.
    #[cfg(feature = "baselines")]
    pub(crate) fn insert_free(&mut self, id: BlockId) {
        self.blocks.insert_free(id);
    }

    /// Takes a free block out of the index of its pool.
    pub(crate) fn take_free(&mut self, id: BlockId) {
        self.blocks.take_free(id);
    }

    /// Cuts a span out of a free block. The rest stays in the index. Returns the block of the span, which is in no
    /// index.
    pub(crate) fn carve(&mut self, id: BlockId, span: Span) -> Result<BlockId> {
        self.blocks.carve(id, span)
    }

    /// Returns the live block that begins at an address.
    pub(crate) fn live(&self, address: u64) -> Result<BlockId> {
        self.blocks.live(address)
    }

    /// Takes the live block that begins at an address out of the table of live allocations.
    #[inline]
    pub(crate) fn take_live(&mut self, address: u64) -> Result<BlockId> {
        self.blocks.take_live(address)
    }

    /// Puts back a live block that was taken out with [`Self::take_live`].
    pub(crate) fn keep_live(&mut self, id: BlockId) {
        self.blocks.keep_live(id);
    }

    /// Returns the fingerprint of the free memory that a request of this large pool may take, and of the chunks in
    /// which this memory lies.
    pub(crate) fn fingerprint(&self, pool: PoolIndex) -> Fingerprint {
        let chunks = self.home.map().map(ChunkMap::fingerprint).unwrap_or_default();
        [pool, pool.small(), self.pools.idle(), self.pools.idle().small()]
            .into_iter()
            .fold(chunks.with(pool.slot() as u64), |all, pool| all.and(self.blocks.fingerprint(pool)))
    }

    /// Returns how often the pools of a class were searched so far.
    pub(crate) fn clock(&self, class: Class) -> u64 {
        self.pools.clock(class)
    }

    /// Returns the block at home that covers an address, or [`BlockId::NONE`].
    pub(crate) fn covering(&self, address: u64) -> BlockId {
        self.blocks.covering(address)
    }

    /// Makes room for one more live allocation. [`Self::hand_out`] notes the allocation.
    pub(crate) fn reserve_live(&mut self) -> Result<()> {
        self.blocks.reserve_live(1)
    }

    /// Returns the blocks that have a byte in a span of home.
    pub(crate) fn blocks_over(&self, span: Span) -> impl Iterator<Item = BlockId> + use<'_> {
        self.blocks.over(span)
    }

    /// Returns the block that holds all bytes of a span of home, or `None`.
    pub(crate) fn block_around(&self, span: Span) -> Option<BlockId> {
        self.blocks.around(span)
    }

    /// Returns, for each class, the bytes of a chunk that lie in blocks of this class.
    pub(super) fn bytes_by_class(&self, chunk: &Chunk) -> [(Class, u64); 2] {
        let mut bytes = Class::ALL.map(|class| (class, 0));
        for id in self.blocks_over(chunk.span()) {
            let block = &self.blocks[id];
            let class = if chunk.slab { Class::Small } else { block.pool.class() };
            let size = block.span().intersection(&chunk.span()).map_or(0, |part| part.size);
            bytes.iter_mut().filter(|(of, _)| *of == class).for_each(|(_, bytes)| *bytes += size);
        }
        bytes
    }
}

//! The restoration of a checkpoint: blocks of a private pool are handed out again at their previous addresses.
//!
//! Owns: the choice of the free bytes of a private pool from which a block is restored. This file calls no driver:
//! memory that a pool has handed out stays mapped until the pool is released.

use crate::config::rounding::{MIN_BLOCK, SMALL_LIMIT};
use crate::error::{Error, Result};
use crate::fallible::TryCollect;
use crate::heap::blocks::block::{Block, State};
use crate::heap::blocks::request::Request;
use crate::heap::blocks::starts::GRANULE;
use crate::heap::home::stitched::Window;
use crate::heap::tables::Heap;
use crate::ids::{BlockId, Class, PoolId, PoolIndex, ViewId};
use crate::report::pool::PoolBlock;
use crate::span::Span;

impl Heap {
    /// Returns the live blocks of a private pool, in the order of addresses.
    pub(crate) fn live_of(&self, owner: PoolId) -> Result<Vec<PoolBlock>> {
        let live = self.blocks.iter().map(|(_, block)| block);
        let live = live.filter(|block| block.state == State::Allocated && self.is_owned_by(block.pool, owner));
        let shown = |block: &Block| PoolBlock { address: block.address, size: block.size, requested: block.requested };
        let mut live = live.map(shown).try_to_vec()?;
        live.sort_unstable_by_key(|block| block.address);
        Ok(live)
    }

    /// Makes room to hand out this many blocks again.
    pub(crate) fn reserve_restored(&mut self, blocks: usize) -> Result<()> {
        /// A slab is cut out of large memory, and a block is cut out of the slab. Each cut leaves a rest on either
        /// side.
        const SLOTS_PER_BLOCK: usize = 5;
        self.blocks.reserve_live(blocks)?;
        self.blocks.reserve(SLOTS_PER_BLOCK.saturating_mul(blocks)).map(drop)
    }

    /// Takes the free bytes where a block of a private pool lay, so that [`Heap::hand_out`] can hand out exactly these
    /// bytes.
    pub(crate) fn retake(&mut self, owner: PoolId, block: &PoolBlock) -> Result<(BlockId, Request)> {
        let gone = Error::NotRestorable { address: block.address };
        let aligned = block.address.is_multiple_of(MIN_BLOCK) && block.size.is_multiple_of(MIN_BLOCK);
        if !aligned || block.size == 0 || block.address.checked_add(block.size).is_none() {
            return Err(gone);
        }
        let class = Class::of(block.size <= SMALL_LIMIT);
        if let Some(id) = self.retake_guarded(owner, block) {
            let pool = self.blocks[id].pool;
            return Ok((
                id,
                Request { size: block.size, requested: block.requested, pool, class, extends: ViewId::NONE },
            ));
        }
        let home = self.home.map().ok_or(gone.clone())?;
        let id = if home.holds(block.address) {
            self.retake_home(owner, block, class)
        } else {
            self.retake_view(owner, block)
        };
        let id = id?.ok_or(gone)?;
        let pool = self.blocks[id].pool;
        Ok((id, Request { size: block.size, requested: block.requested, pool, class, extends: ViewId::NONE }))
    }

    fn retake_home(&mut self, owner: PoolId, block: &PoolBlock, class: Class) -> Result<Option<BlockId>> {
        let Some(mut free) = self.free_at(owner, block.address, block.size) else { return Ok(None) };
        if self.home.map().is_some_and(|home| home.is_bare(block.address, block.size)) {
            return Ok(None);
        }
        let large = self.blocks[free].pool.large();
        match class {
            Class::Large if self.blocks[free].pool != large => return Ok(None),
            Class::Small if self.blocks[free].pool == large => {
                // The slab in which the block lay became large memory again when its last block was freed.
                let start = block.address - block.address % GRANULE;
                if self.free_at(owner, start, GRANULE) != Some(free) {
                    return Ok(None);
                }
                free = self.blocks.carve(free, Span::new(start, GRANULE))?;
                self.make_slab(free, large.small());
                self.blocks.insert_free(free);
            }
            _ => {}
        }
        self.blocks.carve(free, Span::new(block.address, block.size)).map(Some)
    }

    /// Returns the free block of a private pool that holds these bytes, or `None`.
    fn free_at(&self, owner: PoolId, address: u64, size: u64) -> Option<BlockId> {
        let id = self.covering(address);
        let block = &self.blocks[id];
        let fits = block.state == State::Free && block.address <= address && address + size <= block.end();
        (fits && self.owner_of(block.pool) == owner).then_some(id)
    }

    fn retake_view(&mut self, owner: PoolId, block: &PoolBlock) -> Result<Option<BlockId>> {
        let end = block.address + block.size;
        let covers = self.home.views().iter().find(|(_, view)| {
            view.address <= block.address && end <= view.address + view.size && view.pins.contains(&owner)
        });
        let Some((id, view)) = covers else { return Ok(None) };
        let window = Window { view: id, offset: block.address - view.address };
        let Some(large) = self.open_window(owner, window, block.size) else { return Ok(None) };
        self.take_window(window, block.size, large).map(Some)
    }

    /// Returns the large pool of a private pool for which all of these bytes of a view are free, or `None`.
    fn open_window(&self, owner: PoolId, window: Window, size: u64) -> Option<PoolIndex> {
        let home = self.home.map()?;
        let mut large = None;
        let (mut at, end) = (0, window.offset + size);
        let view = self.home.views().get(window.view)?;
        for chunk in &view.chunks {
            let Some(chunk) = home.chunk(*chunk) else {
                let hole = view.hole_at(at);
                if window.offset < at + hole && at < end {
                    return None;
                }
                at += hole;
                continue;
            };
            let (from, to) = (window.offset.max(at), end.min(at + chunk.size));
            if from < to {
                let (first, last) = (chunk.address + from - at, chunk.address + to - at);
                large = Some(self.open_span(owner, large, Span::between(first, last))?);
            }
            at += chunk.size;
        }
        large
    }

    /// Returns the large pool of a private pool for which all of these bytes at home are free, or `None`. `large` is
    /// this pool, or `None` if it is unknown.
    fn open_span(&self, owner: PoolId, large: Option<PoolIndex>, span: Span) -> Option<PoolIndex> {
        let mut id = self.covering(span.start);
        let large = large.unwrap_or(self.blocks[id].pool.large());
        let mut at = span.start;
        while at < span.end() {
            let block = &self.blocks[id];
            if !self.is_open(id, large) || self.owner_of(block.pool) != owner {
                return None;
            }
            at = block.end();
            id = block.next;
        }
        Some(large)
    }
}

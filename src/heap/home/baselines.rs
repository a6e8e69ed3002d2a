//! Cuts of blocks that only the strategies of `strategy/baselines` make.
//!
//! Owns: the layouts [`Placement::Back`] and [`Placement::Halves`], and the search for parts of segments that were
//! never handed out.
//!
//! [`Placement::Back`]: crate::heap::Placement::Back
//! [`Placement::Halves`]: crate::heap::Placement::Halves

use crate::config::rounding::ROUNDUP_INTERVALS;
use crate::error::Result;
use crate::heap::blocks::block::{Block, Kind, State};
use crate::heap::tables::Heap;
use crate::ids::{BlockId, PoolIndex};
use crate::span::Span;

impl Heap {
    /// Places a request at the back of a block that is in no index, by [`Placement::Back`].
    pub(super) fn place_at_back(&mut self, id: BlockId, size: u64) -> BlockId {
        let block = self.blocks[id];
        let front = block.size.saturating_sub(size);
        if front == 0 {
            return id;
        }
        let part = block.part(Span::new(block.address + front, size), block.state);
        self.blocks[id].size = front;
        let Ok(back) = self.blocks.insert_after(id, part) else {
            self.blocks[id].size = block.size;
            return id;
        };
        self.blocks.insert_free(id);
        self.count_cut(&block, 1);
        back
    }

    /// Halves a block until it has the size of the request, by [`Placement::Halves`]. The block is in no index.
    pub(super) fn halve(&mut self, id: BlockId, size: u64) -> BlockId {
        let block = self.blocks[id];
        let mut cuts = 0;
        while self.blocks[id].size / 2 >= size {
            let half = self.blocks[id].size / 2;
            self.blocks[id].size = half;
            let Ok(buddy) =
                self.blocks.insert_after(id, block.part(Span::new(block.address + half, half), block.state))
            else {
                self.blocks[id].size = 2 * half;
                break;
            };
            self.blocks.insert_free(buddy);
            cuts += 1;
        }
        self.count_cut(&block, cuts);
        id
    }

    /// Counts as free (in the statistics of inactive splits) all parts of a block that was cut. [`Heap::hand_out`]
    /// subtracts the part that is handed out.
    fn count_cut(&mut self, block: &Block, cuts: u64) {
        if cuts == 0 || block.kind != Kind::Malloc {
            return;
        }
        let class = block.pool.class();
        // `block` is the block before the cut. A block that was a whole segment was not counted as an inactive split.
        let (more, bytes) = if block.is_split() { (cuts, 0) } else { (cuts + 1, block.size) };
        self.journal.inactive_split_added(class, more, bytes);
    }

    /// Returns the smallest free block of a pool that has at least `size` bytes and was never handed out since its
    /// segment was added or joined. Such a block is the rest of a segment that is cut from its front.
    pub(crate) fn unused_rest(&self, pool: PoolIndex, size: u64) -> Result<Option<BlockId>> {
        let mut found = None;
        self.visit_free(pool, size, |id| {
            if found.is_none() && self.blocks[id].requested == 0 {
                found = Some(id);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Returns the unmapped block of a pool that holds an address, or [`BlockId::NONE`].
    pub(crate) fn unmapped_at(&self, pool: PoolIndex, address: u64) -> BlockId {
        let holds = |id: &BlockId| self.blocks[*id].span().contains(address);
        self.pools[pool].unmapped.iter().map(|(_, id)| *id).find(holds).unwrap_or(BlockId::NONE)
    }

    /// Returns whether a pool has any segments.
    pub(crate) fn has_segments(&self, pool: PoolIndex) -> bool {
        self.home.segments().any(|(_, segment)| segment.pool == pool)
    }

    /// Returns a free block of a pool that is a whole segment of `size` bytes. No part of the segment was handed out
    /// since the segment was added or joined.
    pub(crate) fn empty_segment(&self, pool: PoolIndex, size: u64) -> Option<BlockId> {
        let mut id = self.best_fit(pool, size).some();
        while let Some(found) = id.filter(|id| self.blocks[*id].size == size) {
            if !self.blocks[found].is_split() && self.blocks[found].requested == 0 {
                return Some(found);
            }
            id = self.blocks.next_free(found).some();
        }
        None
    }

    /// Returns a free block of a pool that was never handed out, lies directly after a block of `size` bytes, and is
    /// larger than `size`. Such a block is the rest of a segment that is cut into blocks of `size` bytes.
    pub(crate) fn uncut_rest(&self, pool: PoolIndex, size: u64) -> Result<Option<BlockId>> {
        let mut found = None;
        self.visit_free(pool, size + 1, |id| {
            let Block { prev, requested, .. } = self.blocks[id];
            if found.is_none() && requested == 0 && prev.is_some() && self.blocks[prev].size == size {
                found = Some(id);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Cuts a block into at most `most` blocks of `size` bytes. The block must be in no index. The rest stays after
    /// these blocks as one block. Fewer blocks are cut if this rest would otherwise have a size to which the layout
    /// rounds requests, or if the host has no memory to note another block. Returns the first block. The others are
    /// free.
    pub(crate) fn cut_equally(&mut self, id: BlockId, size: u64, most: u64) -> BlockId {
        let block = self.blocks[id];
        let rest = |count: u64| block.size - count * size;
        let serves = |size: u64| self.rules.layout.rounding.round(size, &[0; ROUNDUP_INTERVALS]) == size;
        let all = block.size / size;
        let most = if all > most { (1..=most).rev().find(|count| !serves(rest(*count))).unwrap_or(most) } else { all };
        let (mut last, mut cuts) = (id, 0);
        while self.blocks[last].size > size && cuts < most {
            let Block { address, size: all, .. } = self.blocks[last];
            let rest = block.part(Span::new(address + size, all - size), State::Free);
            self.blocks[last].size = size;
            let Ok(rest) = self.blocks.insert_after(last, rest) else {
                self.blocks[last].size = all;
                break;
            };
            if last != id {
                self.blocks.insert_free(last);
            }
            last = rest;
            cuts += 1;
        }
        if last != id {
            self.blocks.insert_free(last);
        }
        self.count_cut(&block, cuts);
        id
    }
}

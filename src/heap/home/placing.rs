//! Cutting and joining of blocks by the heap's layout.
//!
//! Owns: what [`Merging`] and [`Placement`] do to blocks, and the parts of segments that were never used. Private pools with
//! segments of their own keep PyTorch's layout.

use super::segment::Backing;
use crate::config::rounding::ROUNDUP_INTERVALS;
use crate::error::Result;
use crate::fallible::TryPush;
use crate::heap::blocks::block::{Block, Kind, State};
use crate::heap::blocks::layout::{Merging, Placement};
use crate::heap::blocks::request::Request;
use crate::heap::blocks::starts::GRANULE;
use crate::heap::tables::Heap;
use crate::ids::{BlockId, Class, PoolIndex};
use crate::span::Span;

impl Heap {
    /// Cuts the request out of a block that is in no index. The rest becomes free. Returns the block of the request,
    /// which is larger than requested if the host has no memory to note the rest.
    pub(crate) fn place(&mut self, id: BlockId, request: &Request, placement: Placement) -> BlockId {
        match placement {
            Placement::Front => id,
            Placement::ByGranule => self.leave_front(id, request),
            Placement::Back => self.place_at_back(id, request.size),
            Placement::Halves => self.halve(id, request.size),
        }
    }

    /// Frees the front of a block that is in no index, by [`Placement::ByGranule`]. Returns the block behind the front.
    #[cold]
    pub(super) fn leave_front(&mut self, id: BlockId, request: &Request) -> BlockId {
        let block = self.blocks[id];
        let front = front_of(block.span(), request.size);
        if front == 0 || block.kind != Kind::Home || request.class == Class::Small {
            return id;
        }
        let behind = block.part(Span::new(block.address + front, block.size - front), block.state);
        self.blocks[id].size = front;
        let Ok(behind) = self.blocks.insert_after(id, behind) else {
            // The host has no memory to note the front: the request is placed at the front instead.
            self.blocks[id].size = block.size;
            return id;
        };
        self.blocks.insert_free(id);
        behind
    }

    fn place_at_back(&mut self, id: BlockId, size: u64) -> BlockId {
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

    fn halve(&mut self, id: BlockId, size: u64) -> BlockId {
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

    /// Counts all parts of a block that was cut as free: [`Heap::hand_out`] subtracts the part that it hands out.
    fn count_cut(&mut self, block: &Block, cuts: u64) {
        if cuts == 0 || block.kind != Kind::Malloc {
            return;
        }
        let class = block.pool.class();
        // `block` is the block before the cut. A block that was a whole segment did not count.
        let (more, bytes) = if block.is_split() { (cuts, 0) } else { (cuts + 1, block.size) };
        self.journal.inactive_split_added(class, more, bytes);
    }

    /// Returns the smallest block of a pool that has at least `size` bytes and was never handed out, since its segment came
    /// or was joined: the rest of a segment that is cut from its front.
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
        self.home.segments.iter().flatten().any(|segment| segment.pool == pool)
    }

    /// Returns a free block of a pool that is a whole segment of this size, of which nothing was handed out since it was
    /// joined.
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

    /// Returns a free block of a pool that was never handed out, lies behind a block of `size` bytes, and is larger: the rest
    /// of a segment that is cut into such blocks.
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

    /// Cuts a block that is in no index into blocks of `size` bytes, `most` of them, and a rest behind them. Fewer are
    /// cut if the rest would otherwise have a size that the layout gives to requests. Returns the first; the others are
    /// free. Blocks that the host has no memory to note stay one block.
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

    /// Makes one block of every segment whose blocks are all free, where free neighbours do not merge by themselves.
    ///
    /// # Errors
    /// The host has no memory for the list of segments. Nothing has changed.
    pub(crate) fn join_free_segments(&mut self) -> Result<()> {
        if self.rules.layout.merging != Merging::Never {
            return Ok(());
        }
        let mut heads = Vec::new();
        for segment in self.home.segments.iter().flatten() {
            let joins = matches!(segment.backing, Backing::Malloc) && self.merging_in(segment.pool) == Merging::Never;
            if joins && self.blocks[segment.head].next.is_some() && self.is_all_free(segment.head) {
                heads.try_push(segment.head)?;
            }
        }
        heads.into_iter().for_each(|head| self.join(head));
        Ok(())
    }

    /// Returns whether a block and all blocks behind it in its segment are free and of one pool.
    fn is_all_free(&self, head: BlockId) -> bool {
        let pool = self.blocks[head].pool;
        let mut chain = std::iter::successors(head.some(), |id| self.blocks[*id].next.some());
        chain.all(|id| self.blocks[id].state == State::Free && self.blocks[id].pool == pool)
    }

    /// Joins a block and all blocks behind it in its segment, which are free.
    fn join(&mut self, head: BlockId) {
        let class = self.blocks[head].pool.class();
        let mut blocks = 1;
        self.blocks.take_free(head);
        while let Some(next) = self.blocks[head].next.some() {
            self.blocks.take_free(next);
            self.blocks.absorb_next(head);
            blocks += 1;
        }
        self.blocks[head].requested = 0;
        self.journal.inactive_split_removed(class, blocks, self.blocks[head].size);
        self.blocks.insert_free(head);
    }

    /// Returns whether a segment has become free that is to be released to the driver.
    #[inline]
    pub(crate) fn is_release_due(&self) -> bool {
        self.home.release_due
    }

    /// Forgets that a segment to be released has become free.
    pub(crate) fn clear_release_due(&mut self) {
        self.home.release_due = false;
    }
}

/// Returns how many bytes of a free span stay free in front of a request, so that as many granules as possible stay
/// whole. A part of a granule serves views only at their ends, and no chunk can be split inside a granule.
/// ```text
/// granules          |      |      |      |      |
/// 2, odd start         ...............####[####]       ends at a border: at the end
/// 2, odd start         ....[####|####]............     else from the first border on
/// 1.5, odd end      |..............[####|##]           between two borders that it needs not, so at the odd end
/// ```
fn front_of(free: Span, size: u64) -> u64 {
    let is_odd = |at: u64| !at.is_multiple_of(GRANULE);
    let at_end = free.size - size;
    match (is_odd(free.start), is_odd(size), is_odd(free.end())) {
        (true, false, false) | (false, true, true) => at_end,
        (true, false, true) => {
            let front = free.start.next_multiple_of(GRANULE) - free.start;
            if front <= at_end { front } else { 0 }
        }
        _ => 0,
    }
}

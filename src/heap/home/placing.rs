//! Cutting and joining of blocks by the heap's layout.
//!
//! Owns: how [`Merging`] and [`Placement`] change blocks, and how segments are joined. Private pools with segments of
//! their own keep PyTorch's layout.

use super::segment::Backing;
use crate::error::Result;
use crate::fallible::TryPush;
use crate::heap::blocks::block::{Kind, State};
use crate::heap::blocks::layout::{Merging, Placement};
use crate::heap::blocks::request::Request;
use crate::heap::blocks::starts::GRANULE;
use crate::heap::tables::Heap;
use crate::ids::{BlockId, Class};
use crate::span::Span;

impl Heap {
    /// Cuts the request out of a block that is in no index. The rest becomes free. Returns the block of the request.
    /// This block is larger than requested if the host has no memory to note the rest.
    pub(crate) fn place(&mut self, id: BlockId, request: &Request, placement: Placement) -> BlockId {
        match placement {
            Placement::Front => id,
            Placement::ByGranule => self.leave_front(id, request),
            #[cfg(feature = "baselines")]
            Placement::Back => self.place_at_back(id, request.size),
            #[cfg(feature = "baselines")]
            Placement::Halves => self.halve(id, request.size),
        }
    }

    /// Frees the front of a block that is in no index, so that the request lies as [`Placement::ByGranule`] says.
    /// Returns the block after the front.
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
            // The host has no memory to note the front, so the request is placed at the front instead.
            self.blocks[id].size = block.size;
            return id;
        };
        self.blocks.insert_free(id);
        behind
    }

    /// Makes one block of every segment whose blocks are all free, if the layout does not merge neighbours at each
    /// free.
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

    /// Returns whether a block and all blocks after it in its segment are free and of one pool.
    fn is_all_free(&self, head: BlockId) -> bool {
        let pool = self.blocks[head].pool;
        let mut chain = std::iter::successors(head.some(), |id| self.blocks[*id].next.some());
        chain.all(|id| self.blocks[id].state == State::Free && self.blocks[id].pool == pool)
    }

    /// Joins a block and all blocks after it in its segment, which are free.
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

    /// Returns whether a segment that is to be released to the driver has become free.
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
/// whole. Whole granules are worth more: a part of a granule serves views only at their ends, and no chunk can be split
/// inside a granule. On the left: the request's size in granules; an `odd` address is no multiple of a granule.
/// ```text
/// granules          |      |      |      |      |
/// 2, odd start         ...............####[####]       ends at a border: at the end
/// 2, odd start         ....[####|####]............     else from the first border on
/// 1.5, odd end      |..............[####|##]           at the odd end: no other granule becomes partial
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

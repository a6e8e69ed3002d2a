//! Views that grow for one allocation. Parts are handed out at contiguous addresses, and are freed from the last part
//! on.
//!
//! Owns: how far such a view is handed out, and which chunks are still mapped after the parts. Each part is a live
//! block of its own, of whole chunks, so that all rules of stitched blocks hold for a part. `backing` makes the calls.
//!
//! ```text
//! reserved   |............................................|
//! chunks     |aaaa|bb|cc|dddddd|ee|                       |   mapped: the size of the view
//! parts      |1      |2 |                                 |   handed out: the extent; d, e are free, still mapped
//! ```

use super::view::{Extent, NewView, View};
use crate::error::{Error, Result};
use crate::fallible::TryPush;
use crate::heap::blocks::block::{Block, Freeing, Kind, Slots};
use crate::heap::notify::allocation_of;
use crate::heap::tables::Heap;
use crate::ids::{BlockId, ChunkId, PoolId, PoolIndex, ViewId};
use crate::report::observer::Action;
use crate::span::Span;

/// The free chunks that are mapped after the parts of a growing view.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// The chunks that follow the parts directly and can serve the request without being mapped again.
    pub(crate) kept: Vec<ChunkId>,
    /// The bytes of the kept chunks.
    pub(crate) bytes: u64,
    /// The number of chunks at the view's start that belong to the allocation's parts or to `kept`. The request uses no
    /// later chunk.
    pub(crate) before: usize,
}

impl Heap {
    /// Makes room for a view that grows, before its addresses are reserved.
    pub(crate) fn reserve_growing(&mut self) -> Result<NewView> {
        Ok(self.home.views.prepare(Vec::new())?)
    }

    /// Adds a view that grows. The view's addresses were reserved.
    pub(crate) fn add_growing(&mut self, reservation: Span, new: NewView) -> ViewId {
        self.journal.view_built(0);
        self.home.views.add_growing(reservation, new)
    }

    /// Returns an unused view that grew for an earlier allocation and has `capacity` to twice `capacity` bytes of
    /// addresses, or `None`. Of several such views, the smallest is returned. Of private pools, only `owner` has used
    /// (pinned) the view, or none if `owner` is [`PoolId::NONE`].
    pub(crate) fn spare_growing(&self, capacity: u64, owner: PoolId) -> Option<ViewId> {
        let fits = |view: &View| {
            let is_spare = view.growing.is_none() && view.serial == 0 && view.users == 0;
            is_spare && (capacity..=capacity.saturating_mul(2)).contains(&view.addresses)
        };
        let of_owner = |view: &View| match owner {
            PoolId::NONE => view.pins.is_empty(),
            owner => view.pins == [owner],
        };
        let fitting = self.home.views.iter().filter(|(_, view)| fits(view) && of_owner(view));
        fitting.min_by_key(|(id, view)| (view.addresses, *id)).map(|(id, _)| id)
    }

    /// Begins or ends the growth of a view. No part of the view is handed out.
    pub(crate) fn set_growing(&mut self, view: ViewId, grows: bool) {
        self.home.views.set_growing(view, grows.then(Extent::default));
    }

    /// Returns the view of a block that is a part of a growing allocation; `None` for any other block.
    pub(crate) fn grown_in(&self, id: BlockId) -> Option<&View> {
        let block = &self.blocks[id];
        if block.kind != Kind::View {
            return None;
        }
        self.home.views.get(block.view()).filter(|view| view.growing.is_some())
    }

    /// Notes that a live block is the next part of its view.
    pub(crate) fn begin_part(&mut self, id: BlockId) {
        self.blocks[id].freeing = Freeing::BySteps;
        self.count_part(id, true);
    }

    /// Notes that the last part of a growing allocation is about to be freed. With `ends` false, notes that the part
    /// stays after all.
    pub(crate) fn end_part(&mut self, id: BlockId, ends: bool) {
        self.count_part(id, !ends);
    }

    fn count_part(&mut self, id: BlockId, begins: bool) {
        let Some(Extent { bytes, parts }) = self.grown_in(id).and_then(|view| view.growing) else { return };
        let (view, size) = (self.blocks[id].view(), self.blocks[id].size);
        let extent = if begins {
            Extent { bytes: bytes + size, parts: parts + 1 }
        } else {
            Extent { bytes: bytes.saturating_sub(size), parts: parts.saturating_sub(1) }
        };
        self.home.views.set_growing(view, Some(extent));
    }

    /// Returns whether freed parts of a view still wait for streams. As long as they wait, no other block can lie at
    /// their addresses.
    pub(crate) fn has_pending_parts(&self, id: ViewId) -> bool {
        let view = self.home.views.get(id);
        view.is_some_and(|view| view.users > view.growing.map_or(0, |extent| extent.parts))
    }

    /// Returns the chunks mapped after the parts of a view. For a request of `size` bytes of a pool, the first of these
    /// chunks are kept in place, until they have `size` bytes or a chunk is not free for the pool.
    pub(crate) fn tail(&self, id: ViewId, size: u64, pool: PoolIndex) -> Result<Tail> {
        const BROKEN: Error = Error::Internal("a view that grows is gone");
        let (home, view) = self.home.map.as_ref().zip(self.home.views.get(id)).ok_or(BROKEN)?;
        let Extent { bytes: end, .. } = view.growing.ok_or(BROKEN)?;
        let mut tail = Tail::default();
        let mut at = 0;
        for (index, of) in view.chunks.iter().enumerate() {
            let chunk = home.chunk(*of);
            if at >= end {
                let free = |id| self.is_open(id, pool);
                let served = chunk.filter(|chunk| tail.bytes < size && self.blocks_over(chunk.span()).all(free));
                let Some(chunk) = served else { break };
                tail.kept.try_push(*of)?;
                tail.bytes += chunk.size;
            }
            at += chunk.map_or_else(|| view.hole_at(at), |chunk| chunk.size);
            tail.before = index + 1;
        }
        Ok(tail)
    }

    /// Returns the mapped spans after the first `before` chunks of a view, the last span first, each with the number of
    /// chunks before the span. The spans are offsets in the view.
    pub(crate) fn mapped_behind(&self, id: ViewId, before: usize) -> Result<Vec<(usize, Span)>> {
        let Some((home, view)) = self.home.map.as_ref().zip(self.home.views.get(id)) else { return Ok(Vec::new()) };
        let mut runs: Vec<(usize, Span)> = Vec::new();
        let (mut at, mut joins) = (0, false);
        for (index, of) in view.chunks.iter().enumerate() {
            let chunk = home.chunk(*of);
            let size = chunk.map_or_else(|| view.hole_at(at), |chunk| chunk.size);
            if index >= before && chunk.is_some() {
                match runs.last_mut().filter(|_| joins) {
                    Some((_, run)) => run.size += size,
                    None => runs.try_push((index, Span::new(at, size)))?,
                }
            }
            joins = index >= before && chunk.is_some();
            at += size;
        }
        runs.reverse();
        Ok(runs)
    }

    /// Notes that no chunk is mapped any more after the first `chunks` chunks of a view, which have `size` bytes.
    pub(crate) fn cut_tail(&mut self, id: ViewId, chunks: usize, size: u64) {
        let before = self.home.views.mappings();
        self.home.views.truncate(id, chunks, size);
        self.journal.mappings_removed((before - self.home.views.mappings()) as u64);
    }

    /// Makes room to map these chunks after the chunks of a view, and to hand them out, with the `kept` chunks, as the
    /// next part of the allocation.
    pub(crate) fn reserve_part(
        &mut self,
        id: ViewId,
        chunks: &[ChunkId],
        kept: &[ChunkId],
        pool: PoolIndex,
    ) -> Result<()> {
        self.home.views.reserve_chunks(id, chunks.len())?;
        self.home.views.reserve_use(id, pool.large())?;
        let parts = 2 + self.blocks_of(chunks) + self.blocks_of(kept);
        self.blocks.reserve(1 + 2 * parts).map(drop)
    }

    fn blocks_of(&self, chunks: &[ChunkId]) -> usize {
        let home = self.home.map.iter();
        let chunks = home.flat_map(|home| chunks.iter().filter_map(|chunk| home.chunk(*chunk)));
        chunks.map(|chunk| 1 + self.blocks_over(chunk.span()).count()).sum()
    }

    /// Notes that these chunks, `bytes` bytes together, were mapped after the chunks of a view.
    pub(crate) fn map_behind(&mut self, id: ViewId, chunks: &[ChunkId], bytes: u64) {
        self.home.views.append(id, chunks.iter().copied(), bytes);
        self.journal.mappings_added(chunks.len() as u64);
    }

    /// Makes two live blocks of a part. The second block begins `at` bytes after the start of the first, at the end of
    /// a chunk. Returns the second block. Observers are told of a free of the part and of two allocations.
    ///
    /// # Errors
    /// The host has no memory for the second block. Nothing has changed.
    pub(crate) fn split_part(&mut self, id: BlockId, at: u64) -> Result<BlockId> {
        let whole = self.blocks[id];
        let (view, pool) = (whole.view(), whole.pool);
        self.home.views.reserve_use(view, pool.large())?;
        self.blocks.reserve_live(1)?;
        let mut slots = self.blocks.reserve(3)?;
        let pieces = self.pieces_from(id, at, &mut slots);
        let (before, rest) = pieces.ok_or(Error::Internal("a part is split where it has no bytes"))?;
        self.blocks[before].right = BlockId::NONE;
        let span = Span::new(whole.address + at, whole.size - at);
        let second = Block { address: span.start, size: span.size, requested: span.size, left: rest, ..whole };
        let second = self.blocks.insert_reserved(&mut slots, second);
        (self.blocks[id].size, self.blocks[id].requested) = (at, at);
        self.blocks.add_live(span.start, second);
        self.home.views.used(view);
        self.journal.allocation_split(allocation_of(&whole), at);
        if let Some(Extent { bytes, parts }) = self.home.views.get(view).and_then(|view| view.growing) {
            self.home.views.set_growing(view, Some(Extent { bytes, parts: parts + 1 }));
        }
        let all = Span::new(whole.address, whole.requested);
        self.notify(Action::FreeRequested, all, pool);
        self.notify(Action::FreeCompleted, all, pool);
        self.notify_range(Action::SegmentLeft, Kind::View, whole.span(), pool);
        for span in [Span::new(whole.address, at), span] {
            self.notify_range(Action::SegmentJoined, Kind::View, span, pool);
            self.notify(Action::Alloc, span, pool);
        }
        Ok(second)
    }

    /// Returns the piece of a stitched block before an offset, and the piece that begins at the offset; `None` if a
    /// piece is missing. A piece across the offset is cut into two pieces.
    fn pieces_from(&mut self, id: BlockId, at: u64, slots: &mut Slots) -> Option<(BlockId, BlockId)> {
        let (mut before, mut piece, mut offset) = (BlockId::NONE, self.blocks[id].left, 0);
        while offset < at {
            let Block { address, size, right, .. } = self.blocks[piece.some()?];
            if offset + size > at {
                let first = Span::new(address, at - offset);
                // The rest of the cut piece is a piece too, and does not enter the free index.
                self.blocks.cut(piece, first, slots, |_, _| {});
                let rest = self.blocks[piece].next;
                self.blocks[rest].right = right;
                return Some((piece, rest));
            }
            offset += size;
            (before, piece) = (piece, right);
        }
        before.some().zip(piece.some())
    }

    /// Returns the offset in a view of the first end of a chunk at or after `size` bytes, or `None` if the view is
    /// shorter than `size`.
    pub(crate) fn chunk_end(&self, id: ViewId, size: u64) -> Option<u64> {
        let (home, view) = self.home.map.as_ref().zip(self.home.views.get(id))?;
        let mut at = 0;
        for of in &view.chunks {
            if at >= size {
                break;
            }
            at += home.chunk(*of).map_or_else(|| view.hole_at(at), |chunk| chunk.size);
        }
        (at >= size).then_some(at)
    }
}

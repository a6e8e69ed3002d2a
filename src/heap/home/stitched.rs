//! Stitched blocks, which are handed out through views. This file takes the pieces of such blocks out of home and gives
//! them back.
//!
//! Owns: the accounting of stitched blocks, and of the slabs that small blocks share. The bytes of a stitched block are
//! counted at home, in pieces. The view only maps these bytes.

use super::chunk_map::Chunk;
use super::view::{NewView, PlanHash, View, hole_at};
use crate::config::rounding::MIN_BLOCK;
use crate::error::{Error, Result};
use crate::fallible::TryPush;
use crate::heap::blocks::block::{Block, Kind, State};
use crate::heap::blocks::starts::GRANULE;
use crate::heap::tables::Heap;
use crate::ids::{BlockId, ChunkId, Class, PoolIndex, ViewId};
use crate::report::observer::Action;
use crate::span::Span;

/// A place in a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) view: ViewId,
    pub(crate) offset: u64,
}

impl Heap {
    /// Returns whether a request of a large pool may take a block without a wait.
    pub(crate) fn is_open(&self, id: BlockId, pool: PoolIndex) -> bool {
        let block = &self.blocks[id];
        // A slab for small blocks serves large requests only whole.
        block.state == State::Free
            && (block.pool == pool
                || (block.size == GRANULE && block.pool == pool.small())
                || (self.takes_idle(pool)
                    && (block.pool == self.pools.idle()
                        || (block.size == GRANULE && block.pool == self.pools.idle().small()))))
    }

    /// Returns whether a large pool may take a whole block: free memory of the pool, or idle memory.
    #[inline]
    pub(crate) fn is_large_and_open(&self, id: BlockId, pool: PoolIndex) -> bool {
        let block = &self.blocks[id];
        block.state == State::Free && (block.pool == pool || block.pool == self.pools.idle())
    }

    /// Returns how many contiguous bytes at the chunk's start lie in blocks for which `open` returns `true`.
    fn free_head(&self, chunk: &Chunk, open: impl Fn(BlockId) -> bool) -> u64 {
        let mut id = self.covering(chunk.address);
        let mut end = chunk.address;
        while end < chunk.end() && open(id) {
            end = self.blocks[id].end();
            id = self.blocks[id].next;
        }
        end.min(chunk.end()) - chunk.address
    }

    /// Returns how many contiguous bytes at the chunk's end lie in blocks for which `open` returns `true`.
    fn free_tail(&self, chunk: &Chunk, open: impl Fn(BlockId) -> bool) -> u64 {
        let mut id = self.covering(chunk.end() - 1);
        let mut start = chunk.end();
        while start > chunk.address && open(id) {
            start = self.blocks[id].address;
            id = self.blocks[id].prev;
        }
        chunk.end() - start.max(chunk.address)
    }

    /// Returns the first place in a view with `size` contiguous bytes in blocks for which `open` returns `true`, or
    /// `None`.
    pub(crate) fn window(&self, view: ViewId, size: u64, open: impl Fn(BlockId) -> bool) -> Option<Window> {
        let home = self.home.map.as_ref()?;
        let View { chunks, size: whole, .. } = self.home.views.get(view)?;
        let mut run = None;
        let mut at = 0;
        for chunk in chunks {
            if run.unwrap_or(at) + size > *whole {
                return None;
            }
            let chunk = home.chunk(*chunk)?;
            let head = self.free_head(&chunk, &open);
            let start = if head > 0 { *run.get_or_insert(at) } else { at };
            if run.is_some() && at + head - start >= size {
                return Some(Window { view, offset: start });
            }
            if head < chunk.size {
                let tail = self.free_tail(&chunk, &open);
                run = (tail > 0).then_some(at + chunk.size - tail);
            }
            at += chunk.size;
        }
        None
    }

    /// Returns the spans of home that are mapped in the first `size` bytes of a window of a view.
    pub(crate) fn spans_of(&self, window: Window, size: u64) -> Result<Vec<Span>> {
        let mut spans = Vec::new();
        let Some((home, view)) = self.home.map.as_ref().zip(self.home.views.get(window.view)) else { return Ok(spans) };
        let (mut at, end) = (0, window.offset + size);
        for chunk in view.chunks.iter().map_while(|chunk| home.chunk(*chunk)) {
            let (from, to) = (window.offset.max(at), end.min(at + chunk.size));
            if from < to {
                spans.try_push(Span::new(chunk.address + from - at, to - from))?;
            }
            at += chunk.size;
        }
        Ok(spans)
    }

    /// Makes room for a view over these chunks, before the view is built.
    pub(crate) fn reserve_view(&mut self, chunks: Vec<ChunkId>) -> Result<NewView> {
        Ok(self.home.views.prepare(chunks)?)
    }

    /// Makes room for `more` holes in a view.
    pub(crate) fn reserve_holes(&mut self, view: ViewId, more: usize) -> Result<()> {
        Ok(self.home.views.reserve_holes(view, more)?)
    }

    /// Adds a view that was built. The view's chunks are mapped at contiguous addresses.
    pub(crate) fn add_view(&mut self, span: Span, new: NewView, plan: Option<PlanHash>) -> ViewId {
        let mappings = self.home.views.mappings();
        let view = self.home.views.add(span.start, span.size, new);
        self.journal.view_built((self.home.views.mappings() - mappings) as u64);
        if let Some(plan) = plan {
            self.home.views.remember(plan, view);
        }
        view
    }

    /// Serves a request with an existing view. Returns the block.
    pub(crate) fn reuse_view(
        &mut self,
        window: Window,
        size: u64,
        pool: PoolIndex,
        plan: Option<PlanHash>,
    ) -> Result<BlockId> {
        let id = self.take_window(window, size, pool)?;
        self.journal.view_reused();
        if let Some(plan) = plan {
            self.home.views.remember(plan, window.view);
        }
        Ok(id)
    }

    /// Notes that a chunk was unmapped from a view. `index` is the chunk's number in the view, and `hole` the chunk's
    /// bytes in the view. The view serves no more requests.
    pub(crate) fn cut_view(&mut self, view: ViewId, index: usize, hole: Span) {
        self.home.views.cut(view, index, hole);
        self.journal.mappings_removed(1);
    }

    /// Notes that all chunks of a view were unmapped. The view's addresses are not given back yet.
    pub(crate) fn unmapped_view(&mut self, view: ViewId, mappings: usize) {
        self.home.views.forget_chunks(view);
        self.journal.mappings_removed(mappings as u64);
    }

    /// Removes a view whose addresses were given back.
    pub(crate) fn remove_view(&mut self, view: ViewId) {
        self.home.views.remove(view);
        self.journal.view_dropped();
    }

    /// Takes `size` free bytes of a view, and cuts their pieces out of home. Returns a block of `size` bytes.
    ///
    /// # Errors
    /// The host has no memory for the blocks. Nothing has changed.
    pub(crate) fn take_window(&mut self, window: Window, size: u64, pool: PoolIndex) -> Result<BlockId> {
        const BROKEN: Error = Error::Internal("a view over a chunk that is gone");
        self.home.views.reserve_use(window.view, pool.large())?;
        let view = self.home.views.get(window.view).ok_or(BROKEN)?;
        let (address, count) = (view.address + window.offset, view.chunks.len());
        let parts = self.parts_of(&view.chunks, &view.holes, window.offset, size);
        let mut slot = self.blocks.reserve(1 + 2 * parts)?;
        let block = Block::in_view(Span::new(address, size), pool, window.view);
        let id = self.blocks.insert_reserved(&mut slot, block);
        let mut last = BlockId::NONE;
        let (mut at, end) = (0, window.offset + size);
        // Chunks that are neighbours both in the view and at home become one piece.
        let mut piece = Span::default();
        for index in 0..count {
            let view = self.home.views.get(window.view).ok_or(BROKEN)?;
            let chunk = view.chunks.get(index).and_then(|chunk| self.home.map.as_ref()?.chunk(*chunk));
            let Some(chunk) = chunk else {
                // A hole lies outside of the window.
                at += view.hole_at(at);
                continue;
            };
            let from = window.offset.max(at);
            let to = end.min(at + chunk.size);
            if from < to {
                let start = chunk.address + from - at;
                if piece.end() != start {
                    last = self.take_piece(id, last, piece, pool)?;
                    piece = Span::new(start, 0);
                }
                piece.size += to - from;
            }
            at += chunk.size;
        }
        self.take_piece(id, last, piece, pool)?;
        self.notify_range(Action::SegmentJoined, Kind::View, Span::new(address, size), pool);
        self.home.views.used(window.view);
        Ok(id)
    }

    /// Makes room for [`Self::take_window`] in a view over these chunks, before the view is built. Once a view maps
    /// memory that was created for the request, the request must not fail, since memory that a view maps could not be
    /// given back.
    pub(crate) fn reserve_window(&mut self, chunks: &[ChunkId], offset: u64, size: u64) -> Result<()> {
        let parts = self.parts_of(chunks, &[], offset, size);
        self.blocks.reserve(1 + 2 * parts).map(drop)
    }

    /// Returns a bound on the number of blocks that these bytes of a view take: one for each chunk, and one for each
    /// block in a chunk.
    fn parts_of(&self, chunks: &[ChunkId], holes: &[Span], offset: u64, size: u64) -> usize {
        let Some(home) = &self.home.map else { return 0 };
        let (mut at, end, mut parts) = (0, offset + size, 0);
        for chunk in chunks.iter().map(|chunk| home.chunk(*chunk)) {
            let Some(chunk) = chunk else {
                at += hole_at(holes, at);
                continue;
            };
            let (from, to) = (offset.max(at), end.min(at + chunk.size));
            if from < to {
                let mut id = self.covering(chunk.address + from - at);
                let last = chunk.address + to - at;
                parts += 1;
                while id.is_some() && self.blocks[id].end() < last {
                    parts += 1;
                    id = self.blocks[id].next;
                }
            }
            at += chunk.size;
        }
        parts
    }

    /// Cuts a span out of home, as pieces of a block that follow the block's piece `last`. Returns the last new piece.
    fn take_piece(&mut self, id: BlockId, mut last: BlockId, span: Span, pool: PoolIndex) -> Result<BlockId> {
        let (mut from, mut missing) = (span.start, span.size);
        while missing > 0 {
            let free = self.covering(from);
            let part = missing.min(self.blocks[free].end().saturating_sub(from));
            if !self.is_open(free, pool) || part == 0 {
                return Err(Error::Internal("a piece of a view is not free"));
            }
            if self.blocks[free].pool == self.pools.idle().small() && part < self.blocks[free].size {
                // The whole idle slab goes to the request's small pool, even if only a part is needed: a remainder left
                // in the idle pool could never merge with that part again.
                self.hand_over(free, pool.small());
            }
            let part = Span::new(from, part);
            let piece = self.blocks.carve(free, part)?;
            self.notify_range(Action::SegmentLeft, Kind::Home, part, self.blocks[piece].pool);
            self.blocks[piece].state = State::Piece;
            self.blocks[piece].pool = pool;
            if last.is_none() {
                self.blocks[id].left = piece;
            } else {
                self.blocks[last].right = piece;
            }
            last = piece;
            from += part.size;
            missing -= part.size;
        }
        Ok(last)
    }

    /// Gives the pieces of a block back to home. The view stays.
    pub(in crate::heap) fn return_pieces(&mut self, id: BlockId) {
        let Block { left, pool, .. } = self.blocks[id];
        let (view, span) = (self.blocks[id].view(), self.blocks[id].span());
        self.notify_range(Action::SegmentLeft, Kind::View, span, pool);
        let mut piece = left;
        while piece.is_some() {
            let next = std::mem::replace(&mut self.blocks[piece].right, BlockId::NONE);
            let span = self.blocks[piece].span();
            let slab = self.home.map.as_ref().is_some_and(|home| home.is_slab(span.start));
            self.blocks[piece].pool = if slab { pool.small() } else { pool };
            self.notify_range(Action::SegmentJoined, Kind::Home, span, self.blocks[piece].pool);
            self.free_bytes(piece);
            piece = next;
        }
        let stream = pool.large();
        let epoch = self.pools[stream].epoch;
        self.home.views.freed(view, stream, epoch);
        self.blocks.remove(id);
    }

    /// Returns whether any of the first `size` bytes of a block lie in a chunk that is not mapped at home.
    #[inline]
    pub(crate) fn is_bare(&self, id: BlockId, size: u64) -> bool {
        self.home.map.as_ref().is_some_and(|home| home.is_bare(self.blocks[id].address, size))
    }

    /// Returns whether no block uses a view, no private pool pins it, the view does not grow, and the GPU has passed
    /// all its uses.
    pub(crate) fn is_done_with(&self, view: &View) -> bool {
        view.users == 0 && view.pins.is_empty() && view.growing.is_none() && self.has_passed(view)
    }

    /// Returns whether the GPU has passed all uses of a view that have ended. Uses by private pools do not count: a
    /// part that a private pool used still belongs to that pool, which pins the view.
    pub(crate) fn has_passed(&self, view: &View) -> bool {
        let passed = |(stream, epoch): &(PoolIndex, u64)| *epoch < self.pools[*stream].passed;
        view.last_uses.iter().all(|of| self.is_private(of.0) || passed(of))
    }

    /// Returns the latest epoch in which a part of a chunk was freed; `None` unless the whole chunk is free and every
    /// stream has passed the chunk.
    pub(crate) fn freed_at(&self, chunk: &Chunk) -> Option<u64> {
        let mut latest = 0;
        let mut classes = [false; 2];
        for id in self.blocks_over(chunk.span()) {
            let Block { state, pool, freed_at, .. } = self.blocks[id];
            classes[pool.class() as usize] = true;
            let large = pool.large();
            // Memory with epoch 0 was never used, so it counts as passed.
            let passed = large == self.pools.idle() || freed_at == 0 || freed_at < self.pools[large].passed;
            // Memory of a private pool stays in the pool.
            if state != State::Free || !passed || self.is_private(pool) {
                return None;
            }
            latest = latest.max(freed_at);
        }
        // Large and small memory never become one block.
        (classes != [true; 2]).then_some(latest)
    }

    /// Makes idle all free memory that streams have at home, whole slabs included. The GPU has passed all work.
    pub(crate) fn make_all_idle(&mut self) -> Result<()> {
        for large in self.pairs() {
            if self.is_of_stream(large) {
                self.make_passed_idle(large, u64::MAX)?;
            }
        }
        Ok(())
    }

    /// Makes idle the memory that a stream freed before an epoch: large ranges, and slabs that are wholly free.
    ///
    /// # Errors
    /// The host has no memory for a list of blocks. Memory that became idle before the error stays idle.
    pub(crate) fn make_passed_idle(&mut self, large: PoolIndex, epoch: u64) -> Result<()> {
        // Of small memory, only whole slabs become idle.
        for (pool, idle, min_size) in
            [(large, self.pools.idle(), 0), (large.small(), self.pools.idle().small(), GRANULE)]
        {
            let mut passed = Vec::new();
            self.visit_free(pool, min_size, |id| {
                let is_passed = self.blocks[id].kind == Kind::Home && self.blocks[id].freed_at < epoch;
                if is_passed { passed.try_push(id) } else { Ok(()) }
            })?;
            for id in passed {
                self.hand_over(id, idle);
            }
        }
        Ok(())
    }

    /// Joins a run of the pool's own free blocks and idle blocks, beginning with `first`, into one free block of at
    /// least `size` bytes. The run takes no more idle bytes than needed, since the pool keeps the bytes that it takes
    /// until the GPU has passed their use.
    pub(crate) fn join_run(&mut self, first: BlockId, pool: PoolIndex, size: u64) -> Result<BlockId> {
        let start = self.blocks[first].address;
        let mut id = first;
        loop {
            if self.blocks[id].pool == self.pools.idle() {
                let missing = size.saturating_sub(self.blocks[id].address - start);
                let part = self.blocks.part_of(id, missing.next_multiple_of(MIN_BLOCK))?;
                // Every stream has passed idle memory.
                self.blocks[part].freed_at = 0;
                id = self.hand_over(part, pool);
            }
            if self.blocks[id].end() - start >= size {
                return Ok(id);
            }
            id = self.blocks[id].next;
        }
    }

    /// Joins a span of home into one block of idle memory. The whole span is free, and every stream has passed the
    /// span. Returns the block, which may be larger than the span.
    pub(crate) fn gather_span(&mut self, span: Span) -> Result<BlockId> {
        let mut at = span.start;
        while at < span.end() && self.block_around(span).is_none() {
            let id = self.covering(at);
            let Block { pool, .. } = self.blocks[id];
            let end = self.blocks[id].end().clamp(at, span.end());
            let part = self.blocks.carve(id, Span::between(at, end))?;
            self.blocks.insert_free(part);
            self.hand_over(part, self.pools.idle().of(pool.class()));
            at = end;
        }
        self.block_around(span).ok_or(Error::Internal("free memory is not of one kind"))
    }

    /// Returns a wholly free slab to the large pool, if the slab was made of 2 MiB of large memory. A chunk that was
    /// placed as a slab stays a slab.
    pub(in crate::heap) fn return_slab(&mut self, id: BlockId) {
        let Block { address, size, pool, .. } = self.blocks[id];
        if size != GRANULE || self.home.map.as_ref().is_none_or(|home| home.is_slab(address)) {
            return;
        }
        self.recount(address, size, Class::Small, Class::Large);
        self.hand_over(id, pool.large());
    }

    /// Makes a slab for small blocks out of 2 MiB of large memory. The block of this memory is not in the index.
    pub(crate) fn make_slab(&mut self, id: BlockId, pool: PoolIndex) {
        self.assign(id, pool);
        self.recount(self.blocks[id].address, GRANULE, Class::Large, Class::Small);
    }

    /// Moves a part of a chunk from the figures of one class to the figures of another class.
    fn recount(&mut self, address: u64, size: u64, from: Class, to: Class) {
        let chunk = self.home.map.as_ref().and_then(|home| home.chunk_at(address)).map(|(_, chunk)| chunk);
        let elsewhere = match chunk {
            Some(chunk) if chunk.asleep => Some(&mut self.home.asleep),
            Some(chunk) if chunk.spilled => Some(&mut self.home.spilling.bytes),
            _ => None,
        };
        if let Some(bytes) = elsewhere {
            bytes[from as usize] -= size;
            bytes[to as usize] += size;
        } else {
            self.journal.reclassified(size, from, to);
        }
    }

    /// Takes a free slab out of the index for another pool of small blocks.
    pub(crate) fn take_slab(&mut self, id: BlockId, pool: PoolIndex) {
        self.blocks.take_free(id);
        self.assign(id, pool);
    }
}

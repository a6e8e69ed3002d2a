//! Blocks that are handed out through views: their pieces of home, taken and given back.
//!
//! Owns: the accounting of stitched blocks. Their bytes are counted at home, in pieces; the view only maps them.

use super::Heap;
use crate::blocks::{Block, BlockId, Kind, State};
use crate::error::{Error, Result};
use crate::home::{Chunk, GRANULE};
use crate::observer::Action;
use crate::rounding::MIN_BLOCK;
use crate::stats::Class;
use crate::views::{View, ViewId};

/// Bytes of a view: where they begin, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) view: ViewId,
    pub(crate) offset: u64,
}

impl Heap {
    /// Whether a request of a large pool may take the block at once.
    pub(crate) fn is_open(&self, id: BlockId, pool: u32) -> bool {
        let block = &self.blocks[id];
        // Slabs for small blocks serve large ones only whole.
        block.state == State::Free
            && (block.pool == pool
                || block.pool == self.idle
                || (block.size == GRANULE && (block.pool == pool + 1 || block.pool == self.idle + 1)))
    }

    /// How many bytes from the chunk's start are free for the pool.
    fn free_head(&self, chunk: &Chunk, pool: u32) -> u64 {
        let Some(home) = &self.home else { return 0 };
        let mut id = home.covering(&self.blocks, chunk.address);
        let mut end = chunk.address;
        while end < chunk.end() && self.is_open(id, pool) {
            end = self.blocks[id].end();
            id = self.blocks[id].next;
        }
        end.min(chunk.end()) - chunk.address
    }

    /// How many bytes at the chunk's end are free for the pool.
    fn free_tail(&self, chunk: &Chunk, pool: u32) -> u64 {
        let Some(home) = &self.home else { return 0 };
        let mut id = home.covering(&self.blocks, chunk.end() - 1);
        let mut start = chunk.end();
        while start > chunk.address && self.is_open(id, pool) {
            start = self.blocks[id].address;
            id = self.blocks[id].prev;
        }
        chunk.end() - start.max(chunk.address)
    }

    /// Where in a view `size` free bytes lie one behind the other.
    pub(crate) fn window(&self, view: ViewId, size: u64, pool: u32) -> Option<Window> {
        let home = self.home.as_ref()?;
        let View { chunks, size: whole, .. } = self.views.get(view)?;
        let mut run = None;
        let mut at = 0;
        for chunk in chunks {
            if run.unwrap_or(at) + size > *whole {
                return None;
            }
            let chunk = home.chunk(*chunk)?;
            let head = self.free_head(&chunk, pool);
            let start = if head > 0 { *run.get_or_insert(at) } else { at };
            if run.is_some() && at + head - start >= size {
                return Some(Window { view, offset: start });
            }
            if head < chunk.size {
                let tail = self.free_tail(&chunk, pool);
                run = (tail > 0).then_some(at + chunk.size - tail);
            }
            at += chunk.size;
        }
        None
    }

    /// Takes `size` bytes of a view: a block of that size, with its pieces cut out of home. They must be free. Allocates
    /// nothing beyond slots of the block table.
    pub(crate) fn take_window(&mut self, window: Window, size: u64, pool: u32) -> Result<BlockId> {
        const BROKEN: Error = Error::Internal("a view over a chunk that is gone");
        let view = self.views.get(window.view).ok_or(BROKEN)?;
        let (address, count) = (view.address + window.offset, view.chunks.len());
        let block = Block::new(address, size, pool, window.view.0, Kind::View, State::Free);
        let id = self.blocks.insert(block).ok_or(Error::Internal("the block table is full"))?;
        let mut last = BlockId::NONE;
        let (mut at, end) = (0, window.offset + size);
        // Neighbours in the view that are neighbours at home too are one piece.
        let mut piece = (0, 0);
        for index in 0..count {
            let chunk = self.views.get(window.view).and_then(|view| view.chunks.get(index)).copied();
            let chunk = chunk.and_then(|chunk| self.home.as_ref()?.chunk(chunk)).ok_or(BROKEN)?;
            let from = window.offset.max(at);
            let to = end.min(at + chunk.size);
            if from < to {
                let start = chunk.address + from - at;
                if piece.0 + piece.1 != start {
                    last = self.take_piece(id, last, piece, pool)?;
                    piece = (start, 0);
                }
                piece.1 += to - from;
            }
            at += chunk.size;
        }
        self.take_piece(id, last, piece, pool)?;
        self.emit_range(Action::SegmentJoined, Kind::View, (address, size), pool);
        self.views.used(window.view);
        Ok(id)
    }

    /// Cuts a stretch out of home, address and bytes, as pieces of a block behind its `last`. The last of them.
    fn take_piece(
        &mut self,
        id: BlockId,
        mut last: BlockId,
        (mut from, mut missing): (u64, u64),
        pool: u32,
    ) -> Result<BlockId> {
        while missing > 0 {
            let free = self.home.as_ref().map_or(BlockId::NONE, |home| home.covering(&self.blocks, from));
            let part = missing.min(self.blocks[free].end().saturating_sub(from));
            if !self.is_open(free, pool) || part == 0 {
                return Err(Error::Internal("a piece of a view is not free"));
            }
            if self.blocks[free].pool == self.idle + 1 && part < self.blocks[free].size {
                // The rest of an idle slab goes along, or the two would never meet in one pool again.
                self.hand_over(free, pool + 1);
            }
            let piece = self.carve(free, from, part)?;
            self.emit_range(Action::SegmentLeft, Kind::Home, (from, part), self.blocks[piece].pool);
            self.blocks[piece].state = State::Piece;
            self.blocks[piece].pool = pool;
            if last.is_none() {
                self.blocks[id].left = piece;
            } else {
                self.blocks[last].right = piece;
            }
            last = piece;
            from += part;
            missing -= part;
        }
        Ok(last)
    }

    /// Whether any of the first `size` bytes of a block lie in a chunk that is not mapped at home.
    #[inline]
    pub(crate) fn is_bare(&self, id: BlockId, size: u64) -> bool {
        self.home.as_ref().is_some_and(|home| home.is_bare(self.blocks[id].address, size))
    }

    /// The block at the start of a segment.
    pub(crate) fn head_of(&self, segment: u32) -> BlockId {
        self.segments.get(segment as usize).and_then(Option::as_ref).map_or(BlockId::NONE, |segment| segment.head)
    }

    /// Whether nobody uses a view, and the GPU has passed all uses of it.
    pub(crate) fn is_done_with(&self, view: &View) -> bool {
        view.users == 0 && view.pins.is_empty() && self.has_passed(view)
    }

    /// Whether the GPU has passed all uses of a view that are over. Private pools are left out: the parts that they have
    /// used are theirs still, and pinned.
    pub(crate) fn has_passed(&self, view: &View) -> bool {
        let passed = |(stream, epoch): &(u32, u64)| *epoch < self.pools[*stream as usize].passed;
        view.last_uses.iter().all(|of| self.is_private(of.0) || passed(of))
    }

    /// Every stream has passed everything: what is free at home belongs to all, whole slabs included.
    pub(crate) fn make_all_idle(&mut self) {
        for large in self.stream_pools().collect::<Vec<_>>() {
            self.make_passed_idle(large, u64::MAX);
        }
    }

    /// What a stream freed before an epoch belongs to all: large ranges, and slabs that are wholly free. Whether there
    /// was any.
    pub(crate) fn make_passed_idle(&mut self, large: u32, epoch: u64) -> bool {
        let mut any = false;
        // Of small memory whole slabs.
        for (pool, idle, least) in [(large, self.idle, 0), (large + 1, self.idle + 1, GRANULE)] {
            let mut passed = Vec::new();
            self.pools[pool as usize].free.visit_from(&self.blocks, least, |id| {
                if self.blocks[id].kind == Kind::Home && self.blocks[id].freed_at < epoch {
                    passed.push(id);
                }
            });
            any |= !passed.is_empty();
            for id in passed {
                self.hand_over(id, idle);
            }
        }
        any
    }

    /// A free block moves to another pool, and merges there. The block that it is part of then.
    pub(crate) fn hand_over(&mut self, id: BlockId, pool: u32) -> BlockId {
        self.take_free(id);
        self.assign(id, pool);
        let (id, ..) = self.merge_free(id);
        self.index(id);
        id
    }

    /// Makes one free block of a pool, of at least `size` bytes, out of a run of its own and idle ones that begins with
    /// `first`. Of the idle ones it takes no more than is needed, since the pool keeps them until the GPU has passed.
    pub(crate) fn join_run(&mut self, first: BlockId, pool: u32, size: u64) -> Result<BlockId> {
        let start = self.blocks[first].address;
        let mut id = first;
        loop {
            if self.blocks[id].pool == self.idle {
                let missing = size.saturating_sub(self.blocks[id].address - start);
                let part = self.part_of(id, missing.next_multiple_of(MIN_BLOCK))?;
                // Every stream has passed it.
                self.blocks[part].freed_at = 0;
                id = self.hand_over(part, pool);
            }
            if self.blocks[id].end() - start >= size {
                return Ok(id);
            }
            id = self.blocks[id].next;
        }
    }

    /// The first `size` bytes of a free block as a free block of their own, if it has more.
    pub(crate) fn part_of(&mut self, id: BlockId, size: u64) -> Result<BlockId> {
        if self.blocks[id].size <= size {
            return Ok(id);
        }
        let part = self.carve(id, self.blocks[id].address, size)?;
        self.index(part);
        Ok(part)
    }

    /// Cuts `[from, from + size)` out of a free block; the rest stays in the index.
    pub(crate) fn carve(&mut self, id: BlockId, from: u64, size: u64) -> Result<BlockId> {
        self.take_free(id);
        self.cut(id, from, size, Self::index)
    }

    /// Gives the pieces of a block back to home; the view stays.
    pub(super) fn dissolve(&mut self, id: BlockId) {
        let Block { left, pool, segment, address, size, .. } = self.blocks[id];
        self.emit_range(Action::SegmentLeft, Kind::View, (address, size), pool);
        let mut piece = left;
        while piece.is_some() {
            let next = std::mem::replace(&mut self.blocks[piece].right, BlockId::NONE);
            let slab = self.home.as_ref().is_some_and(|home| home.is_slab(self.blocks[piece].address));
            let Block { address, size, .. } = self.blocks[piece];
            self.blocks[piece].pool = if slab { pool | 1 } else { pool };
            self.emit_range(Action::SegmentJoined, Kind::Home, (address, size), self.blocks[piece].pool);
            self.release(piece);
            piece = next;
        }
        let stream = pool & !1;
        let epoch = self.pools[stream as usize].epoch;
        self.views.freed(ViewId(segment), stream, epoch);
        self.blocks.remove(id);
    }

    /// Idle ranges merge with all: those beside a block that is about to become free join its pool, and what of that
    /// pool lies beyond them.
    pub(super) fn adopt_idle(&mut self, id: BlockId) {
        let Block { prev, next, pool, .. } = self.blocks[id];
        if pool & 1 == 1 {
            return;
        }
        for beside in [prev, next] {
            let idle = self.blocks[beside].state == State::Free && self.blocks[beside].pool == self.idle;
            // What a private pool has it keeps: it shall not have more than it asked for.
            if idle && !self.is_private(pool) {
                self.hand_over(beside, pool);
            }
        }
    }

    /// 2 MiB of large memory that a slab was made of go back to the large pool once they are wholly free; what was placed
    /// as a slab stays one.
    pub(super) fn return_slab(&mut self, id: BlockId) {
        let Block { address, size, pool, .. } = self.blocks[id];
        if size != GRANULE || self.home.as_ref().is_none_or(|home| home.is_slab(address)) {
            return;
        }
        self.counters.reserved_bytes.sub(Class::Small, size);
        self.counters.reserved_bytes.add(Class::Large, size);
        self.hand_over(id, pool & !1);
    }

    /// Makes 2 MiB of large memory that are not in the index a slab for small blocks.
    pub(crate) fn make_slab(&mut self, id: BlockId, pool: u32) {
        self.assign(id, pool);
        self.counters.reserved_bytes.sub(Class::Large, GRANULE);
        self.counters.reserved_bytes.add(Class::Small, GRANULE);
    }
}

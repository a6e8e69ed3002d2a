//! A live block becomes a free one: requested, completed, merged with its neighbours, indexed.
//!
//! Owns: split and merge of free blocks, and the moves of a free block from pool to pool.

use super::block::{Block, Freeing, Kind, Slots, State};
use super::chunk_map::GRANULE;
use super::counters::Counter;
use super::flight::Entry;
use super::layout::Merging;
use super::tables::Heap;
use crate::error::Result;
use crate::ids::{BlockId, Class, PoolIndex};
use crate::report::observer::Action;
use crate::span::Span;

impl Heap {
    /// Notes that the program frees an allocation that was taken out of the address table. The block is no longer
    /// allocated, but still active.
    pub(crate) fn free_requested(&mut self, id: BlockId) {
        self.count_requested(id);
        let Block { address, requested, pool, .. } = self.blocks[id];
        self.notify(Action::FreeRequested, Span::new(address, requested), pool);
    }

    /// Frees an allocation that was taken out of the address table, and with which every stream has finished.
    #[inline(always)]
    pub(crate) fn free_at_once(&mut self, id: BlockId) {
        self.count_requested(id);
        let Block { address, requested, pool, .. } = self.blocks[id];
        self.tell(Entry::freed(address, requested, pool));
        self.complete(id);
    }

    #[inline(always)]
    fn count_requested(&mut self, id: BlockId) {
        let Block { size, pool, .. } = self.blocks[id];
        let class = pool.class();
        self.counters.allocation.sub(class, 1);
        self.counters.allocated_bytes.sub(class, size);
        if size >= self.rules.oversize_from {
            self.counters.oversize_allocations.sub(Class::Large, 1);
        }
    }

    /// Frees a block that every stream has finished with: it merges with its free neighbours and can be handed out
    /// again.
    pub(crate) fn free_completed(&mut self, id: BlockId) {
        self.passed_spilled(id);
        let Block { address, requested, pool, .. } = self.blocks[id];
        self.notify(Action::FreeCompleted, Span::new(address, requested), pool);
        self.complete(id);
    }

    #[inline(never)]
    fn complete(&mut self, id: BlockId) {
        let Block { size, requested, pool, kind, .. } = self.blocks[id];
        let class = pool.class();
        self.counters.active.sub(class, 1);
        self.counters.active_bytes.sub(class, size);
        self.counters.requested_bytes.sub(class, requested);
        match kind {
            Kind::Malloc => {
                let (id, merged, merged_bytes) = self.free_bytes(id);
                // PyTorch counts the net change of one event, not each merged neighbour.
                let (added, added_bytes) = if self.blocks[id].is_split() {
                    (1, self.blocks[id].size)
                } else {
                    self.gives_back |= self.blocks[id].size >= self.rules.layout.gives_back_from;
                    (0, 0)
                };
                net(&mut self.counters.inactive_split, class, added, merged);
                net(&mut self.counters.inactive_split_bytes, class, added_bytes, merged_bytes);
            }
            Kind::Expandable => {
                self.free_bytes(id);
            }
            Kind::Home => {
                let (id, ..) = self.free_bytes(id);
                if class == Class::Small {
                    self.return_slab(id);
                }
            }
            Kind::View => self.return_pieces(id),
            Kind::Guarded => self.retire(id),
        }
    }

    /// Marks a freed block as waiting for other streams.
    pub(crate) fn set_pending(&mut self, id: BlockId) {
        self.blocks[id].freeing = Freeing::AtOnce;
        self.blocks[id].state = State::Pending;
    }

    /// Notes that work of its own stream may still use a pending block. Returns the large pool and its epoch, which has to pass before
    /// another stream may have the block.
    pub(crate) fn note_pending(&mut self, id: BlockId) -> (PoolIndex, u64) {
        let large = self.blocks[id].pool.large();
        let stream = &mut self.pools[large];
        stream.freed_in_epoch = true;
        (large, stream.epoch)
    }

    /// Returns whether a pending block may be handed out before the CPU has seen that its uses have ended. Guarded memory, and that
    /// of the machine, is unmapped instead.
    pub(crate) fn may_be_taken_early(&self, id: BlockId) -> bool {
        matches!(self.blocks[id].kind, Kind::Home | Kind::View) && !self.is_spilled_block(id)
    }

    /// Returns whether another stream may have a pending block. The part of a slab stays with the stream of the slab: otherwise what is
    /// free of the slab would lie in two pools, and never merge.
    pub(crate) fn may_change_stream(&self, id: BlockId) -> bool {
        let in_slab = |span: Span| self.home.as_ref().is_some_and(|home| home.is_slab(span.start));
        self.home_spans(id).all(|span| span.size.is_multiple_of(GRANULE) || !in_slab(span))
    }

    /// Makes room to free a pending block for a pool.
    pub(crate) fn reserve_early(&mut self, id: BlockId, to: PoolIndex) -> Result<()> {
        let block = self.blocks[id];
        if block.kind == Kind::View {
            self.views.reserve_use(block.view(), to.large())?;
        }
        Ok(())
    }

    /// Frees a pending block for a pool whose stream waits on the GPU for all that uses it.
    pub(crate) fn free_early(&mut self, id: BlockId, to: PoolIndex) {
        let Block { address, requested, pool, .. } = self.blocks[id];
        self.notify(Action::FreeCompleted, Span::new(address, requested), pool);
        self.assign(id, to);
        self.complete(id);
    }

    /// Notes that freeing a live block takes more than merging.
    pub(crate) fn set_has_uses(&mut self, id: BlockId) {
        let freeing = &mut self.blocks[id].freeing;
        if *freeing == Freeing::AtOnce {
            *freeing = Freeing::BySteps;
        }
    }

    /// Notes that no more steps are left to free a block.
    pub(crate) fn clear_uses(&mut self, id: BlockId) {
        self.blocks[id].freeing = Freeing::AtOnce;
    }

    /// Frees the bytes of a block: it merges with its neighbours and enters the index. Returns the block that remains,
    /// how many were merged into it, and their bytes.
    #[inline]
    pub(super) fn free_bytes(&mut self, id: BlockId) -> (BlockId, u64, u64) {
        if self.rules.adopts_idle && self.blocks[id].kind == Kind::Home {
            self.adopt_idle(id);
        }
        self.blocks[id].state = State::Free;
        let merged = self.merge_free(id);
        self.insert_freed(merged.0);
        merged
    }

    /// Puts a block that has just become free into the index of its pool.
    #[inline]
    pub(super) fn insert_freed(&mut self, id: BlockId) {
        let Block { pool, kind, .. } = self.blocks[id];
        self.blocks[id].freed_at = if kind == Kind::Home {
            // Both pools of a stream share the epochs of the large one.
            let stream = &mut self.pools[pool.large()];
            stream.freed_in_epoch = true;
            stream.epoch
        } else {
            self.searches[pool.class() as usize]
        };
        self.insert_free(id);
    }

    /// Puts a block that was already free into the index of its pool.
    pub(crate) fn insert_free(&mut self, id: BlockId) {
        self.blocks[id].state = State::Free;
        let pool = self.blocks[id].pool;
        self.pools[pool].free.insert(&mut self.blocks, id);
    }

    /// Takes a free block out of the index of its pool.
    pub(crate) fn take_free(&mut self, id: BlockId) {
        let pool = self.blocks[id].pool;
        self.pools[pool].free.remove(&mut self.blocks, id);
    }

    /// Merges a block with its free neighbours, which leave the index. Returns the block that remains, how many were
    /// merged into it, and their bytes.
    #[inline]
    pub(super) fn merge_free(&mut self, id: BlockId) -> (BlockId, u64, u64) {
        if self.rules.layout.merging == Merging::Neighbours {
            return self.merge_where(id, Self::are_free_neighbours);
        }
        self.merge_by_layout(id)
    }

    #[cold]
    fn merge_by_layout(&mut self, id: BlockId) -> (BlockId, u64, u64) {
        match self.rules.layout.merging {
            Merging::Buddies => self.merge_buddies(id),
            Merging::Neighbours | Merging::Never => self.merge_where(id, Self::joins),
        }
    }

    #[inline(always)]
    fn merge_where(&mut self, mut id: BlockId, joins: impl Fn(&Self, BlockId, BlockId) -> bool) -> (BlockId, u64, u64) {
        let (mut merged, mut bytes) = (0, 0);
        let prev = self.blocks[id].prev;
        if joins(self, prev, id) {
            self.take_free(prev);
            (merged, bytes) = (1, self.blocks[prev].size);
            self.absorb_next(prev);
            id = prev;
        }
        let next = self.blocks[id].next;
        if joins(self, id, next) {
            self.take_free(next);
            merged += 1;
            bytes += self.blocks[next].size;
            self.absorb_next(id);
        }
        (id, merged, bytes)
    }

    /// Returns whether two neighbours merge: both are free and of one pool, where the layout lets them, and slabs for
    /// small blocks at home stay apart.
    pub(super) fn joins(&self, before: BlockId, id: BlockId) -> bool {
        self.are_free_neighbours(before, id)
            && match self.merging_in(self.blocks[id].pool) {
                Merging::Neighbours => true,
                Merging::Never => false,
                Merging::Buddies => self.are_buddies(before, id),
            }
    }

    /// Does the same where the layout lets all neighbours merge.
    #[inline(always)]
    fn are_free_neighbours(&self, before: BlockId, id: BlockId) -> bool {
        let (before, block) = (&self.blocks[before], &self.blocks[id]);
        before.state == State::Free
            && block.state == State::Free
            && before.pool == block.pool
            && !(block.kind == Kind::Home && block.address.is_multiple_of(GRANULE) && block.pool.is_small())
    }

    /// Merges the next block into this one.
    pub(super) fn absorb_next(&mut self, id: BlockId) {
        let next = self.blocks[id].next;
        if let (Kind::Home, Some(home)) = (self.blocks[id].kind, &mut self.home) {
            let after = self.blocks[next].next;
            home.ends(next, self.blocks[next].address, after, self.blocks[after].address);
        }
        self.blocks[id].freed_at = self.blocks[id].freed_at.max(self.blocks[next].freed_at);
        self.blocks[id].size += self.blocks[next].size;
        self.blocks.unlink(next);
        self.blocks.remove(next);
    }

    /// Adds a block right behind `id`.
    #[inline]
    pub(super) fn insert_after(&mut self, id: BlockId, block: Block) -> Result<BlockId> {
        let new = self.blocks.insert(block)?;
        self.link_after(id, new);
        Ok(new)
    }

    #[inline]
    fn link_after(&mut self, id: BlockId, new: BlockId) {
        self.blocks.link_after(id, new);
        let Block { address, kind, .. } = self.blocks[new];
        if let (Kind::Home, Some(home)) = (kind, &mut self.home) {
            home.begins(new, address, id, self.blocks[id].address);
        }
    }

    /// Moves a free block to another pool, where it merges with its neighbours. Returns the block that it is part of
    /// then.
    pub(crate) fn hand_over(&mut self, id: BlockId, pool: PoolIndex) -> BlockId {
        self.take_free(id);
        self.assign(id, pool);
        let (id, ..) = self.merge_free(id);
        self.insert_free(id);
        id
    }

    /// Splits a free block if it has more than `size` bytes. Returns the free block of its first `size` bytes.
    pub(crate) fn part_of(&mut self, id: BlockId, size: u64) -> Result<BlockId> {
        if self.blocks[id].size <= size {
            return Ok(id);
        }
        let part = self.carve(id, Span::new(self.blocks[id].address, size))?;
        self.insert_free(part);
        Ok(part)
    }

    /// Cuts a span out of a free block; the rest stays in the index. Returns the block of the span, which is in no index.
    pub(crate) fn carve(&mut self, id: BlockId, span: Span) -> Result<BlockId> {
        let mut slots = self.reserve_slots(2)?;
        self.take_free(id);
        Ok(self.cut(id, span, &mut slots, Self::insert_free))
    }

    /// Makes a span of a block a block of its own, for which two slots were reserved. The parts before and behind it
    /// are passed to `rest`.
    pub(super) fn cut(
        &mut self,
        id: BlockId,
        span: Span,
        slots: &mut Slots,
        rest: impl Fn(&mut Self, BlockId),
    ) -> BlockId {
        let whole = self.blocks[id];
        let before = span.start - whole.address;
        let behind = whole.end() - span.end();
        let mut middle = id;
        if before > 0 {
            self.blocks[id].size = before;
            let part = whole.part(Span::new(span.start, whole.size - before), whole.state);
            middle = self.blocks.insert_reserved(slots, part);
            self.link_after(id, middle);
        }
        if behind > 0 {
            self.blocks[middle].size = span.size;
            let last = self.blocks.insert_reserved(slots, whole.part(Span::new(span.end(), behind), whole.state));
            self.link_after(middle, last);
            rest(self, last);
        }
        if before > 0 {
            rest(self, id);
        }
        middle
    }
}

fn net(counter: &mut Counter, class: Class, added: u64, removed: u64) {
    if added >= removed {
        counter.add(class, added - removed);
    } else {
        counter.sub(class, removed - added);
    }
}

//! Segments come, grow, shrink and go: what strategies tell the heap of the memory they got and gave back.

use super::{Backing, Heap, Segment};
use crate::blocks::{Block, BlockId, Kind, State};
use crate::error::{Error, Result};
use crate::home::Home;
use crate::observer::Action;
use crate::stats::Class;

impl Heap {
    /// A segment that the driver gave by `malloc`: one block, not yet in the free index.
    pub(crate) fn add_malloc_segment(&mut self, pool: u32, address: u64, size: u64) -> Result<BlockId> {
        let id = self.add_segment(pool, address, size, Backing::Malloc, State::Free)?;
        let class = self.pools[pool as usize].class;
        self.counters.segment.add(class, 1);
        self.counters.reserved_bytes.add(class, size);
        self.counters.num_device_alloc += 1;
        if size >= self.oversize_from {
            self.counters.oversize_segments.add(Class::Large, 1);
        }
        self.emit(Action::SegmentAlloc, address, size, pool);
        Ok(id)
    }

    /// A reservation in which nothing is mapped yet: one unmapped block.
    pub(crate) fn add_expandable_segment(&mut self, pool: u32, address: u64, size: u64, unit: u64) -> Result<BlockId> {
        let backing = Backing::Expandable { unit, units: Vec::new() };
        let id = self.add_segment(pool, address, size, backing, State::Unmapped)?;
        self.pools[pool as usize].unmapped.insert((address, id));
        Ok(id)
    }

    /// The reservation that is home: nothing in it is mapped yet.
    pub(crate) fn add_home(&mut self, address: u64, size: u64) -> Result<BlockId> {
        let id = self.add_segment(self.idle, address, size, Backing::Home, State::Unmapped)?;
        self.pools[self.idle as usize].unmapped.insert((address, id));
        self.home = Some(Home::new(address, size, self.blocks[id].segment, id));
        Ok(id)
    }

    fn add_segment(&mut self, pool: u32, address: u64, size: u64, backing: Backing, state: State) -> Result<BlockId> {
        let kind = match backing {
            Backing::Malloc => Kind::Malloc,
            Backing::Expandable { .. } => Kind::Expandable,
            Backing::Home => Kind::Home,
        };
        let slot = self.segments.iter().position(Option::is_none).unwrap_or(self.segments.len());
        let block = Block::new(address, size, pool, slot as u32, kind, state);
        let head = self.blocks.insert(block).ok_or(Error::Internal("the block table is full"))?;
        let segment = Some(Segment { address, size, pool, backing, head });
        match self.segments.get_mut(slot) {
            Some(vacant) => *vacant = segment,
            None => self.segments.push(segment),
        }
        Ok(head)
    }

    /// Says that a `malloc` segment is about to go back, whose only block is free: a library that has registered the memory
    /// must let go of it first. So PyTorch says it.
    pub(crate) fn malloc_segment_goes(&mut self, id: BlockId) {
        let Block { address, size, pool, .. } = self.blocks[id];
        self.emit(Action::SegmentFree, address, size, pool);
    }

    /// Takes back what [`Self::malloc_segment_goes`] said: it could not be given back.
    pub(crate) fn malloc_segment_stays(&mut self, id: BlockId) {
        let Block { address, size, pool, .. } = self.blocks[id];
        self.emit(Action::SegmentAlloc, address, size, pool);
    }

    /// Forgets a `malloc` segment that was said to go: the driver has it back.
    pub(crate) fn remove_malloc_segment(&mut self, id: BlockId) {
        let Block { size, pool, segment, .. } = self.blocks[id];
        let class = self.pools[pool as usize].class;
        self.take_free(id);
        self.blocks.remove(id);
        if let Some(slot) = self.segments.get_mut(segment as usize) {
            *slot = None;
        }
        self.counters.segment.sub(class, 1);
        self.counters.reserved_bytes.sub(class, size);
        self.counters.num_device_free += 1;
        if size >= self.oversize_from {
            self.counters.oversize_segments.sub(Class::Large, 1);
        }
    }

    /// Forgets an expandable segment of which nothing is mapped: its addresses are given back.
    pub(crate) fn remove_expandable_segment(&mut self, id: BlockId) {
        let Block { address, pool, segment, .. } = self.blocks[id];
        self.pools[pool as usize].unmapped.remove(&(address, id));
        self.blocks.remove(id);
        if let Some(slot) = self.segments.get_mut(segment as usize) {
            *slot = None;
        }
    }

    /// A part of an unmapped block has memory now: `[from, from + size)`, for requests of `pool`. It merges with its free
    /// neighbours; the block that is left is in the free index.
    pub(crate) fn mapped(&mut self, id: BlockId, from: u64, size: u64, pool: u32) -> Result<BlockId> {
        let gone = self.blocks[id];
        self.pools[gone.pool as usize].unmapped.remove(&(gone.address, id));
        let new = self.cut(id, from, size, |heap, rest| {
            let Block { address, pool, .. } = heap.blocks[rest];
            heap.pools[pool as usize].unmapped.insert((address, rest));
        })?;
        // Memory that nobody has used is idle from the start.
        self.blocks[new].freed_at = 0;
        self.blocks[new].pool = pool;
        self.blocks[new].state = State::Free;
        let (new, ..) = self.merge_free(new);
        self.index(new);
        let class = self.pools[pool as usize].class;
        self.counters.reserved_bytes.add(class, size);
        self.counters.num_device_alloc += 1;
        self.emit_range(Action::SegmentMap, self.blocks[new].kind, (from, size), pool);
        Ok(new)
    }

    /// A part of a free block has no memory any more: `[from, from + size)`. What is left before and behind it stays
    /// free. The unmapped block that it is part of now.
    pub(crate) fn unmapped(&mut self, id: BlockId, from: u64, size: u64) -> Result<BlockId> {
        let Block { pool, segment, .. } = self.blocks[id];
        self.take_free(id);
        let gone = self.cut(id, from, size, Self::index)?;
        self.blocks[gone].state = State::Unmapped;
        self.blocks[gone].pool = self.segments.get(segment as usize).and_then(Option::as_ref).map_or(pool, |s| s.pool);
        let gone = self.merge_unmapped(gone);
        let class = self.pools[pool as usize].class;
        self.counters.reserved_bytes.sub(class, size);
        self.counters.num_device_free += 1;
        self.emit_range(Action::SegmentUnmap, self.blocks[gone].kind, (from, size), pool);
        Ok(gone)
    }

    /// Makes `[from, from + size)` of a block a block of its own. What is left before and behind it is handed to `rest`.
    pub(super) fn cut(
        &mut self,
        id: BlockId,
        from: u64,
        size: u64,
        rest: impl Fn(&mut Self, BlockId),
    ) -> Result<BlockId> {
        const FULL: Error = Error::Internal("the block table is full");
        let whole = self.blocks[id];
        let before = from - whole.address;
        let behind = whole.end() - from - size;
        let mut middle = id;
        if before > 0 {
            self.blocks[id].size = before;
            middle = self.insert_after(id, whole.part(from, whole.size - before, whole.state)).ok_or(FULL)?;
        }
        if behind > 0 {
            self.blocks[middle].size = size;
            let last = self.insert_after(middle, whole.part(from + size, behind, whole.state)).ok_or(FULL)?;
            rest(self, last);
        }
        if before > 0 {
            rest(self, id);
        }
        Ok(middle)
    }

    fn merge_unmapped(&mut self, mut id: BlockId) -> BlockId {
        let Block { prev, next, pool, .. } = self.blocks[id];
        let unmapped = &mut self.pools[pool as usize].unmapped;
        if self.blocks[next].state == State::Unmapped {
            unmapped.remove(&(self.blocks[next].address, next));
            self.absorb_next(id);
        }
        if self.blocks[prev].state == State::Unmapped {
            self.absorb_next(prev);
            id = prev;
        }
        self.pools[pool as usize].unmapped.insert((self.blocks[id].address, id));
        id
    }

    /// A failed growth holds `now` bytes that are part of no block, and held `before`.
    pub(crate) fn unsettled(&mut self, class: Class, now: u64, before: u64) {
        self.unsettled[class as usize] += now;
        self.unsettled[class as usize] -= before;
        self.counters.reserved_bytes.add(class, now.saturating_sub(before));
        self.counters.reserved_bytes.sub(class, before.saturating_sub(now));
    }
}

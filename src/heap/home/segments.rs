//! Creation, growth, shrinking and removal of segments. `backing` notes here which memory it took from the driver and
//! gave back.

use super::chunk_map::{Chunk, ChunkMap, HomeRange, WiderTables};
use super::segment::{Backing, Segment};
use crate::driver::{Call, DriverError, DriverResult, Status};
use crate::error::{Error, Result};
use crate::fallible::text;
use crate::heap::blocks::block::{Block, Kind, Slots, State};
use crate::heap::blocks::starts::Starts;
use crate::heap::blocks::table::Blocks;
use crate::heap::journal::tell::Range;
use crate::heap::tables::Heap;
use crate::ids::{Account, BlockId, ChunkId, Handle, PoolIndex, SegmentId};
use crate::report::observer::Action;
use crate::span::Span;

const NOT_EXPANDABLE: Error = Error::Internal("a block of a segment that cannot grow");
const WITHOUT_HOME: Error = Error::Internal("a chunk without a home");

/// New memory for a part of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewMemory {
    /// The unmapped block that contains the span.
    pub(crate) room: BlockId,
    pub(crate) span: Span,
    /// The pool whose requests the memory serves.
    pub(crate) pool: PoolIndex,
}

/// The tables of a home that has no addresses yet.
pub(crate) struct NewHome {
    chunks: ChunkMap,
    starts: Starts,
}

impl Heap {
    /// Makes room for one more segment of a pool. Returns the slot for its block.
    pub(crate) fn reserve_segment(&mut self, pool: PoolIndex) -> Result<Slots> {
        self.home.segments.try_reserve(1)?;
        self.pools[pool].unmapped.reserve(1)?;
        self.blocks.reserve(1)
    }

    /// Makes room for home, with `size` bytes of addresses. Returns the tables of home, and the slot for its block.
    pub(crate) fn reserve_home(&mut self, size: u64) -> Result<(NewHome, Slots)> {
        let tables = NewHome { chunks: ChunkMap::of_size(size)?, starts: Starts::of_size(size)? };
        Ok((tables, self.reserve_segment(self.pools.idle())?))
    }

    /// Makes room to map, or to unmap, `parts` parts of a block's segment. Returns the slots for the blocks. Each part
    /// cuts a block into at most three.
    pub(crate) fn reserve_parts(&mut self, block: BlockId, parts: usize) -> Result<Slots> {
        let Block { segment, pool, .. } = self.blocks[block];
        let pool = self.segment(segment).map_or(pool, |segment| segment.pool);
        self.pools[pool].unmapped.reserve(parts)?;
        self.blocks.reserve(2 * parts)
    }

    /// Makes room for the handles of an expandable segment's units (pieces of memory), up to the end of a span.
    pub(crate) fn reserve_units(&mut self, block: BlockId, span: Span) -> Result<()> {
        let segment = self.home.segment_mut(self.blocks[block].segment).ok_or(NOT_EXPANDABLE)?;
        let Backing::Expandable { unit, units } = &mut segment.backing else { return Err(NOT_EXPANDABLE) };
        let end = (span.end() - segment.span.start) / *unit;
        Ok(units.try_reserve((end as usize).saturating_sub(units.len()))?)
    }

    /// Makes room for `count` more chunks.
    pub(crate) fn reserve_chunks(&mut self, count: usize) -> Result<()> {
        Ok(self.home.map.as_mut().map_or(Ok(()), |home| home.reserve(count))?)
    }

    /// Adds a segment that the driver gave by `malloc`. Returns the segment's only block, which is not in the free
    /// index yet.
    pub(crate) fn add_malloc_segment(&mut self, pool: PoolIndex, span: Span, slots: &mut Slots) -> BlockId {
        let id = self.add_segment(pool, span, Backing::Malloc, slots);
        self.journal.segment_added(span, pool, &self.pools);
        id
    }

    /// Adds a reservation in which no memory is mapped. Returns its only block, which is unmapped.
    pub(crate) fn add_expandable_segment(
        &mut self,
        pool: PoolIndex,
        span: Span,
        unit: u64,
        slots: &mut Slots,
    ) -> BlockId {
        let id = self.add_segment(pool, span, Backing::Expandable { unit, units: Vec::new() }, slots);
        self.pools[pool].unmapped.insert((span.start, id));
        id
    }

    /// Adds the reservation of home, in which no memory is mapped.
    pub(crate) fn add_home(&mut self, span: Span, tables: NewHome, slots: &mut Slots) {
        let idle = self.pools.idle();
        let id = self.add_segment(idle, span, Backing::Home, slots);
        self.pools[idle].unmapped.insert((span.start, id));
        self.home.map = Some(tables.chunks.placed(span, self.blocks[id].segment));
        self.blocks.set_starts(tables.starts.placed(span.start));
        self.blocks.begin_range(id);
    }

    /// Makes the tables of a home that has one more range. Returns `None` without a home, or if home would be larger
    /// than its tables may cover.
    pub(crate) fn wider_home(&self, reserved: Span) -> Result<Option<WiderTables>> {
        Ok(self.home.map.as_ref().map_or(Ok(None), |home| home.wider(self.blocks.starts(), reserved))?)
    }

    /// Makes room for one more range of home. Returns the slot for its block.
    pub(crate) fn reserve_home_range(&mut self) -> Result<Slots> {
        self.home.map.as_mut().map_or(Ok(()), ChunkMap::reserve_range)?;
        self.reserve_segment(self.pools.idle())
    }

    /// Adds a range of home, in which no memory is mapped.
    ///
    /// # Errors
    /// Home does not exist. Nothing has changed.
    pub(crate) fn add_home_range(&mut self, reserved: Span, tables: WiderTables, slots: &mut Slots) -> Result<()> {
        let span = self.home.map.as_ref().map(|home| home.apart(reserved)).ok_or(WITHOUT_HOME)?;
        let idle = self.pools.idle();
        let id = self.add_segment(idle, span, Backing::Home, slots);
        self.pools[idle].unmapped.insert((span.start, id));
        let range = HomeRange { reserved, segment: self.blocks[id].segment };
        if let Some(home) = &mut self.home.map {
            self.blocks.set_starts(home.add_range(range, tables));
            self.blocks.begin_range(id);
        }
        Ok(())
    }

    pub(super) fn add_segment(&mut self, pool: PoolIndex, span: Span, backing: Backing, slots: &mut Slots) -> BlockId {
        let (kind, state) = match backing {
            Backing::Malloc => (Kind::Malloc, State::Free),
            Backing::Expandable { .. } => (Kind::Expandable, State::Unmapped),
            Backing::Home => (Kind::Home, State::Unmapped),
            Backing::Guarded { .. } => (Kind::Guarded, State::Retired),
        };
        let later = self.home.segments.get(self.home.vacant_from..).unwrap_or_default();
        let slot =
            later.iter().position(Option::is_none).map_or(self.home.segments.len(), |at| self.home.vacant_from + at);
        self.home.vacant_from = slot + 1;
        let block = Block::new(span, pool, SegmentId(slot as u32), kind, state);
        let head = self.blocks.insert_reserved(slots, block);
        let segment = Some(Segment { span, pool, backing, head });
        match self.home.segments.get_mut(slot) {
            Some(vacant) => *vacant = segment,
            None => self.home.segments.push(segment),
        }
        head
    }

    /// Reports that a `malloc` segment, whose only block is free, is about to be given back. A library that has
    /// registered the memory must deregister it before the driver's call. PyTorch also reports the release before the
    /// call.
    pub(crate) fn notify_segment_free(&mut self, id: BlockId) {
        self.notify(Action::SegmentFree, self.blocks[id].span(), self.blocks[id].pool);
    }

    /// Undoes the report of [`Self::notify_segment_free`] for a segment that could not be given back.
    pub(crate) fn notify_segment_kept(&mut self, id: BlockId) {
        self.notify(Action::SegmentAlloc, self.blocks[id].span(), self.blocks[id].pool);
    }

    /// Removes a `malloc` segment that was given back to the driver. The release was reported before.
    pub(crate) fn remove_malloc_segment(&mut self, id: BlockId) {
        let Block { size, pool, segment, .. } = self.blocks[id];
        self.blocks.take_free(id);
        self.remove_segment(id, segment);
        self.journal.segment_removed(size, pool.class());
    }

    /// Removes an expandable segment in which no memory is mapped. The segment's addresses were given back.
    pub(crate) fn remove_expandable_segment(&mut self, id: BlockId) {
        let Block { address, pool, segment, .. } = self.blocks[id];
        self.pools[pool].unmapped.remove(&(address, id));
        self.remove_segment(id, segment);
    }

    /// Removes a range of home whose addresses were given back. Home is removed with its last range.
    pub(crate) fn remove_home_range(&mut self, segment: SegmentId) {
        let head = self.head_of(segment);
        self.blocks.end_range(head);
        let is_left = self.home.map.as_mut().is_some_and(|home| home.remove_range(segment));
        if !is_left {
            self.home.map = None;
            self.blocks.set_starts(Starts::default());
        }
        self.remove_expandable_segment(head);
    }

    pub(super) fn remove_segment(&mut self, head: BlockId, segment: SegmentId) {
        self.blocks.remove(head);
        if let Some(slot) = self.home.segments.get_mut(segment.0 as usize) {
            *slot = None;
            self.home.vacant_from = self.home.vacant_from.min(segment.0 as usize);
        }
    }

    /// Returns the block at the start of a segment.
    pub(crate) fn head_of(&self, segment: SegmentId) -> BlockId {
        self.segment(segment).map_or(BlockId::NONE, |segment| segment.head)
    }

    /// Notes that a part of an unmapped block has memory. The part merges with its free neighbours. Returns the
    /// resulting block, which is in the free index. Two slots were reserved for the change.
    pub(crate) fn mapped(&mut self, memory: NewMemory, slots: &mut Slots) -> BlockId {
        let NewMemory { room, span, pool } = memory;
        let gone = self.blocks[room];
        self.pools[gone.pool].unmapped.remove(&(gone.address, room));
        let pools = &mut self.pools;
        let new = self.blocks.cut(room, span, slots, |blocks, rest| {
            let Block { address, pool, .. } = blocks[rest];
            pools[pool].unmapped.insert((address, rest));
        });
        // Memory that was never used has epoch 0, and counts as passed by every stream.
        self.blocks[new].freed_at = 0;
        self.blocks[new].pool = pool;
        self.blocks[new].state = State::Free;
        let (new, ..) = self.merge_free(new);
        self.blocks.insert_free(new);
        let range = self.range(self.blocks[new].kind, span, pool);
        self.journal.memory_mapped(range, &self.pools);
        new
    }

    /// Notes that a part of a free block lost its memory. The parts before and after it stay free. Two slots were
    /// reserved for these parts.
    pub(crate) fn unmapped(&mut self, id: BlockId, span: Span, slots: &mut Slots) {
        let range = self.take_memory(id, span, slots);
        self.journal.memory_unmapped(range, &self.pools);
    }

    /// Notes that a part of a free block lost its memory, as [`Self::unmapped`] does, but for memory that is not
    /// counted as held.
    pub(super) fn lose_memory(&mut self, id: BlockId, span: Span, slots: &mut Slots) {
        let range = self.take_memory(id, span, slots);
        self.journal.tell_range(Action::SegmentUnmap, range, &self.pools);
    }

    /// Makes a part of a free block unmapped. Returns the part's range, for the journal.
    #[must_use]
    fn take_memory(&mut self, id: BlockId, span: Span, slots: &mut Slots) -> Range {
        let Block { pool, segment, .. } = self.blocks[id];
        self.blocks.take_free(id);
        let gone = self.blocks.cut(id, span, slots, Blocks::insert_free);
        self.blocks[gone].state = State::Unmapped;
        self.blocks[gone].pool = self.segment(segment).map_or(pool, |segment| segment.pool);
        let gone = self.merge_unmapped(gone);
        self.range(self.blocks[gone].kind, span, pool)
    }

    fn merge_unmapped(&mut self, mut id: BlockId) -> BlockId {
        let Block { prev, next, pool, .. } = self.blocks[id];
        let unmapped = &mut self.pools[pool].unmapped;
        if self.blocks[next].state == State::Unmapped {
            unmapped.remove(&(self.blocks[next].address, next));
            self.blocks.absorb_next(id);
        }
        if self.blocks[prev].state == State::Unmapped {
            self.blocks.absorb_next(prev);
            id = prev;
        }
        self.pools[pool].unmapped.insert((self.blocks[id].address, id));
        id
    }

    /// Notes the handles of units (pieces of memory) of an expandable segment, which were mapped from `address` on. The
    /// list has room for the handles.
    ///
    /// # Errors
    /// The block is not part of an expandable segment. Nothing has changed.
    pub(crate) fn note_units(
        &mut self,
        block: BlockId,
        address: u64,
        handles: impl ExactSizeIterator<Item = Option<Handle>>,
    ) -> Result<()> {
        let segment = self.home.segment_mut(self.blocks[block].segment).ok_or(NOT_EXPANDABLE)?;
        let start = segment.span.start;
        let Backing::Expandable { unit, units } = &mut segment.backing else { return Err(NOT_EXPANDABLE) };
        let first = ((address - start) / *unit) as usize;
        let end = first + handles.len();
        if units.len() < end {
            units.resize(end, None);
        }
        units[first..end].iter_mut().zip(handles).for_each(|(slot, handle)| *slot = handle);
        self.journal.mappings_added((end - first) as u64);
        Ok(())
    }

    /// Returns the handle of a unit of an expandable segment, or `None`.
    pub(crate) fn unit_handle(&self, segment: SegmentId, unit: u64) -> Option<Handle> {
        match &self.segment(segment)?.backing {
            Backing::Expandable { units, .. } => units.get(unit as usize).copied().flatten(),
            _ => None,
        }
    }

    /// Notes that the handle of an expandable segment's unit was released. The driver takes the memory back when its
    /// last mapping is removed.
    pub(crate) fn unit_released(&mut self, segment: SegmentId, unit: u64) {
        if let Some(Backing::Expandable { units, .. }) =
            self.home.segment_mut(segment).map(|segment| &mut segment.backing)
            && let Some(handle) = units.get_mut(unit as usize)
        {
            *handle = None;
        }
    }

    /// Adds a chunk at its place at home, where the chunk is not mapped yet. The tables have room for the chunk.
    ///
    /// # Errors
    /// Home does not exist. Nothing has changed.
    pub(crate) fn add_chunk(&mut self, chunk: Chunk) -> Result<ChunkId> {
        let home = self.home.map.as_mut().ok_or(WITHOUT_HOME)?;
        Ok(home.add_chunk(chunk))
    }

    /// Notes that a chunk was mapped at its place.
    pub(crate) fn chunk_mapped(&mut self, chunk: Chunk) {
        if let Some(home) = &mut self.home.map {
            home.mapped(chunk);
            self.journal.mappings_added(1);
        }
    }

    /// Removes the chunks of a span inside a free block. The chunks are unmapped already, and their memory is about to
    /// be released. Two slots were reserved for the parts of the block.
    pub(crate) fn remove_chunks(&mut self, block: BlockId, span: Span, slots: &mut Slots) {
        let Some(home) = &mut self.home.map else { return };
        let mut at = span.start;
        while let Some((id, chunk)) = home.chunk_at(at).filter(|_| at < span.end()) {
            self.journal.mappings_removed(u64::from(!home.is_bare(chunk.address, 1)));
            home.remove_chunk(id);
            at = chunk.end();
        }
        self.unmapped(block, span, slots);
    }

    /// Notes that units of an expandable segment, which lie in a free block, were unmapped. Two slots were reserved for
    /// the parts of the block.
    pub(crate) fn unmapped_units(&mut self, block: BlockId, span: Span, count: u64, slots: &mut Slots) {
        self.journal.mappings_removed(count);
        self.unmapped(block, span, slots);
    }

    /// Notes that `now` bytes instead of `before` bytes are held outside of all blocks, because calls failed.
    pub(crate) fn pending_rollback(&mut self, account: impl Into<Account>, now: u64, before: u64) {
        let Account::Device(class) = account.into() else { return self.pending_on_host(now, before) };
        self.home.pending_rollback[class as usize] += now;
        self.home.pending_rollback[class as usize] -= before;
        self.journal.held(class, before, now);
    }

    /// Returns an error for addresses that no correct driver gives, or that belong to a segment already. The caller
    /// does not give such addresses back, since other code may use them.
    pub(crate) fn check_answer(&self, call: Call, span: Span, alignment: u64) -> DriverResult<()> {
        if self.may_begin_at(span, alignment) {
            return Ok(());
        }
        let Span { start, size } = span;
        let what = "which cannot be, or is part of a segment already";
        let detail = text(format_args!("it gave {size} bytes at {start:#x}, {what}"));
        Err(DriverError::new(call, Status::UNKNOWN, detail))
    }

    /// Returns whether a span is aligned and cannot overlap a segment.
    pub(crate) fn may_begin_at(&self, span: Span, alignment: u64) -> bool {
        let Span { start, size } = span;
        if start == 0 || !start.is_multiple_of(alignment) || start.checked_add(size).is_none() {
            return false;
        }
        !self.home.segments.iter().flatten().any(|other| other.span.intersection(&span).is_some())
    }
}

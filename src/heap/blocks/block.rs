//! The table of blocks: slots addressed by small numbers, with links instead of pointers.
//!
//! Owns: the storage of [`Block`]s and the meaning of a [`BlockId`]. The table does not know how free blocks are used.
//!
//! Slot 0 is a sentinel that no block ever uses. A missing neighbour is slot 0, so links are written without a check,
//! and an id out of range reads the sentinel instead of panicking.

use crate::config::Advice;
use crate::error::{Error, Result};
use crate::fallible::with_room;
use crate::ids::{BlockId, PoolIndex, SegmentId, ViewId};
use crate::span::Span;
use std::ops::{Index, IndexMut};

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// The slot holds no block.
    Vacant,
    /// The block is in the free index of its pool.
    Free,
    /// The block is handed out.
    Allocated,
    /// The program has freed the block, but other streams have not finished with the block.
    Pending,
    /// The block is address space of a segment without memory.
    Unmapped,
    /// The block is a range of home whose bytes a stitched block hands out through a view.
    Piece,
    /// The block is the memory before a guarded block, and serves no request.
    Slack,
    /// The block is a guarded block that is not handed out, and its memory is to be unmapped.
    Retired,
}

/// The work of freeing a live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Freeing {
    /// The block merges with its neighbours.
    AtOnce,
    /// Freeing takes more than merging: `record_stream` named other streams, or the block belongs to a private pool.
    BySteps,
    /// As `BySteps`, and the block's stream has ended. The block belongs to no stream, even if a new stream has taken
    /// over the handle and the pool.
    OfNoStream,
}

/// The kind of memory that a block is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A part of a `malloc` segment.
    Malloc,
    /// A part of an expandable segment.
    Expandable,
    /// A part of home.
    Home,
    /// A part of a view. The block owns pieces of home, linked through its own `left` and then through each piece's
    /// `right`.
    View,
    /// A guarded block, whose memory is its own and lies between addresses without memory.
    Guarded,
}

/// A contiguous part of a segment. The struct takes 64 bytes, one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// The bytes that the program requested when the block was last handed out.
    pub(crate) requested: u64,
    /// The clock of the pool when the last of the block's bytes became free: the number of searches (for the ages of
    /// garbage collection), or the epoch of the stream. For a live block, if memory may be spilled: the number of
    /// operations when the program last said that it uses the block.
    pub(crate) freed_at: u64,
    /// The previous block in the segment.
    pub(crate) prev: BlockId,
    /// The next block in the segment.
    pub(crate) next: BlockId,
    /// The links of the free index, `left` and `right`.
    pub(crate) left: BlockId,
    pub(crate) right: BlockId,
    pub(crate) pool: PoolIndex,
    /// The number of the segment or, for a block of kind `View`, of the view.
    pub(crate) segment: SegmentId,
    /// For a live block of a private pool: the number of the capture in which the block was handed out; 0 without a
    /// capture.
    pub(crate) capture: u32,
    pub(crate) kind: Kind,
    pub(crate) state: State,
    /// For a live block: the work of freeing the block.
    pub(crate) freeing: Freeing,
    /// For a live block, if memory may be spilled: the program's advice on its use.
    pub(crate) advice: Advice,
}

const VACANT: Block = Block {
    address: 0,
    size: 0,
    requested: 0,
    freed_at: 0,
    prev: BlockId::NONE,
    next: BlockId::NONE,
    left: BlockId::NONE,
    right: BlockId::NONE,
    pool: PoolIndex::DEFAULT,
    segment: SegmentId(0),
    capture: 0,
    kind: Kind::Malloc,
    state: State::Vacant,
    freeing: Freeing::AtOnce,
    advice: Advice::Normal,
};

impl Block {
    /// Makes a block without neighbours.
    pub(crate) fn new(span: Span, pool: PoolIndex, segment: SegmentId, kind: Kind, state: State) -> Self {
        Self { address: span.start, size: span.size, pool, segment, kind, state, ..VACANT }
    }

    /// Makes a block that will be handed out through a view.
    pub(crate) fn in_view(span: Span, pool: PoolIndex, view: ViewId) -> Self {
        Self::new(span, pool, SegmentId(view.0), Kind::View, State::Free)
    }

    /// Returns a block of the same segment, pool and kind, for another span.
    pub(crate) fn part(&self, span: Span, state: State) -> Self {
        Self { freed_at: self.freed_at, ..Self::new(span, self.pool, self.segment, self.kind, state) }
    }

    /// Returns the addresses of the block.
    pub(crate) fn span(&self) -> Span {
        Span::new(self.address, self.size)
    }

    /// Returns the view in which a block of kind `View` lies.
    pub(crate) fn view(&self) -> ViewId {
        ViewId(self.segment.0)
    }

    /// Returns whether the segment holds other blocks too.
    pub(crate) fn is_split(&self) -> bool {
        self.prev.is_some() || self.next.is_some()
    }

    /// Returns whether freeing the live block takes more than merging.
    #[inline]
    pub(crate) fn has_uses(&self) -> bool {
        self.freeing != Freeing::AtOnce
    }

    /// Returns the address of the first byte after the block.
    pub(crate) fn end(&self) -> u64 {
        self.address + self.size
    }
}

/// Slots of a [`BlockTable`] that are reserved for one caller. The caller borrows the heap, so no other code can take
/// the slots.
#[derive(Debug)]
#[must_use]
pub(crate) struct Slots {
    left: usize,
}

const FULL: Error = Error::Internal("the block table is full");

/// The blocks of an allocator. Slots are reused. The table never shrinks.
#[derive(Debug)]
pub(super) struct BlockTable {
    slots: Vec<Block>,
    /// The head of the list of vacant slots, which is linked through `next`.
    vacant: BlockId,
    live: usize,
}

impl BlockTable {
    pub(super) fn new() -> Result<Self> {
        let mut slots = with_room(1)?;
        slots.push(VACANT);
        Ok(Self { slots, vacant: BlockId::NONE, live: 0 })
    }

    /// Returns the number of blocks.
    pub(super) fn len(&self) -> usize {
        self.live
    }

    /// Returns the bytes of host memory in the table.
    pub(super) fn host_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Block>()
    }

    /// Makes room for `count` more blocks.
    ///
    /// The slots for a change are reserved before the driver call that makes it, so that the change can always be
    /// noted.
    ///
    /// # Errors
    /// The table cannot hold so many blocks, or the host has no memory for them.
    pub(super) fn reserve(&mut self, count: usize) -> Result<Slots> {
        let vacant = self.slots.len() - 1 - self.live;
        let new = count.saturating_sub(vacant);
        let most = u32::MAX as usize;
        if self.slots.len() + new > most {
            return Err(FULL);
        }
        self.slots.try_reserve(new)?;
        Ok(Slots { left: count })
    }

    /// Puts a block into a reserved slot.
    pub(super) fn insert_reserved(&mut self, slots: &mut Slots, block: Block) -> BlockId {
        debug_assert!(slots.left > 0, "more blocks than slots were reserved for");
        slots.left = slots.left.saturating_sub(1);
        self.insert(block).unwrap_or(BlockId::NONE)
    }

    /// Puts a block into a vacant slot or a new slot.
    ///
    /// # Errors
    /// 2^32 - 1 blocks exist already, or the host has no memory for another block.
    #[inline]
    pub(super) fn insert(&mut self, block: Block) -> Result<BlockId> {
        let id = self.vacant;
        if id.is_some() {
            self.vacant = self[id].next;
            self[id] = block;
            self.live += 1;
            return Ok(id);
        }
        self.append(block)
    }

    #[cold]
    fn append(&mut self, block: Block) -> Result<BlockId> {
        let id = BlockId(u32::try_from(self.slots.len()).map_err(|_| FULL)?);
        self.slots.try_reserve(1)?;
        self.slots.push(block);
        self.live += 1;
        Ok(id)
    }

    /// Vacates a slot. The caller has unlinked the block.
    pub(super) fn remove(&mut self, id: BlockId) {
        if id.is_none() || self[id].state == State::Vacant {
            return;
        }
        self[id] = VACANT;
        self[id].next = self.vacant;
        self.vacant = id;
        self.live -= 1;
    }

    /// Returns every block, in no particular order.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Block> {
        self.slots.iter_mut().filter(|block| block.state != State::Vacant)
    }

    /// Puts `id` directly after `before` in the list of the segment's blocks.
    pub(super) fn link_after(&mut self, before: BlockId, id: BlockId) {
        let after = self[before].next;
        self[id].prev = before;
        self[id].next = after;
        self[before].next = id;
        self[after].prev = id;
        self.clear_sentinel();
    }

    /// Takes `id` out of the list of its segment's blocks.
    pub(super) fn unlink(&mut self, id: BlockId) {
        let Block { prev, next, .. } = self[id];
        self[prev].next = next;
        self[next].prev = prev;
        self.clear_sentinel();
    }

    /// Clears the sentinel. Links to a missing neighbour were written into the sentinel.
    #[inline]
    fn clear_sentinel(&mut self) {
        let sentinel = &mut self[BlockId::NONE];
        debug_assert!(sentinel.state == State::Vacant && sentinel.size == 0, "the sentinel was used as a block");
        (sentinel.prev, sentinel.next) = (BlockId::NONE, BlockId::NONE);
    }

    /// Returns every block with its id, in ascending order of the ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        (0u32..).map(BlockId).zip(&self.slots).filter(|(_, block)| block.state != State::Vacant)
    }
}

impl Index<BlockId> for BlockTable {
    type Output = Block;

    fn index(&self, id: BlockId) -> &Block {
        let slot = id.0 as usize;
        &self.slots[if slot < self.slots.len() { slot } else { 0 }]
    }
}

impl IndexMut<BlockId> for BlockTable {
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        let slot = id.0 as usize;
        let slot = if slot < self.slots.len() { slot } else { 0 };
        &mut self.slots[slot]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(address: u64) -> Block {
        Block::new(Span::new(address, 512), PoolIndex::DEFAULT, SegmentId(0), Kind::Malloc, State::Free)
    }

    #[test]
    fn a_block_is_one_cache_line() {
        assert_eq!(size_of::<Block>(), 64);
    }

    #[test]
    fn slots_are_reused_before_the_table_grows() {
        let mut table = BlockTable::new().unwrap();
        let a = table.insert(block(0)).unwrap();
        let b = table.insert(block(512)).unwrap();
        table.remove(a);
        assert_eq!(table.len(), 1);
        assert_eq!(table.insert(block(1024)), Ok(a));
        assert_eq!(table[a].address, 1024);
        assert_eq!(table[b].address, 512);
    }

    #[test]
    fn removing_twice_or_nothing_changes_nothing() {
        let mut table = BlockTable::new().unwrap();
        let a = table.insert(block(0)).unwrap();
        table.remove(a);
        table.remove(a);
        table.remove(BlockId::NONE);
        assert_eq!(table.len(), 0);
        let b = table.insert(block(0)).unwrap();
        let c = table.insert(block(512)).unwrap();
        assert_ne!(b, c);
    }

    #[test]
    fn reserved_slots_are_vacant_ones_first() {
        let mut table = BlockTable::new().unwrap();
        let a = table.insert(block(0)).unwrap();
        table.insert(block(512)).unwrap();
        table.remove(a);
        let mut slots = table.reserve(2).unwrap();
        assert_eq!(table.insert_reserved(&mut slots, block(1024)), a);
        assert!(table.insert_reserved(&mut slots, block(2048)).is_some());
        assert_eq!((table.len(), slots.left), (3, 0));
        assert!(table.reserve(u32::MAX as usize).is_err());
    }

    #[test]
    fn links_keep_the_order_of_the_segment() {
        let mut table = BlockTable::new().unwrap();
        let a = table.insert(block(0)).unwrap();
        let c = table.insert(block(1024)).unwrap();
        table.link_after(a, c);
        let b = table.insert(block(512)).unwrap();
        table.link_after(a, b);
        assert_eq!((table[a].next, table[b].next, table[c].next), (b, c, BlockId::NONE));
        assert_eq!((table[a].prev, table[b].prev, table[c].prev), (BlockId::NONE, a, b));
        table.unlink(a);
        assert!(table[b].prev.is_none());
        assert_eq!(table[BlockId::NONE].state, State::Vacant);
        assert!(table[BlockId::NONE].next.is_none());
    }

    #[test]
    fn an_id_out_of_range_reads_the_sentinel() {
        let table = BlockTable::new().unwrap();
        assert_eq!(table[BlockId(77)].state, State::Vacant);
    }
}

//! All blocks, with the indexes in which they are found: free blocks by size, live blocks by address, blocks at home by
//! the addresses that they cover.
//!
//! Owns: [`Blocks`]. The other files of this folder change its fields.

use super::block::{Block, BlockTable, Slots};
use super::free_index::FreeIndex;
use super::live::Live;
use super::starts::{GRANULE, Starts};
use crate::error::Result;
use crate::fallible::Grown;
use crate::ids::BlockId;
use std::ops::{Index, IndexMut};

/// Every block of a heap.
#[derive(Debug)]
pub(in crate::heap) struct Blocks {
    pub(super) table: BlockTable,
    /// The free blocks of each pool.
    pub(super) free: Vec<FreeIndex>,
    pub(super) live: Live,
    pub(super) starts: Starts,
}

impl Blocks {
    pub(in crate::heap) fn new() -> Result<Self> {
        Ok(Self { table: BlockTable::new()?, free: Vec::new(), live: Live::new(), starts: Starts::default() })
    }

    /// Returns about how many bytes of host memory the tables take.
    pub(in crate::heap) fn host_bytes(&self) -> usize {
        let free = self.free.len() * (size_of::<FreeIndex>() + FreeIndex::HOST_BYTES);
        self.table.host_bytes() + self.live.host_bytes() + free + self.starts.host_bytes()
    }

    /// Makes the indexes of one more pair of pools, and room for these indexes.
    pub(in crate::heap) fn reserve_pair(&mut self) -> Grown<[FreeIndex; 2]> {
        self.free.try_reserve(2)?;
        // The fingerprint (a hash) of a small pool's free blocks counts wholly free slabs only, since no other small
        // memory can become part of a view.
        Ok([FreeIndex::new(0)?, FreeIndex::new(GRANULE)?])
    }

    /// Adds the indexes of a pair of pools, a large pool and a small pool.
    pub(in crate::heap) fn push_pair(&mut self, pair: [FreeIndex; 2]) {
        self.free.extend(pair);
    }

    /// Reserves slots for the blocks that a change will add.
    ///
    /// # Errors
    /// The table of blocks is full, or the host has no memory for more blocks. Nothing has changed.
    pub(in crate::heap) fn reserve(&mut self, count: usize) -> Result<Slots> {
        self.table.reserve(count)
    }

    /// Adds a block that has no neighbours.
    #[cfg(test)]
    pub(in crate::heap) fn insert(&mut self, block: Block) -> Result<BlockId> {
        self.table.insert(block)
    }

    /// Adds a block that has no neighbours, in a reserved slot.
    pub(in crate::heap) fn insert_reserved(&mut self, slots: &mut Slots, block: Block) -> BlockId {
        self.table.insert_reserved(slots, block)
    }

    /// Removes a block that has no neighbours.
    pub(in crate::heap) fn remove(&mut self, id: BlockId) {
        self.table.remove(id);
    }

    /// Takes a block out of the list of its segment.
    pub(in crate::heap) fn unlink(&mut self, id: BlockId) {
        self.table.unlink(id);
    }

    /// Returns the number of blocks.
    pub(in crate::heap) fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns every block with its id, in no particular order.
    pub(in crate::heap) fn iter(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        self.table.iter()
    }

    /// Returns every block, in no particular order.
    pub(in crate::heap) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Block> {
        self.table.iter_mut()
    }

    /// Makes room for `count` more live allocations. [`Self::add_live`] notes the allocations.
    #[inline(always)]
    pub(in crate::heap) fn reserve_live(&mut self, count: usize) -> Result<()> {
        self.live.reserve(count)
    }

    /// Notes a live allocation. The table has room for the allocation.
    #[inline(always)]
    pub(in crate::heap) fn add_live(&mut self, address: u64, id: BlockId) {
        self.live.insert(address, id);
    }

    /// Returns the live block that begins at an address.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`](crate::Error::InvalidAddress) if no live block begins there.
    pub(in crate::heap) fn live(&self, address: u64) -> Result<BlockId> {
        self.live.get(&self.table, address)
    }

    /// Takes the live block that begins at an address out of the table of live allocations.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`](crate::Error::InvalidAddress) if no live block begins there.
    #[inline]
    pub(in crate::heap) fn take_live(&mut self, address: u64) -> Result<BlockId> {
        self.live.take(&mut self.table, address)
    }

    /// Puts back a live block that was taken out of the table of live allocations.
    pub(in crate::heap) fn keep_live(&mut self, id: BlockId) {
        self.live.keep(&mut self.table, id);
    }

    /// Returns the number of live allocations.
    pub(in crate::heap) fn live_count(&self) -> usize {
        self.live.len(&self.table)
    }
}

#[cfg(test)]
impl Blocks {
    /// Moves a live block from the table of addresses to the list `unlisted`, as if the host had no memory.
    pub(in crate::heap) fn list_apart(&mut self, address: u64) {
        if let Ok(id) = self.take_live(address) {
            self.live.unlist(&mut self.table, id);
        }
    }

    /// Notes that a block begins at an address, for tests that break the table.
    pub(in crate::heap) fn misplace(&mut self, id: BlockId, address: u64) {
        self.starts.begins(id, address, BlockId::NONE, 0);
    }
}

impl Index<BlockId> for Blocks {
    type Output = Block;

    #[inline]
    fn index(&self, id: BlockId) -> &Block {
        &self.table[id]
    }
}

impl IndexMut<BlockId> for Blocks {
    #[inline]
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.table[id]
    }
}

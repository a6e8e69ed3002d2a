//! Live allocations, by address.
//!
//! Owns: [`Live`]. An allocation that was taken out of the table can always be put back, even if the host has no
//! memory.

use super::block::BlockTable;
use crate::error::{Error, Result};
use crate::fallible::try_insert;
use crate::heap::host_bytes::map_bytes;
use crate::ids::BlockId;
use rustc_hash::FxHashMap;

/// The live allocations of a heap.
#[derive(Debug)]
pub(super) struct Live {
    addresses: FxHashMap<u64, BlockId>,
    /// The first of a list, linked through `right`, of live allocations that are missing in `addresses`, because the
    /// host had no memory to put them back there. The list is almost always empty.
    unlisted: BlockId,
}

impl Live {
    pub(super) fn new() -> Self {
        Self { addresses: FxHashMap::default(), unlisted: BlockId::NONE }
    }

    pub(super) fn len(&self, blocks: &BlockTable) -> usize {
        self.addresses.len() + self.unlisted(blocks).count()
    }

    pub(super) fn host_bytes(&self) -> usize {
        map_bytes(&self.addresses)
    }

    /// Makes room for `count` more live allocations.
    #[inline(always)]
    pub(super) fn reserve(&mut self, count: usize) -> Result<()> {
        Ok(self.addresses.try_reserve(count)?)
    }

    /// Adds a live allocation. The table has room for the allocation.
    #[inline(always)]
    pub(super) fn insert(&mut self, address: u64, id: BlockId) {
        self.addresses.insert(address, id);
    }

    /// Returns the live block that begins at an address.
    pub(super) fn get(&self, blocks: &BlockTable, address: u64) -> Result<BlockId> {
        match self.addresses.get(&address) {
            Some(id) => Ok(*id),
            None => self.unlisted(blocks).find(|id| blocks[*id].address == address).ok_or_else(|| not_live(address)),
        }
    }

    fn unlisted<'a>(&self, blocks: &'a BlockTable) -> impl Iterator<Item = BlockId> + use<'a> {
        std::iter::successors(self.unlisted.some(), |id| blocks[*id].right.some())
    }

    /// Takes out the live block that begins at an address.
    #[inline]
    pub(super) fn take(&mut self, blocks: &mut BlockTable, address: u64) -> Result<BlockId> {
        match self.addresses.remove(&address) {
            Some(id) => Ok(id),
            None => self.take_unlisted(blocks, address),
        }
    }

    #[cold]
    fn take_unlisted(&mut self, blocks: &mut BlockTable, address: u64) -> Result<BlockId> {
        let found = self.unlisted(blocks).find(|id| blocks[*id].address == address);
        let id = found.ok_or_else(|| not_live(address))?;
        let next = blocks[id].right;
        let before = self.unlisted(blocks).find(|before| blocks[*before].right == id);
        match before {
            Some(before) => blocks[before].right = next,
            None => self.unlisted = next,
        }
        blocks[id].right = BlockId::NONE;
        Ok(id)
    }

    /// Puts back a block that was taken out. The table of addresses may have to grow for this, because a hash map
    /// cannot always use the slot of a removed entry at once.
    pub(super) fn keep(&mut self, blocks: &mut BlockTable, id: BlockId) {
        let address = blocks[id].address;
        if try_insert(&mut self.addresses, address, id).is_err() {
            self.unlist(blocks, id);
        }
    }

    /// Adds a live block that is not in the table to the list `unlisted`.
    pub(super) fn unlist(&mut self, blocks: &mut BlockTable, id: BlockId) {
        blocks[id].right = self.unlisted;
        self.unlisted = id;
    }
}

/// Returns the error for an address without a live allocation. A function of its own keeps this code out of the path of
/// successful frees.
#[cold]
fn not_live(address: u64) -> Error {
    Error::InvalidAddress { address }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::blocks::block::{Block, Kind, State};
    use crate::ids::{PoolIndex, SegmentId};
    use crate::span::Span;

    #[test]
    fn live_blocks_outside_of_the_table_are_found_and_freed_in_any_order() {
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
            let (mut live, mut blocks) = (Live::new(), BlockTable::new().unwrap());
            let addresses = [512, 1024, 1536];
            for address in addresses {
                let span = Span::new(address, 512);
                let block = Block::new(span, PoolIndex::DEFAULT, SegmentId(0), Kind::Malloc, State::Allocated);
                let id = blocks.insert(block).unwrap();
                live.unlist(&mut blocks, id);
            }
            for (nth, at) in order.into_iter().enumerate() {
                let id = live.take(&mut blocks, addresses[at]).unwrap();
                assert_eq!((blocks[id].address, live.len(&blocks)), (addresses[at], 2 - nth));
                assert_eq!(live.get(&blocks, addresses[at]), Err(not_live(addresses[at])));
                assert!(order[nth + 1..].iter().all(|left| live.get(&blocks, addresses[*left]).is_ok()));
            }
        }
    }
}

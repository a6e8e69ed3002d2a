//! The steps from a free block to a live one.

use super::blocks::block::{Block, Kind, State};
use super::blocks::request::{FitRules, Request};
use super::journal::allocations::Allocation;
use super::tables::Heap;
use crate::config::Advice;
use crate::error::{Error, Result};
use crate::fallible::try_insert;
use crate::ids::BlockId;
use crate::span::Span;

impl Heap {
    /// Hands out a block that was taken out of the free index. A rest that is large enough goes back as a free block.
    /// Returns the address of the block.
    ///
    /// # Errors
    /// The host has no memory to note the allocation. The block is free again.
    pub(crate) fn hand_out(&mut self, id: BlockId, request: &Request, rules: &FitRules) -> Result<u64> {
        if let Err(error) = self.addresses.try_reserve(1) {
            self.put_back(id);
            return Err(error.into());
        }
        let block = self.blocks[id];
        let Block { address, size, .. } = block;
        let was_split = block.is_split();
        // As in PyTorch, only free memory of a `malloc` segment counts as inactive split.
        let counted = block.kind == Kind::Malloc;
        let class = request.class;
        let rest = size - request.size;
        let mut taken = size;
        if rest >= rules.min_rest[class as usize] && request.size < rules.no_split_from {
            taken = request.size;
            self.blocks[id].size = taken;
            let part = block.part(Span::new(address + taken, rest), State::Free);
            let rest_id = match self.insert_after(id, part) {
                Ok(rest_id) => rest_id,
                Err(error) => {
                    self.blocks[id].size = size;
                    self.put_back(id);
                    return Err(error);
                }
            };
            if block.kind == Kind::Home {
                self.insert_free(rest_id)
            } else {
                self.insert_freed(rest_id)
            }
            if counted && was_split {
                self.journal.inactive_split_removed(class, 0, taken);
            } else if counted {
                self.journal.inactive_split_added(class, 1, rest);
            }
        } else if was_split && counted {
            self.journal.inactive_split_removed(class, 1, size);
        }
        let before = block.pool;
        let block = &mut self.blocks[id];
        block.state = State::Allocated;
        block.pool = request.pool;
        block.requested = request.requested;
        if self.rules.ages {
            (block.freed_at, block.advice) = (self.journal.counters().operations(), Advice::Normal);
        }
        self.addresses.insert(address, id);
        if before != request.pool {
            self.notify_moved(id, before);
        }
        let Request { requested, pool, .. } = *request;
        self.journal.allocated(Allocation { address, requested, size: taken, pool }, &self.pools);
        Ok(address)
    }

    /// Makes a block free again that was taken for a request, which failed before it was handed out.
    #[cold]
    pub(crate) fn put_back(&mut self, id: BlockId) {
        let Block { kind, pool, .. } = self.blocks[id];
        match kind {
            Kind::View => return self.return_pieces(id),
            Kind::Guarded => return self.retire(id),
            _ => {}
        }
        self.blocks[id].state = State::Free;
        let (was_split, was_size) = (self.blocks[id].is_split(), self.blocks[id].size);
        let (id, merged, merged_bytes) = self.merge_free(id);
        self.insert_free(id);
        if kind == Kind::Malloc && was_split {
            // The block counted as inactive, and so did the neighbours that it merged with.
            let (size, class) = (self.blocks[id].size, pool.class());
            let (now, now_bytes) = if self.blocks[id].is_split() { (1, size) } else { (0, 0) };
            self.journal.inactive_split_removed(class, merged + 1 - now, merged_bytes + was_size - now_bytes);
        }
        if kind == Kind::Home && pool.is_small() {
            self.return_slab(id);
        }
    }

    /// Returns the live allocation that starts at `address`.
    pub(crate) fn live(&self, address: u64) -> Result<BlockId> {
        match self.addresses.get(&address) {
            Some(id) => Ok(*id),
            None => self.unlisted().find(|id| self.blocks[*id].address == address).ok_or_else(|| not_live(address)),
        }
    }

    /// Returns the live allocations that are not in the address table.
    pub(super) fn unlisted(&self) -> impl Iterator<Item = BlockId> + '_ {
        std::iter::successors(self.unlisted.some(), |id| self.blocks[*id].right.some())
    }

    /// Takes a live allocation out of the address table, on the way to freeing it.
    #[inline]
    pub(crate) fn take_live(&mut self, address: u64) -> Result<BlockId> {
        match self.addresses.remove(&address) {
            Some(id) => Ok(id),
            None => self.take_unlisted(address),
        }
    }

    #[cold]
    fn take_unlisted(&mut self, address: u64) -> Result<BlockId> {
        let id = self.unlisted().find(|id| self.blocks[*id].address == address).ok_or_else(|| not_live(address))?;
        let next = self.blocks[id].right;
        let before = self.unlisted().find(|before| self.blocks[*before].right == id);
        match before {
            Some(before) => self.blocks[before].right = next,
            None => self.unlisted = next,
        }
        self.blocks[id].right = BlockId::NONE;
        Ok(id)
    }

    /// Undoes [`Self::take_live`]: the allocation stays live. The table may have to grow for the entry, since it may
    /// still count the removed entry as present.
    pub(crate) fn keep_live(&mut self, id: BlockId) {
        let address = self.blocks[id].address;
        if try_insert(&mut self.addresses, address, id).is_err() {
            self.unlist(id);
        }
    }

    pub(super) fn unlist(&mut self, id: BlockId) {
        self.blocks[id].right = self.unlisted;
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
    use crate::Allocator;
    use crate::config::Config;
    use crate::config::rounding::MIN_BLOCK;
    use crate::driver::sim::{SimConfig, SimGpu};
    use crate::heap::{HeapRules, Layout};
    use crate::ids::{PoolIndex, SegmentId, StreamId};
    use std::sync::Arc;

    fn on(options: &str) -> Allocator {
        let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap());
        Allocator::new(gpu, Config::parse(options).unwrap()).unwrap()
    }

    /// Puts back the block at an address, as if its request had failed before the block was handed out.
    fn put_back(heap: &mut Heap, address: u64) -> BlockId {
        let id = heap.take_live(address).unwrap();
        heap.put_back(id);
        id
    }

    #[test]
    fn a_guarded_block_that_is_put_back_waits_to_be_unmapped() {
        let allocator = on("guard:page");
        let address = allocator.allocate(MIN_BLOCK, StreamId(7)).unwrap();
        allocator.with_heap(|heap| {
            let id = put_back(heap, address);
            assert_eq!((heap.block(id).state, heap.take_retired()), (State::Retired, vec![id]));
        });
    }

    #[test]
    fn a_small_block_that_is_put_back_gives_its_slab_back() {
        let allocator = on("memory_limit:12MiB,chunk_size_mb:12");
        let large = allocator.allocate(12 << 20, StreamId(7)).unwrap();
        allocator.free(large).unwrap();
        let address = allocator.allocate(MIN_BLOCK, StreamId(7)).unwrap();
        allocator.with_heap(|heap| {
            let pool = heap.block(heap.live(address).unwrap()).pool.large();
            assert!(heap.best_fit(pool, 12 << 20).is_none());
            put_back(heap, address);
            assert!(heap.best_fit(pool, 12 << 20).is_some());
        });
    }

    #[test]
    fn live_blocks_outside_of_the_table_are_found_and_freed_in_any_order() {
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
            let rules = HeapRules {
                oversize_from: u64::MAX,
                adopts_idle: false,
                home_is_shared: false,
                layout: Layout::PYTORCH,
                flight: 0,
                ages: false,
            };
            let mut heap = Heap::new(rules).unwrap();
            let addresses = [512, 1024, 1536];
            for address in addresses {
                let span = Span::new(address, 512);
                let block = Block::new(span, PoolIndex::DEFAULT, SegmentId(0), Kind::Malloc, State::Allocated);
                let id = heap.blocks.insert(block).unwrap();
                heap.unlist(id);
            }
            for (nth, at) in order.into_iter().enumerate() {
                let id = heap.take_live(addresses[at]).unwrap();
                assert_eq!((heap.block(id).address, heap.unlisted().count()), (addresses[at], 2 - nth));
                assert_eq!(heap.live(addresses[at]), Err(not_live(addresses[at])));
                assert!(order[nth + 1..].iter().all(|left| heap.live(addresses[*left]).is_ok()));
            }
        }
    }
}

//! The steps from a free block to a live block.

use super::blocks::block::{Block, Kind, State};
use super::blocks::request::{FitRules, Request};
use super::journal::allocations::Allocation;
use super::tables::Heap;
use crate::config::Advice;
use crate::error::Result;
use crate::ids::BlockId;
use crate::span::Span;

impl Heap {
    /// Hands out a block that was taken out of the free index. If the rest of the block is large enough, the rest
    /// becomes a free block. Returns the address of the handed-out block.
    ///
    /// # Errors
    /// The host has no memory to note the allocation. The block is free again.
    pub(crate) fn hand_out(&mut self, id: BlockId, request: &Request, rules: &FitRules) -> Result<u64> {
        if let Err(error) = self.blocks.reserve_live(1) {
            self.put_back(id);
            return Err(error);
        }
        let block = self.blocks[id];
        let Block { address, size, .. } = block;
        let was_split = block.is_split();
        // As in PyTorch, only free parts of `malloc` segments count in the statistics of inactive splits.
        let counted = block.kind == Kind::Malloc;
        let class = request.class;
        let rest = size - request.size;
        let mut taken = size;
        if rest >= rules.min_rest[class as usize] && request.size < rules.no_split_from {
            taken = request.size;
            self.blocks[id].size = taken;
            let part = block.part(Span::new(address + taken, rest), State::Free);
            let rest_id = match self.blocks.insert_after(id, part) {
                Ok(rest_id) => rest_id,
                Err(error) => {
                    self.blocks[id].size = size;
                    self.put_back(id);
                    return Err(error);
                }
            };
            if block.kind == Kind::Home {
                self.blocks.insert_free(rest_id)
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
        self.blocks.add_live(address, id);
        if before != request.pool {
            self.notify_moved(id, before);
        }
        let Request { requested, pool, .. } = *request;
        self.journal.allocated(Allocation { address, requested, size: taken, pool }, &self.pools);
        Ok(address)
    }

    /// Makes a block free again that was taken for a request. The request failed before the block was handed out.
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
        self.blocks.insert_free(id);
        if kind == Kind::Malloc && was_split {
            // The block was counted as an inactive split, and so were the neighbours with which the block merged.
            let (size, class) = (self.blocks[id].size, pool.class());
            let (now, now_bytes) = if self.blocks[id].is_split() { (1, size) } else { (0, 0) };
            self.journal.inactive_split_removed(class, merged + 1 - now, merged_bytes + was_size - now_bytes);
        }
        if kind == Kind::Home && pool.is_small() {
            self.return_slab(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Allocator;
    use crate::config::Config;
    use crate::config::rounding::MIN_BLOCK;
    use crate::driver::sim::{SimConfig, SimGpu};
    use crate::ids::StreamId;
    use std::sync::Arc;

    fn on(options: &str) -> Allocator {
        let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap());
        Allocator::new(gpu, Config::parse(options).unwrap()).unwrap()
    }

    /// Puts back the block at an address, as if its request had failed before the block was handed out. Returns the
    /// block.
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
}

//! A free block becomes a live one.

use super::block::{Block, Kind, State};
use super::fit::{FitRules, Request};
use super::tables::Heap;
use crate::error::{Error, Result};
use crate::ids::{BlockId, Class};
use crate::report::observer::Action;
use crate::span::Span;

impl Heap {
    /// Hands out a block that was taken out of the free index. A rest that is large enough goes back as a free block.
    /// Returns the address of the block.
    pub(crate) fn hand_out(&mut self, id: BlockId, request: &Request, rules: &FitRules) -> Result<u64> {
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
            let Some(rest_id) = self.insert_after(id, block.part(Span::new(address + taken, rest), State::Free)) else {
                self.blocks[id].size = size;
                self.insert_free(id);
                return Err(Error::Internal("the block table is full"));
            };
            if block.kind == Kind::Home {
                self.insert_free(rest_id)
            } else {
                self.insert_freed(rest_id)
            }
            if counted && was_split {
                self.counters.inactive_split_bytes.sub(class, taken);
            } else if counted {
                self.counters.inactive_split_bytes.add(class, rest);
                self.counters.inactive_split.add(class, 1);
            }
        } else if was_split && counted {
            self.counters.inactive_split_bytes.sub(class, size);
            self.counters.inactive_split.sub(class, 1);
        }
        let before = block.pool;
        let block = &mut self.blocks[id];
        block.state = State::Allocated;
        block.pool = request.pool;
        block.requested = request.requested;
        self.addresses.insert(address, id);
        self.counters.allocation.add(class, 1);
        self.counters.allocated_bytes.add(class, taken);
        self.counters.active.add(class, 1);
        self.counters.active_bytes.add(class, taken);
        self.counters.requested_bytes.add(class, request.requested);
        if taken >= self.rules.oversize_from {
            self.counters.oversize_allocations.add(Class::Large, 1);
        }
        if self.observer.is_some() {
            self.notify_moved(id, before);
            self.notify(Action::Alloc, Span::new(address, request.requested), request.pool);
        }
        Ok(address)
    }

    /// Returns the live allocation that starts at `address`.
    pub(crate) fn live(&self, address: u64) -> Result<BlockId> {
        self.addresses.get(&address).copied().ok_or_else(|| not_live(address))
    }

    /// Takes a live allocation out of the address table, on the way to freeing it.
    #[inline]
    pub(crate) fn take_live(&mut self, address: u64) -> Result<BlockId> {
        self.addresses.remove(&address).ok_or_else(|| not_live(address))
    }

    /// Undoes [`Self::take_live`]: the allocation stays live.
    pub(crate) fn keep_live(&mut self, id: BlockId) {
        self.addresses.insert(self.blocks[id].address, id);
    }
}

/// Kept out of the code of every free that succeeds.
#[cold]
fn not_live(address: u64) -> Error {
    Error::InvalidAddress { address }
}

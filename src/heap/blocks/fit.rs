//! The search for a free block that serves a request.

use super::block::{BlockTable, State};
use super::layout::Placement;
use super::request::{FitRules, Request};
use crate::heap::tables::Heap;
use crate::ids::{BlockId, Class, PoolIndex};

impl Heap {
    /// Takes the block that serves the request best out of the free index. Returns [`BlockId::NONE`] if there is none.
    pub(crate) fn fit(&mut self, request: &Request, rules: &FitRules) -> BlockId {
        if rules.count_ages {
            self.pools.count_search(request.class);
        }
        let mut found = self.fit_in(request.pool, request, rules);
        if found.is_none() && rules.takes_idle && request.class == Class::Large {
            found = self.fit_in(self.pools.idle(), request, rules);
        }
        if rules.placement == Placement::Front || found.is_none() {
            return found;
        }
        self.place(found, request, rules.placement)
    }

    fn fit_in(&mut self, pool: PoolIndex, request: &Request, rules: &FitRules) -> BlockId {
        let pool = &mut self.pools[pool];
        let mut found = pool.free.best_fit(&self.blocks, request.size);
        if found.is_none() {
            return found;
        }
        if rules.growing_edge {
            // Only a block at a growing edge can serve more than its size, so only after such a block can the next one
            // be better.
            while room(&self.blocks, found) > self.blocks[found].size {
                let next = pool.free.successor(&self.blocks, found);
                if next.is_none() || room(&self.blocks, next) >= room(&self.blocks, found) {
                    break;
                }
                found = next;
            }
        }
        let size = self.blocks[found].size;
        let refused = if request.size < rules.max_split_size {
            size >= rules.max_split_size
        } else {
            size >= request.size.saturating_add(rules.max_non_split_rounding)
        };
        if refused {
            return BlockId::NONE;
        }
        pool.free.remove(&mut self.blocks, found);
        found
    }
}

/// Returns the bytes that a free block could serve if the unmapped space behind it were mapped.
fn room(blocks: &BlockTable, id: BlockId) -> u64 {
    let block = &blocks[id];
    let next = &blocks[block.next];
    block.size + if next.state == State::Unmapped { next.size } else { 0 }
}

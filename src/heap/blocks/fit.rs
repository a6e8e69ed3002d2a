//! The search for a free block that serves a request.

use super::block::{BlockTable, State};
use super::request::{FitRules, Request};
use super::table::Blocks;
use crate::ids::{BlockId, PoolIndex};

impl Blocks {
    /// Takes out of a pool's free index the block that serves a request best. Returns [`BlockId::NONE`] if no block
    /// serves the request.
    pub(in crate::heap) fn take_fit(&mut self, pool: PoolIndex, request: &Request, rules: &FitRules) -> BlockId {
        let Self { table, free, .. } = self;
        let free = &mut free[pool.slot()];
        let mut found = free.best_fit(table, request.size);
        if found.is_none() {
            return found;
        }
        if rules.growing_edge {
            // The block with the least room (its size plus the unmapped addresses after it) fits best. A block at a
            // growing edge has more room than its size, so a larger block may have less room.
            while room(table, found) > table[found].size {
                let next = free.successor(table, found);
                if next.is_none() || room(table, next) >= room(table, found) {
                    break;
                }
                found = next;
            }
        }
        let size = table[found].size;
        let refused = if request.size < rules.max_split_size {
            size >= rules.max_split_size
        } else {
            size >= request.size.saturating_add(rules.max_non_split_rounding)
        };
        if refused {
            return BlockId::NONE;
        }
        free.remove(table, found);
        found
    }
}

/// Returns the bytes that a free block could serve if the unmapped space after the block were mapped.
fn room(blocks: &BlockTable, id: BlockId) -> u64 {
    let block = &blocks[id];
    let next = &blocks[block.next];
    block.size + if next.state == State::Unmapped { next.size } else { 0 }
}

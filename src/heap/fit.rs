//! How a request finds a free block.
//!
//! Owns: [`FitRules`], the rules of a strategy as plain data, so that the hot path makes no dynamic call.

use super::block::{BlockTable, Kind, State};
use super::chunk_map::GRANULE;
use super::layout::Placement;
use super::tables::Heap;
use crate::config::rounding::MIN_BLOCK;
use crate::ids::{BlockId, Class, PoolIndex, ViewId};
use crate::span::Span;

/// How a request finds its block, and how the rest of the block is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FitRules {
    /// Whether a block at the growing edge of an expandable segment is compared by its size and the address space
    /// behind it.
    pub(crate) growing_edge: bool,
    /// Requests smaller than this may not take a block of at least this size; larger requests take such a block whole.
    pub(crate) max_split_size: u64,
    /// By how much a block may exceed a request of at least `max_split_size`.
    pub(crate) max_non_split_rounding: u64,
    /// The smallest rest that becomes a block of its own, by [`Class`].
    pub(crate) min_rest: [u64; 2],
    /// Requests of at least this size are not split from a larger block.
    pub(crate) no_split_from: u64,
    /// Whether the ages of free blocks matter.
    pub(crate) count_ages: bool,
    /// Whether a large request that its own pool cannot serve may take idle memory.
    pub(crate) takes_idle: bool,
    /// Where in its block a request lies.
    pub(crate) placement: Placement,
}

impl FitRules {
    /// The smallest block that fits serves a request, wherever it lies, and all of its rest becomes a block.
    pub(crate) const BEST: Self = Self {
        growing_edge: false,
        max_split_size: u64::MAX,
        max_non_split_rounding: u64::MAX,
        min_rest: [MIN_BLOCK; 2],
        no_split_from: u64::MAX,
        count_ages: false,
        takes_idle: false,
        placement: Placement::Front,
    };

    /// Only a block of the request's very size serves it: one that is a byte larger is refused.
    pub(crate) const EXACT: Self = Self { max_split_size: 0, max_non_split_rounding: 1, ..Self::BEST };
}

/// A request on its way to a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Bytes, rounded.
    pub(crate) size: u64,
    /// Bytes as the program asked for.
    pub(crate) requested: u64,
    pub(crate) pool: PoolIndex,
    pub(crate) class: Class,
    /// The view behind whose last part the bytes are to lie, in whole chunks; [`ViewId::NONE`] if they may lie anywhere.
    pub(crate) extends: ViewId,
}

impl Heap {
    /// Takes the block that serves the request best out of the free index. Returns [`BlockId::NONE`] if there is none.
    pub(crate) fn fit(&mut self, request: &Request, rules: &FitRules) -> BlockId {
        if rules.count_ages {
            self.searches[request.class as usize] += 1;
        }
        let mut found = self.fit_in(request.pool, request, rules);
        if found.is_none() && rules.takes_idle && request.class == Class::Large {
            found = self.fit_in(self.idle, request, rules);
        }
        if rules.placement == Placement::Front || found.is_none() {
            return found;
        }
        self.place(found, request, rules.placement)
    }

    /// Leaves the front of a block free that is in no index, by [`Placement::ByGranule`]. Returns the block behind it.
    #[cold]
    pub(super) fn leave_front(&mut self, id: BlockId, request: &Request) -> BlockId {
        let block = self.blocks[id];
        let front = front_of(block.span(), request.size);
        if front == 0 || block.kind != Kind::Home || request.class == Class::Small {
            return id;
        }
        let behind = block.part(Span::new(block.address + front, block.size - front), block.state);
        self.blocks[id].size = front;
        let Ok(behind) = self.insert_after(id, behind) else {
            // The host has no memory for it: at the front is as good a place, for this request.
            self.blocks[id].size = block.size;
            return id;
        };
        self.insert_free(id);
        behind
    }

    fn fit_in(&mut self, pool: PoolIndex, request: &Request, rules: &FitRules) -> BlockId {
        let pool = &mut self.pools[pool];
        let mut found = pool.free.best_fit(&self.blocks, request.size);
        if found.is_none() {
            return found;
        }
        if rules.growing_edge {
            // Only a block at a growing edge can serve more than its size, so only after one can the next block be
            // better.
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

/// Returns how many bytes of a free span stay free in front of a request, so that as many granules as possible stay whole. What
/// lies in part of a granule serves no view but at its ends, and no chunk can be split there.
/// ```text
/// granules          |      |      |      |      |
/// 2, odd start         ...............####[####]       ends at a border: at the end
/// 2, odd start         ....[####|####]............     else from the first border on
/// 1.5, odd end      |..............[####|##]           between two borders that it needs not, so at the odd end
/// ```
fn front_of(free: Span, size: u64) -> u64 {
    let is_odd = |at: u64| !at.is_multiple_of(GRANULE);
    let at_end = free.size - size;
    match (is_odd(free.start), is_odd(size), is_odd(free.end())) {
        (true, false, false) | (false, true, true) => at_end,
        (true, false, true) => {
            let front = free.start.next_multiple_of(GRANULE) - free.start;
            if front <= at_end { front } else { 0 }
        }
        _ => 0,
    }
}

/// Returns the bytes that a free block could serve if the unmapped space behind it were mapped.
fn room(blocks: &BlockTable, id: BlockId) -> u64 {
    let block = &blocks[id];
    let next = &blocks[block.next];
    block.size + if next.state == State::Unmapped { next.size } else { 0 }
}

//! The heap of one stream.
//!
//! Owns: how it serves requests from what was lent to it.

use super::table::{self, Formed};
use crate::config::rounding::{RoundupDivisions, SMALL_LIMIT, round_size};
use crate::heap::{Bank, FitRules, Heap, PeakRoom, Request};
use crate::ids::{Class, PoolIndex, StreamId, ViewId};

/// The heap of one stream. It serves requests as the allocator's heap would, from what was lent to it.
pub(super) struct Arena {
    pub(super) heap: Heap,
    /// The stream that it serves, or `None` while it has no memory.
    pub(super) stream: Option<StreamId>,
    /// The large pool of the stream in the allocator's heap.
    pub(super) large: PoolIndex,
    pub(super) fit: FitRules,
    pub(super) roundup: RoundupDivisions,
    pub(super) peak_room: PeakRoom,
    /// Allocations served since the memory was lent.
    pub(super) served: u64,
    /// What the move of its memory has cost, in requests.
    pub(super) cost: u64,
}

pub(super) type Lane = table::Lane<Arena>;
pub(super) type Tables = table::Tables<Arena>;

impl Formed for Arena {
    #[inline]
    fn is_formed(&self) -> bool {
        self.stream.is_some()
    }
}

/// An allocation of an arena.
pub(super) struct Served {
    pub(super) address: u64,
    /// Whether all heaps are to be counted, because a peak may be a new one.
    pub(super) settles: bool,
}

impl Arena {
    /// Serves a request from what it has, or returns `None`.
    #[inline]
    pub(super) fn allocate(&mut self, requested: u64, bank: &Bank) -> Option<Served> {
        let size = round_size(requested, &self.roundup);
        let class = Class::of(size <= SMALL_LIMIT);
        let request = Request { size, requested, pool: PoolIndex::DEFAULT.of(class), class, extends: ViewId::NONE };
        let id = self.heap.fit(&request, &self.fit).some()?;
        let address = self.heap.hand_out(id, &request, &self.fit).ok()?;
        self.served += 1;
        let settles = self.peak_room.risen(class, self.heap.counters().figures(class), bank);
        Some(Served { address, settles })
    }

    /// Frees a block that it has, or returns `None`.
    #[inline]
    pub(super) fn free(&mut self, address: u64, bank: &Bank) -> Option<()> {
        let id = self.heap.take_live(address).ok()?;
        let class = self.heap.block(id).pool.class();
        self.heap.free_at_once(id);
        self.peak_room.fallen(class, self.heap.counters().figures(class), bank);
        Some(())
    }
}

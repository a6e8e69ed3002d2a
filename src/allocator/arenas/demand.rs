//! How much arenas are in demand.
//!
//! Owns: how often threads have to stand in each other's way before a stream gets one, so that moves of memory pay.

/// How often threads stand in each other's way before a stream gets an arena.
const CONTENTIONS: u32 = 16;
/// The most contentions that are waited for, where arenas do not last.
const MOST_CONTENTIONS: u32 = 1 << 20;

/// How much arenas are in demand.
#[derive(Debug)]
pub(in crate::allocator) struct Demand {
    pub(super) contentions: u32,
    /// An arena is formed at so many.
    pub(super) wanted: u32,
    /// `wanted`, as long as arenas pay.
    first: u32,
    /// What arenas have cost, less what they have served, in requests.
    debt: u64,
    /// How many were formed.
    pub(super) formed: u64,
}

impl Demand {
    /// With `arenas:always` each request that takes the allocator's lock counts, contended or not, and the first suffices.
    pub(in crate::allocator) fn new(always: bool) -> Self {
        let first = if always { 1 } else { CONTENTIONS };
        Self { contentions: 0, wanted: first, first, debt: 0, formed: 0 }
    }

    /// Notes that a thread found the allocator's lock taken.
    pub(in crate::allocator) fn contended(&mut self) {
        self.contentions = self.contentions.saturating_add(1);
    }

    /// Returns how many arenas were formed.
    pub(in crate::allocator) fn formed(&self) -> u64 {
        self.formed
    }

    /// Notes what it has cost to look for memory.
    pub(super) fn owe(&mut self, cost: u64) {
        self.debt = self.debt.saturating_add(cost);
    }

    /// Notes that an arena gave its memory back, what it has served, and what its moves have cost.
    pub(super) fn ended(&mut self, served: u64, cost: u64) {
        self.contentions = 0;
        self.owe(cost);
        self.debt = self.debt.saturating_sub(served);
        self.wanted = if self.debt == 0 { self.first } else { (2 * self.wanted).min(MOST_CONTENTIONS) };
    }
}

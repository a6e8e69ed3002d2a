//! An allocator whose heaps are sets of live blocks.
//!
//! Owns: the order of steps, which is that of `formation.rs`, `serving.rs` and `free.rs`.

use crate::heap::GRANULE;
use crate::ids::StreamId;
use crate::primitive::Mutex;
use crate::span::Span;
use crate::table::{Formed, Lane, Tables};
use std::collections::BTreeSet;

pub(crate) const HOME: u64 = 1 << 40;
/// Two streams that look for the same lane first: the upper half of handle times the constant of `table.rs` is equal modulo
/// the number of lanes.
pub(crate) const A: StreamId = StreamId(1);
pub(crate) const B: StreamId = StreamId(60);

/// What a thread makes sure of once it has a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checks {
    All,
    /// Not whether the arena is still that of its stream.
    NotTheStream,
    /// Not whether an arena came while it waited for the allocator's lock.
    NotUnderTheLock,
}

#[derive(Default)]
pub(crate) struct Heap {
    pub(crate) live: BTreeSet<u64>,
}

pub(crate) struct Arena {
    stream: Option<StreamId>,
    live: BTreeSet<u64>,
    span: Span,
}

impl Formed for Arena {
    fn is_formed(&self) -> bool {
        self.stream.is_some()
    }
}

pub(crate) struct Allocator {
    pub(crate) core: Mutex<Heap>,
    tables: Tables<Arena>,
    checks: Checks,
}

impl Allocator {
    pub(crate) fn new(checks: Checks) -> Self {
        let tables = Tables::new(Span { start: HOME, size: 2 * GRANULE }).unwrap();
        Self { core: Mutex::new(Heap::default()), tables, checks }
    }

    /// Lends a stream the memory of so many granules of home that no other has.
    pub(crate) fn form(&self, stream: StreamId, granules: u64) {
        let mut core = self.core.lock();
        let is_lent = |at: &u64| self.tables.lane_at(*at).is_some();
        let start = if is_lent(&HOME) { HOME + GRANULE } else { HOME };
        let span = Span { start, size: granules * GRANULE };
        let lane = self.tables.lane_for(stream).unwrap();
        let mut place = lane.arena.lock();
        let lent = |block: &u64| (span.start..span.start + span.size).contains(block);
        let live = core.live.iter().copied().filter(lent).collect();
        core.live.retain(|block| !lent(block));
        let arena = place.insert(Arena { stream: None, live, span });
        self.tables.set_owner(span, Some(lane));
        arena.stream = Some(stream);
        self.tables.assign(lane, stream);
    }

    /// Takes all memory back.
    pub(crate) fn recall_all(&self) {
        let mut core = self.core.lock();
        self.tables.lanes.iter().for_each(|lane| self.recall(&mut core, lane));
    }

    fn recall(&self, core: &mut Heap, lane: &Lane<Arena>) {
        let Some(mut arena) = lane.lock() else { return };
        self.tables.set_owner(arena.span, None);
        core.live.append(&mut arena.live);
        arena.stream = None;
    }

    /// Returns whose memory serves a request of a stream: an arena's, or its own in the allocator's heap.
    pub(crate) fn allocate(&self, stream: StreamId) -> StreamId {
        let arena = self.tables.lane_of(stream).and_then(Lane::lock);
        let is_its = |arena: &Option<StreamId>| self.checks == Checks::NotTheStream || *arena == Some(stream);
        if let Some(owner) = arena.map(|arena| arena.stream).filter(is_its) {
            return owner.unwrap();
        }
        drop(self.core.lock());
        stream
    }

    /// Frees a live block, in whichever heap it is.
    pub(crate) fn free(&self, address: u64) {
        if self.free_in_arena(address) {
            return;
        }
        let mut core = self.core.lock();
        if self.checks != Checks::NotUnderTheLock && self.free_in_arena(address) {
            return;
        }
        assert!(core.live.remove(&address), "{address:#x} is live, and no heap has it");
    }

    fn free_in_arena(&self, address: u64) -> bool {
        self.tables.lane_at(address).and_then(Lane::lock).is_some_and(|mut arena| arena.live.remove(&address))
    }

    /// The live blocks of all heaps.
    pub(crate) fn live(&self) -> BTreeSet<u64> {
        self.recall_all();
        self.core.lock().live.clone()
    }
}

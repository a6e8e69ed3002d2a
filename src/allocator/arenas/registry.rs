//! The arenas of an allocator.
//!
//! Owns: which there are.

use super::arena::{Arena, Lane, Tables};
use super::table::{self, LANES};
use crate::heap::Bank;
use crate::ids::StreamId;
use crate::report::stats::ArenaStats;
use parking_lot::MutexGuard;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The arenas of an allocator. Only reading them is part of the hot path, so they share no cache line with a lock.
#[derive(Default)]
#[repr(align(128))]
pub(in crate::allocator) struct Arenas {
    /// How many there are. It changes under the allocator's lock.
    pub(super) active: AtomicUsize,
    /// Made with the first arena.
    pub(super) tables: OnceLock<Tables>,
    /// What is left below the peaks of statistics.
    pub(in crate::allocator) bank: Bank,
    /// Whether each stream gets one as soon as it may.
    pub(super) always: bool,
}

/// The locks of all arenas.
pub(super) type Locked<'a> = [Option<MutexGuard<'a, Option<Arena>>>; LANES];

impl Arenas {
    pub(in crate::allocator) fn new(always: bool) -> Self {
        Self { always, ..Self::default() }
    }

    /// Returns whether any stream has an arena.
    #[inline]
    pub(in crate::allocator) fn are_active(&self) -> bool {
        self.active.load(Ordering::Relaxed) > 0
    }

    /// Returns the figures for users.
    pub(in crate::allocator) fn stats(&self, formed: u64) -> ArenaStats {
        ArenaStats { now: self.active.load(Ordering::Relaxed) as u64, formed }
    }

    /// Returns the arena that may have the block at `address`.
    #[inline]
    pub(super) fn lane_at(&self, address: u64) -> Option<&Lane> {
        self.tables.get()?.lane_at(address)
    }

    pub(super) fn lanes(&self) -> &[Lane] {
        self.tables.get().map_or(&[], |tables| &tables.lanes)
    }

    /// Takes the locks of all arenas, for which no memory is needed. The caller has the allocator's lock.
    pub(super) fn lock_all(&self) -> Locked<'_> {
        let mut lanes = self.lanes().iter();
        std::array::from_fn(|_| lanes.next().map(|lane| lane.arena.lock()))
    }

    /// Returns whether a stream has an arena. The caller has the allocator's lock.
    pub(super) fn has(&self, stream: StreamId) -> bool {
        let lane = self.tables.get().and_then(|tables| tables.lane_of(stream));
        lane.and_then(Lane::lock).is_some_and(|arena| arena.stream == Some(stream))
    }
}

/// Returns the arenas that have memory.
pub(super) fn formed<'a>(locked: &'a mut Locked<'_>) -> impl Iterator<Item = &'a mut Arena> {
    locked.iter_mut().flatten().filter_map(|arena| table::formed(arena))
}

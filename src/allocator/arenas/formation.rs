//! Arenas come and go.
//!
//! Owns: when a stream gets an arena, and the moves of its memory there and back.

use super::arena::{Arena, Lane, Tables};
use super::registry::Arenas;
use crate::allocator::core::{Allocator, Core};
use crate::config::{self, StrategyKind, StreamSharing};
use crate::error::Result;
use crate::heap::{FitRules, Heap, HeapRules, Layout, Lent, PeakRoom};
use crate::ids::{PoolIndex, StreamId};
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;

/// An arena pays for each block that moves there or back with so many requests that it serves, and with one for each block that
/// was looked at, at whomever's. A move takes about as long as a request, a look less.
const MOVE: u64 = 4;

/// In bytes: beside twice its size, no request makes memory grow by more. A chunk has 1 GiB at most.
const GROWS_BY: u64 = 1 << 30;

impl Arenas {
    /// Takes the memory of all arenas back.
    ///
    /// # Errors
    /// The host has no memory for the tables. The arenas not reached go on.
    #[cold]
    pub(in crate::allocator) fn recall_all(&self, core: &mut Core) -> Result<()> {
        self.lanes().iter().try_for_each(|lane| self.recall(core, lane).map(|_| ()))
    }

    /// Takes the memory of the arena of a large pool's stream back. Returns whether there was one.
    #[cold]
    pub(in crate::allocator) fn recall_of(&self, core: &mut Core, large: PoolIndex) -> Result<bool> {
        for lane in self.lanes() {
            if lane.lock().is_some_and(|arena| arena.large == large) {
                return self.recall(core, lane);
            }
        }
        Ok(false)
    }

    /// Takes the memory of one arena back. Returns whether it had any.
    #[cold]
    pub(super) fn recall(&self, core: &mut Core, lane: &Lane) -> Result<bool> {
        let Some(mut arena) = lane.lock() else { return Ok(false) };
        let Some(tables) = self.tables.get() else { return Ok(false) };
        // A free that still finds the arena waits for its lock, and then finds that it has nothing.
        arena.heap.lent_spans().for_each(|span| tables.set_owner(span, None));
        let taken = core.heap.take_back(arena.large, &mut arena.heap);
        let moved = taken.inspect_err(|_| {
            arena.heap.lent_spans().for_each(|span| tables.set_owner(span, Some(lane)));
        })?;
        arena.stream = None;
        self.active.fetch_sub(1, Ordering::Relaxed);
        core.demand.ended(arena.served, arena.cost + MOVE * moved as u64);
        Ok(true)
    }

    /// Lends the memory of a stream to an arena. Returns whether the stream has one then.
    fn form(&self, core: &mut Core, stream: StreamId, large: PoolIndex) -> Result<bool> {
        let Some(home) = core.heap.home().map(|home| home.span) else { return Ok(false) };
        let tables = match self.tables.get() {
            Some(tables) => tables,
            None => {
                let tables = Tables::new(home)?;
                self.tables.get_or_init(|| tables)
            }
        };
        if !self.are_active() && !tables.place(home) {
            return Ok(false);
        }
        let Some(lane) = tables.lane_for(stream) else { return Ok(false) };
        let mut place = lane.arena.lock();
        let heap = match place.take() {
            Some(arena) => arena.heap,
            None => Heap::new(HeapRules {
                oversize_from: u64::MAX,
                adopts_idle: false,
                home_is_shared: false,
                layout: Layout::PYTORCH,
                flight: core.config.flight_recorder,
                ages: false,
            })?,
        };
        let arena = place.insert(Arena {
            heap,
            stream: None,
            large,
            fit: FitRules { takes_idle: false, ..core.rules.fit },
            roundup: core.config.roundup_power2_divisions,
            peak_room: PeakRoom::default(),
            served: 0,
            cost: 0,
        });
        let Lent { moved, walked } = core.heap.lend(large, &mut arena.heap)?;
        arena.cost = MOVE * moved as u64 + walked as u64;
        if moved == 0 {
            core.demand.owe(arena.cost);
            return Ok(false);
        }
        arena.heap.lent_spans().for_each(|span| tables.set_owner(span, Some(lane)));
        arena.stream = Some(stream);
        tables.assign(lane, stream);
        self.active.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }
}

impl Allocator {
    /// Takes the allocator's lock at once, for a request. Returns `None` if another thread has it, or if the stream should get
    /// an arena.
    #[inline]
    pub(in crate::allocator) fn try_lock(&self) -> Option<MutexGuard<'_, Core>> {
        if self.arenas.always { None } else { self.core.try_lock() }
    }

    /// Takes the lock that another thread has, for a request of a stream. Returns `None` if the stream has an arena now.
    #[cold]
    pub(in crate::allocator) fn lock_contended(&self, stream: StreamId) -> Option<MutexGuard<'_, Core>> {
        let mut core = self.core.lock();
        core.demand.contended();
        if core.demand.contentions >= core.demand.wanted && self.form_arena(&mut core, stream) {
            return None;
        }
        Some(core)
    }

    /// Gives a stream an arena, if it may have one. Returns whether it has.
    fn form_arena(&self, core: &mut Core, stream: StreamId) -> bool {
        // Another thread with this stream may have waited for the lock before.
        if self.arenas.has(stream) {
            return true;
        }
        let Some(large) = core.arena_pool(stream) else { return false };
        let formed = self.arenas.form(core, stream, large);
        match formed {
            Ok(true) => {
                core.demand.formed += 1;
                self.settle(core);
                true
            }
            Ok(false) => {
                core.demand.ended(0, 1);
                false
            }
            Err(error) => {
                tracing::debug!(%error, %stream, "a stream gets no heap of its own");
                false
            }
        }
    }
}

impl Core {
    /// Returns the large pool of a stream that may have an arena at present.
    fn arena_pool(&mut self, stream: StreamId) -> Option<PoolIndex> {
        let shares_nothing = self.streams.shortage.in_force(self.config.sharing) == StreamSharing::Never;
        let is_plain = self.config.strategy == StrategyKind::Stitch
            && self.config.arenas != config::Arenas::Off
            && self.config.max_split_size.is_none()
            && !self.has_pre_work
            && self.guard.is_none()
            && !self.heap.is_observed()
            && !self.capturing()
            && self.shares.is_empty();
        if !shares_nothing || !is_plain || self.heap.is_borrowed(stream) {
            return None;
        }
        let (pool, _) = self.heap.pool_for(stream, 1)?;
        let large = pool.large();
        (self.heap.pool(large).stream == stream).then_some(large)
    }

    /// Returns whether memory stays plentiful, for all that is known, if a request of this size makes it grow.
    pub(in crate::allocator) fn stays_plentiful(&self, size: u64) -> bool {
        let most = self.heap.reserved().saturating_add(size.saturating_mul(2)).saturating_add(GROWS_BY);
        // Where streams never share, nothing changes at any border.
        self.config.sharing == StreamSharing::Never || self.streams.shortage.is_plentiful_to(most)
    }
}

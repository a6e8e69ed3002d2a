//! Arenas: heaps of single streams, each with a lock of its own.
//!
//! Owns: which stream has an arena, and the steps that involve its lock. `heap/arena.rs` moves the memory.
//!
//! # Note: arenas
//!
//! **Rationale.** Threads with a stream each share nothing while memory is plentiful, and yet stand in line at the one lock
//! of the allocator: four threads did a fifth of what one does.
//!
//! **Approach.** Once threads stand in each other's way, the memory that a stream has alone is lent to an arena. Requests of
//! the stream, and frees of its blocks, then take the arena's lock alone. A free finds the arena by a table with one entry for
//! each granule of home, which is read without a lock.
//! ```text
//! allocate(size, stream)    arena of the stream -- fits --> done      free(address)    arena of the granule --> done
//!                                  | none, or it does not fit                                  | none
//!                                  v                                                           v
//!                           the allocator's lock: the arena gives its memory back,      the allocator's lock
//!                           and the request is served as ever
//! ```
//! All else takes the allocator's lock, and then all memory back first: what looks at more than one block sees one heap. So
//! does a request that would make memory short, or that would be refused.
//!
//! Locks are taken in one order: the allocator's, then those of arenas by number. An arena comes and goes under both. So who
//! has the allocator's lock knows which arenas there are, and who has an arena's lock knows whether it still is one.
//!
//! Statistics are exact. What arenas count is added up; for peaks see `heap/headroom.rs`.
//!
//! **Limitations.**
//! - Several threads with one stream stand in line as before.
//! - A stream whose memory is taken back often gains nothing. Its arena comes back later each time.
//! - A stream has no arena while events are observed, requests are routed to private pools, memory is shared with other
//!   processes, or in guard mode.

mod formation;
mod table;

use self::table::{LANES, Lane, Tables};
use super::core::{Allocator, Core};
use crate::config::rounding::{RoundupDivisions, SMALL_LIMIT, round_size};
use crate::error::Result;
use crate::heap::{Bank, Block, Figures, FitRules, Headroom, Heap, Request};
use crate::ids::{Class, PoolIndex, StreamId};
use crate::report::stats::{ArenaStats, Stats};
use parking_lot::MutexGuard;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(super) use formation::Demand;

/// The arenas of an allocator. Only reading them is part of the hot path, so they share no cache line with a lock.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Arenas {
    /// How many there are. It changes under the allocator's lock.
    active: AtomicUsize,
    /// Made with the first arena.
    tables: OnceLock<Tables>,
    /// What is left below the peaks of statistics.
    pub(super) bank: Bank,
    /// Whether each stream gets one as soon as it may.
    always: bool,
}

/// The heap of one stream. It serves requests as the allocator's heap would, from what was lent to it.
pub(super) struct Arena {
    heap: Heap,
    /// The stream that it serves, or `None` while it has no memory.
    stream: Option<StreamId>,
    /// The large pool of the stream in the allocator's heap.
    large: PoolIndex,
    fit: FitRules,
    roundup: RoundupDivisions,
    headroom: Headroom,
    /// Allocations served since the memory was lent.
    served: u64,
    /// What the move of its memory has cost, as in [`Demand`].
    cost: u64,
}

/// The locks of all arenas.
type Locked<'a> = [Option<MutexGuard<'a, Option<Arena>>>; LANES];

/// An allocation of an arena.
struct Served {
    address: u64,
    /// Whether all heaps are to be counted, because a peak may be a new one.
    settles: bool,
}

impl Arenas {
    pub(super) fn new(always: bool) -> Self {
        Self { always, ..Self::default() }
    }

    /// Returns whether any stream has an arena.
    #[inline]
    pub(super) fn are_active(&self) -> bool {
        self.active.load(Ordering::Relaxed) > 0
    }

    /// Returns the figures for users.
    pub(super) fn stats(&self, core: &Core) -> ArenaStats {
        ArenaStats { now: self.active.load(Ordering::Relaxed) as u64, formed: core.demand.formed() }
    }

    /// Returns the arena that may have the block at `address`.
    #[inline]
    fn lane_at(&self, address: u64) -> Option<&Lane> {
        self.tables.get()?.lane_at(address)
    }

    fn lanes(&self) -> &[Lane] {
        self.tables.get().map_or(&[], |tables| &tables.lanes)
    }

    /// Takes the locks of all arenas, for which no memory is needed. The caller has the allocator's lock.
    fn lock_all(&self) -> Locked<'_> {
        let mut lanes = self.lanes().iter();
        std::array::from_fn(|_| lanes.next().map(|lane| lane.arena.lock()))
    }

    /// Returns whether a stream has an arena. The caller has the allocator's lock.
    fn has(&self, stream: StreamId) -> bool {
        let lane = self.tables.get().and_then(|tables| tables.lane_of(stream));
        lane.is_some_and(|lane| lane.arena.lock().as_ref().is_some_and(|arena| arena.stream == Some(stream)))
    }
}

impl Arena {
    /// Serves a request from what it has, or returns `None`.
    #[inline]
    fn allocate(&mut self, requested: u64, bank: &Bank) -> Option<Served> {
        let size = round_size(requested, &self.roundup);
        let class = Class::of(size <= SMALL_LIMIT);
        let request = Request { size, requested, pool: PoolIndex::DEFAULT.of(class), class };
        let id = self.heap.fit(&request, &self.fit).some()?;
        let address = self.heap.hand_out(id, &request, &self.fit).ok()?;
        self.served += 1;
        let settles = self.headroom.risen(class, self.heap.counters().figures(class), bank);
        Some(Served { address, settles })
    }

    /// Frees a block that it has, or returns `None`.
    #[inline]
    fn free(&mut self, address: u64, bank: &Bank) -> Option<()> {
        let id = self.heap.take_live(address).ok()?;
        let class = self.heap.block(id).pool.class();
        self.heap.free_requested(id);
        self.heap.free_completed(id);
        self.headroom.fallen(class, self.heap.counters().figures(class), bank);
        Some(())
    }

    /// Checks every rule of its heap, where [`Core::checked`] does.
    fn checked(&self) -> Result<()> {
        Core::checked_by(|| self.heap.check())
    }
}

impl Allocator {
    /// Serves a request by the arena of its stream. Returns `None` if it has none, or if that has too little.
    #[inline]
    pub(super) fn allocate_in_arena(&self, size: u64, stream: StreamId) -> Option<Result<u64>> {
        let lane = self.arenas.tables.get()?.lane_of(stream)?;
        let mut arena = lane.arena.lock();
        let serving = arena.as_mut().filter(|arena| arena.stream == Some(stream))?;
        let Served { address, settles } = serving.allocate(size, &self.arenas.bank)?;
        let checked = serving.checked();
        drop(arena);
        if settles {
            self.settle(&mut self.core.lock());
        }
        Some(checked.map(|()| address))
    }

    /// Frees a block that an arena has. Returns `None` if none has it.
    #[inline]
    pub(super) fn free_in_arena(&self, address: u64) -> Option<Result<()>> {
        let mut arena = self.arenas.lane_at(address)?.arena.lock();
        let arena = arena.as_mut().filter(|arena| arena.stream.is_some())?;
        arena.free(address, &self.arenas.bank)?;
        Some(arena.checked())
    }

    /// Does the same as [`Self::free_in_arena`], if the block is of this stream.
    pub(super) fn free_in_arena_of(&self, address: u64, stream: StreamId) -> Option<Result<()>> {
        let mut arena = self.arenas.lane_at(address)?.arena.lock();
        let arena = arena.as_mut().filter(|arena| arena.stream == Some(stream))?;
        arena.free(address, &self.arenas.bank)?;
        Some(arena.checked())
    }

    /// Returns the live block at an address, if an arena has it. The caller has the allocator's lock.
    pub(super) fn live_in_arena(&self, address: u64) -> Option<Block> {
        let arena = self.arenas.lane_at(address)?.arena.lock();
        let heap = &arena.as_ref().filter(|arena| arena.stream.is_some())?.heap;
        heap.live(address).ok().map(|id| *heap.block(id))
    }

    /// Takes the lock for an operation that looks at all memory: no arena has any then.
    ///
    /// # Errors
    /// [`Error::HostMemory`](crate::Error::HostMemory): an arena could not give its memory back.
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, Core>> {
        let mut core = self.core.lock();
        if self.arenas.are_active() {
            self.arenas.recall_all(&mut core)?;
        }
        Ok(core)
    }

    /// Takes the lock for an operation that looks at one live block: no arena has it then.
    ///
    /// # Errors
    /// Those of [`Self::lock`].
    pub(super) fn lock_for(&self, address: u64) -> Result<MutexGuard<'_, Core>> {
        let mut core = self.core.lock();
        if self.arenas.are_active()
            && let Some(lane) = self.arenas.lane_at(address)
        {
            self.arenas.recall(&mut core, lane)?;
        }
        Ok(core)
    }

    /// Takes the lock for an operation on all memory that cannot fail. If an arena cannot give its memory back, it keeps it.
    pub(super) fn lock_if_possible(&self, what: &'static str) -> MutexGuard<'_, Core> {
        let mut core = self.core.lock();
        if self.arenas.are_active()
            && let Err(error) = self.arenas.recall_all(&mut core)
        {
            tracing::warn!(%error, "{what} misses the memory of a stream");
        }
        core
    }

    /// Raises the peaks of all heaps together, and divides the room below them anew.
    #[cold]
    pub(super) fn settle(&self, core: &mut Core) {
        self.settle_locked(core, &mut self.arenas.lock_all());
    }

    fn settle_locked(&self, core: &mut Core, locked: &mut Locked<'_>) {
        let room = core.heap.counters_mut().settle(formed(locked).map(|arena| arena.heap.counters_mut()));
        let part = self.arenas.bank.divide(room, formed(locked).count() + 1);
        core.headroom = room_of(&core.heap, part);
        formed(locked).for_each(|arena| arena.headroom = room_of(&arena.heap, part));
    }

    /// Returns the statistics of all heaps together.
    pub(super) fn stats_with_arenas(&self, core: &mut Core) -> Stats {
        // Of one moment: no arena goes on before all are counted.
        let mut locked = self.arenas.lock_all();
        self.settle_locked(core, &mut locked);
        let mut together = core.heap.counters().clone();
        formed(&mut locked).for_each(|arena| together.take_back(&mut arena.heap.counters().clone()));
        together.stats()
    }

    /// Returns about how many bytes of host memory the arenas take.
    pub(super) fn arenas_host_bytes(&self) -> usize {
        let tables = self.arenas.tables.get().map_or(0, Tables::host_bytes);
        let heaps =
            self.arenas.lanes().iter().map(|lane| lane.arena.lock().as_ref().map_or(0, |a| a.heap.host_bytes()));
        tables + heaps.sum::<usize>()
    }
}

/// Returns the arenas that have memory.
fn formed<'a>(locked: &'a mut Locked<'_>) -> impl Iterator<Item = &'a mut Arena> {
    let arenas = locked.iter_mut().flatten().filter_map(|arena| arena.as_mut());
    arenas.filter(|arena| arena.stream.is_some())
}

/// Returns the room of a heap that gets this part.
fn room_of(heap: &Heap, part: Figures) -> Headroom {
    Headroom::new(heap.counters().all_figures(), part)
}

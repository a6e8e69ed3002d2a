//! Operations beside arenas: what takes an arena's lock alone, and what takes the allocator's.
//!
//! Owns: the order of the locks, and figures of all heaps together.

use super::arena::{Served, Tables};
use super::registry::{Locked, formed};
use crate::allocator::core::{Allocator, Core};
use crate::error::Result;
use crate::heap::{Block, Figures, Heap, PeakRoom};
use crate::ids::StreamId;
use crate::report::stats::Stats;
use parking_lot::MutexGuard;

impl Allocator {
    /// Serves a request by the arena of its stream. Returns `None` if it has none, or if that has too little.
    #[inline]
    pub(in crate::allocator) fn allocate_in_arena(&self, size: u64, stream: StreamId) -> Option<Result<u64>> {
        let lane = self.arenas.tables.get()?.lane_of(stream)?;
        let mut arena = lane.lock().filter(|arena| arena.stream == Some(stream))?;
        let Served { address, settles } = arena.allocate(size, &self.arenas.bank)?;
        let checked = Core::checked_by(|| arena.heap.check());
        drop(arena);
        if settles {
            self.settle(&mut self.core.lock());
        }
        Some(checked.map(|()| address))
    }

    /// Frees a block that the arena of a stream has, of whichever if none is given. Returns `None` if none has it.
    #[inline]
    pub(in crate::allocator) fn free_in_arena(&self, address: u64, stream: Option<StreamId>) -> Option<Result<()>> {
        let mut arena = self.arenas.lane_at(address)?.lock()?;
        if stream.is_some() && arena.stream != stream {
            return None;
        }
        arena.free(address, &self.arenas.bank)?;
        Some(Core::checked_by(|| arena.heap.check()))
    }

    /// Returns the live block at an address, if an arena has it. The caller has the allocator's lock.
    pub(in crate::allocator) fn live_in_arena(&self, address: u64) -> Option<Block> {
        let arena = self.arenas.lane_at(address)?.lock()?;
        arena.heap.live(address).ok().map(|id| *arena.heap.block(id))
    }

    /// Takes the lock for an operation that looks at all memory: no arena has any then.
    ///
    /// # Errors
    /// [`Error::HostMemory`](crate::Error::HostMemory): an arena could not give its memory back.
    pub(in crate::allocator) fn lock(&self) -> Result<MutexGuard<'_, Core>> {
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
    pub(in crate::allocator) fn lock_for(&self, address: u64) -> Result<MutexGuard<'_, Core>> {
        let mut core = self.core.lock();
        if self.arenas.are_active()
            && let Some(lane) = self.arenas.lane_at(address)
        {
            self.arenas.recall(&mut core, lane)?;
        }
        Ok(core)
    }

    /// Takes the lock for an operation on all memory that cannot fail. If an arena cannot give its memory back, it keeps it.
    pub(in crate::allocator) fn lock_if_possible(&self, what: &'static str) -> MutexGuard<'_, Core> {
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
    pub(in crate::allocator) fn settle(&self, core: &mut Core) {
        self.settle_locked(core, &mut self.arenas.lock_all());
    }

    fn settle_locked(&self, core: &mut Core, locked: &mut Locked<'_>) {
        let room = core.heap.counters_mut().settle(formed(locked).map(|arena| arena.heap.counters_mut()));
        let part = self.arenas.bank.divide(room, formed(locked).count() + 1);
        core.peak_room = room_of(&core.heap, part);
        formed(locked).for_each(|arena| arena.peak_room = room_of(&arena.heap, part));
    }

    /// Returns the statistics of all heaps together.
    pub(in crate::allocator) fn stats_with_arenas(&self, core: &mut Core) -> Stats {
        // Of one moment: no arena goes on before all are counted.
        let mut locked = self.arenas.lock_all();
        self.settle_locked(core, &mut locked);
        let mut together = core.heap.counters().clone();
        formed(&mut locked).for_each(|arena| together.take_back(&mut arena.heap.counters().clone()));
        together.stats()
    }

    /// Returns about how many bytes of host memory the arenas take.
    pub(in crate::allocator) fn arenas_host_bytes(&self) -> usize {
        let tables = self.arenas.tables.get().map_or(0, Tables::host_bytes);
        let heaps =
            self.arenas.lanes().iter().map(|lane| lane.arena.lock().as_ref().map_or(0, |a| a.heap.host_bytes()));
        tables + heaps.sum::<usize>()
    }
}

/// Returns the room of a heap that gets this part.
fn room_of(heap: &Heap, part: Figures) -> PeakRoom {
    PeakRoom::new(heap.counters().all_figures(), part)
}

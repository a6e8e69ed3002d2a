//! The measures of fragmentation, for [`Fragmentation`]. A walk over all free ranges takes these measures, and changes
//! no table.

use super::blocks::starts::GRANULE;
use super::tables::Heap;
use crate::config::StreamSharing;
use crate::error::Result;
use crate::fallible::{Grown, TryCollect, TryPush, with_room};
use crate::ids::PoolIndex;
use crate::report::fragmentation::{Fragmentation, Owner, PoolMemory, StreamMemory};
use crate::span::Span;

impl Heap {
    /// Returns the bytes of the longest free range of a pool.
    pub(crate) fn largest_in(&self, pool: PoolIndex) -> u64 {
        self.blocks[self.largest_free(pool)].size
    }

    /// Returns the fragmentation of the heap. `servable` returns the largest request that could be served for the
    /// stream of a large pool. The time is linear in the number of free ranges.
    ///
    /// # Errors
    /// The host has no memory for the lists.
    pub(crate) fn measure(&self, sharing: StreamSharing, servable: impl Fn(PoolIndex) -> u64) -> Result<Fragmentation> {
        let allocated = self.journal.counters().allocated_bytes.current();
        let mut pools: Vec<PoolMemory> = Vec::new();
        for pool in self.with_free_memory() {
            pools.try_push(self.pool_memory(pool, sharing)?)?;
        }
        let streams = self.stream_pools().map(|pool| {
            let largest = self.largest_in(pool).max(self.largest_in(self.pools.idle()));
            StreamMemory::new(self.pools[pool].stream, largest, servable(pool))
        });
        let view_mappings = self.home.views().mappings() as u64;
        let mut out = Fragmentation::default();
        out.reserved = self.reserved();
        out.allocated = allocated;
        out.pending = self.journal.counters().active_bytes.current().saturating_sub(allocated);
        out.requested = self.journal.counters().requested_bytes.current();
        out.free = pools.iter().map(|pool| pool.free).sum::<u64>() + self.home.idle_in_driver_pool();
        out.asleep = self.live_asleep();
        out.spilled = self.home.spilling().bytes.iter().sum();
        out.unsettled = self.home.pending_rollback().iter().sum();
        out.streams = streams.try_to_vec()?;
        out.pools = pools;
        out.views = self.home.views().iter().count() as u64;
        out.view_mappings = view_mappings;
        out.home_mappings = self.journal.counters().mappings.saturating_sub(view_mappings);
        self.measure_chunks(&mut out)?;
        Ok(out)
    }

    /// Returns the pools with free memory, except the pools of sleeping private pools.
    fn with_free_memory(&self) -> impl Iterator<Item = PoolIndex> + '_ {
        let indexes = self.pools.iter().map(|(index, _)| index);
        indexes.filter(|index| self.has_free(*index) && !self.is_asleep(*index))
    }

    fn pool_memory(&self, index: PoolIndex, sharing: StreamSharing) -> Grown<PoolMemory> {
        let is_idle = index.large() == self.pools.idle();
        // Free memory is not stranded if no other stream makes requests.
        let wanted = self.is_private(index) || self.asking_pools().any(|other| other != index.large());
        let small = index.is_small();
        let mut memory = PoolMemory::new(self.memory_owner(index), small);
        memory.ranges = self.blocks.free_count(index) as u64;
        memory.largest = self.largest_in(index);
        self.blocks.visit_free(index, 0, |id| {
            let size = self.blocks[id].size;
            memory.free += size;
            let shared = match sharing {
                _ if self.is_private(index) => false,
                // A slab serves other streams only whole.
                StreamSharing::Wait => !small || size == GRANULE,
                _ => false,
            };
            memory.stranded += if is_idle || shared || !wanted { 0 } else { size };
            Ok(())
        })?;
        Ok(memory)
    }

    /// Returns the owner of a pool's free memory: a stream, a private pool, or everyone.
    pub(crate) fn memory_owner(&self, pool: PoolIndex) -> Owner {
        if pool.large() == self.pools.idle() {
            Owner::Everyone
        } else if self.is_private(pool) {
            Owner::Pool(self.owner_of(pool))
        } else {
            Owner::Stream(self.pools[pool].stream)
        }
    }

    /// Adds the figures of chunks that are partly free, whichever stream may have the free part.
    fn measure_chunks(&self, out: &mut Fragmentation) -> Grown<()> {
        let Some(home) = self.home.map() else { return Ok(()) };
        out.chunks = home.chunks().filter(|(_, chunk)| !chunk.asleep).count() as u64;
        let mut free: Vec<Span> = with_room(self.pools.iter().map(|(pool, _)| self.blocks.free_count(pool)).sum())?;
        for pool in self.with_free_memory() {
            self.blocks.visit_free(pool, 0, |id| free.try_push(self.blocks[id].span()))?;
        }
        free.sort_unstable();
        // Neighbouring free blocks of two pools are one span here.
        free.dedup_by(|next, last| {
            let joins = last.end() == next.start;
            if joins {
                last.size += next.size;
            }
            joins
        });
        let mut counted = None;
        for span in free {
            let (start, end) = (span.start, span.end());
            // Chunks between the first and the last chunk of a span are wholly free.
            let first = home.chunk_at(start);
            let last = home.chunk_at(end - 1).filter(|(id, _)| first.is_none_or(|(first, _)| first != *id));
            for (id, chunk) in first.into_iter().chain(last) {
                let bytes = end.min(chunk.end()) - start.max(chunk.address);
                if bytes == chunk.size {
                    continue;
                }
                out.partly_free_bytes += bytes;
                if start > chunk.address && end < chunk.end() {
                    out.landlocked_bytes += bytes;
                }
                if counted.replace(id) != Some(id) {
                    out.partly_free_chunks += 1;
                }
            }
        }
        Ok(())
    }
}

//! The calls of stream-ordered memory on the simulated GPU.
//!
//! Owns: the parts of the device that each call uses, their order, and the costs.

use super::gpu::SimGpu;
use super::pool::STEP;
use super::state::State;
use crate::bookkeeping::{Fault, Range, refuse};
use seamalloc_driver::{Call, DriverResult, MemoryPool, MemoryPools, PoolAttribute, Status, StreamId};

impl MemoryPools for SimGpu {
    fn pool_create(&self, release_threshold: u64) -> DriverResult<MemoryPool> {
        let capacity = self.config.capacity;
        self.call(Call::PoolCreate, 0, |state| {
            let State { pools, memory, addresses, .. } = state;
            pools.create(release_threshold, capacity, memory, addresses)
        })
    }

    fn pool_destroy(&self, pool: MemoryPool) -> DriverResult<()> {
        self.charged(Call::PoolDestroy, 0, |state| {
            let State { pools, memory, addresses, .. } = state;
            let given = pools.destroy(pool, memory, addresses)?;
            Ok(((), self.config.profile.pool_shrinks(Call::PoolDestroy, given / STEP)))
        })
    }

    fn pool_malloc(&self, pool: MemoryPool, size: u64, stream: StreamId) -> DriverResult<u64> {
        self.charged(Call::PoolMalloc, size, |state| {
            state.timeline.check_stream(stream)?;
            let State { pools, memory, timeline, captures, .. } = state;
            let from = pools.get(pool)?;
            if size == 0 {
                return Err(refuse(Status::INVALID_VALUE, "a size of 0".to_owned()));
            }
            if !captures.check_work(stream)? {
                let detail = format!("a graph would own the memory: stream {stream} is being captured");
                return Err(refuse(Status::NOT_SUPPORTED, detail));
            }
            let too_large = || refuse(Status::OUT_OF_MEMORY, format!("{size} bytes are more than the pool can have"));
            let taken = from.malloc(size, stream, timeline, |bytes| memory.take(bytes), too_large)?;
            let piece = from.piece(taken.address, taken.size);
            pools.allocated(taken.address, pool);
            memory.add_pooled(taken.address, piece);
            let moves = self.config.profile.pool_moves(taken.moved / STEP, STEP);
            Ok((taken.address, moves + self.config.profile.pool_malloc(taken.grown / STEP, STEP, taken.first)))
        })
    }

    fn pool_free(&self, address: u64, stream: StreamId) -> DriverResult<()> {
        self.call(Call::PoolFree, 0, |state| {
            state.timeline.check_stream(stream)?;
            let piece = state.memory.of_pooled(address)?;
            let size = piece.size;
            if !state.captures.check_work(stream)? {
                let detail = format!("memory of no graph cannot be freed in one: stream {stream} is being captured");
                return Err(refuse(Status::NOT_SUPPORTED, detail));
            }
            for (range, stream) in state.timeline.unordered_uses(Range { address, size }, stream) {
                state.report(Fault::FreedInUse { range, stream });
            }
            let State { pools, memory, addresses, timeline, contents, .. } = state;
            let (of, pool) = pools.freed(address)?;
            pool.free(address, stream, timeline);
            memory.remove_pooled(address);
            contents.clear(piece);
            pools.drop_ended(of, memory, addresses);
            Ok(())
        })
    }

    fn pool_trim(&self, pool: MemoryPool, keep: u64) -> DriverResult<()> {
        self.charged(Call::PoolTrim, 0, |state| {
            let State { pools, memory, timeline, .. } = state;
            let given = pools.get(pool)?.trim(keep, timeline.now());
            memory.give(given);
            Ok(((), self.config.profile.pool_shrinks(Call::PoolTrim, given / STEP)))
        })
    }

    fn pool_attribute(&self, pool: MemoryPool, attribute: PoolAttribute) -> DriverResult<u64> {
        self.call(Call::PoolAttribute, 0, |state| Ok(state.pools.get(pool)?.attribute(attribute)))
    }

    fn stream_create(&self) -> DriverResult<StreamId> {
        self.call(Call::StreamCreate, 0, |state| Ok(state.pools.stream_create()))
    }

    fn stream_destroy(&self, stream: StreamId) -> DriverResult<()> {
        self.call(Call::StreamDestroy, 0, |state| {
            state.pools.stream_destroy(stream)?;
            state.timeline.destroy(stream);
            Ok(())
        })
    }
}

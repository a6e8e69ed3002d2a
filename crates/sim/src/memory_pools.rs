//! The pools of stream-ordered memory, and the streams that an allocator has made.
//!
//! Owns: the existing pools and streams, and the pool of each allocation. `pool.rs` has the rules of one pool.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::addresses::{ADDRESS_SPACE, AddressSpace};
use super::pool::{Pool, STEP};
use crate::bookkeeping::{Answer, Memory, Refusal, refuse};
use seamalloc_driver::{MemoryPool, Status, StreamId};

/// The addresses of a pool, as a multiple of the device's memory. So many addresses are enough even if the memory of
/// many of them was given back or moved.
const ROOM: u64 = 16;
/// The handle of the first stream that is made here. Handles that programs choose are smaller.
const FIRST_STREAM: u64 = 0x5ea0_0000_0000;

#[derive(Debug, Default)]
pub(super) struct Pools {
    pools: BTreeMap<u64, Pool>,
    made: u64,
    /// The pool of each allocation.
    of: FxHashMap<u64, u64>,
    streams: FxHashSet<StreamId>,
    streams_made: u64,
}

impl Pools {
    pub(super) fn count(&self) -> usize {
        self.pools.len()
    }

    pub(super) fn streams(&self) -> usize {
        self.streams.len()
    }

    pub(super) fn create(
        &mut self,
        threshold: u64,
        capacity: u64,
        memory: &mut Memory<()>,
        addresses: &mut AddressSpace,
    ) -> Answer<MemoryPool> {
        let size = capacity.saturating_mul(ROOM).min(ADDRESS_SPACE / 4).next_multiple_of(STEP);
        let base = addresses.reserve(size, STEP)?;
        self.made += 1;
        self.pools.insert(self.made, Pool::new(base, size, memory.number_of_pool(), threshold));
        Ok(MemoryPool(self.made))
    }

    /// Ends a pool, or marks it to end with its last allocation. Returns the bytes given back.
    pub(super) fn destroy(
        &mut self,
        pool: MemoryPool,
        memory: &mut Memory<()>,
        addresses: &mut AddressSpace,
    ) -> Answer<u64> {
        self.get(pool)?.destroyed = true;
        Ok(self.drop_ended(pool.0, memory, addresses))
    }

    /// Removes a destroyed pool if it has no allocations. Returns the bytes given back.
    pub(super) fn drop_ended(&mut self, number: u64, memory: &mut Memory<()>, addresses: &mut AddressSpace) -> u64 {
        let Some(pool) = self.pools.get(&number).filter(|pool| pool.destroyed && pool.is_unused()) else { return 0 };
        let (base, size) = pool.addresses();
        let held = pool.attribute(seamalloc_driver::PoolAttribute::Reserved);
        addresses.address_free(base, size);
        memory.give(held);
        self.pools.remove(&number);
        held
    }

    /// Returns a pool. Refuses a pool that was destroyed.
    pub(super) fn get(&mut self, pool: MemoryPool) -> Answer<&mut Pool> {
        let unknown = || refuse(Status::INVALID_VALUE, format!("pool {} does not exist or was destroyed", pool.0));
        self.pools.get_mut(&pool.0).filter(|pool| !pool.destroyed).ok_or_else(unknown)
    }

    pub(super) fn allocated(&mut self, address: u64, pool: MemoryPool) {
        self.of.insert(address, pool.0);
    }

    /// Removes an allocation from the table. Returns its pool, with the pool's number.
    pub(super) fn freed(&mut self, address: u64) -> Answer<(u64, &mut Pool)> {
        let number = self.of.remove(&address).ok_or_else(|| unknown(address))?;
        Ok((number, self.pools.get_mut(&number).ok_or_else(|| unknown(address))?))
    }

    /// Gives back the memory of each pool beyond its threshold. Called at every wait of the CPU.
    pub(super) fn release(&mut self, now: u64, memory: &mut Memory<()>) {
        for pool in self.pools.values_mut().filter(|pool| pool.release_threshold < u64::MAX) {
            memory.give(pool.trim(pool.release_threshold, now));
        }
    }

    pub(super) fn stream_create(&mut self) -> StreamId {
        let stream = StreamId(FIRST_STREAM + self.streams_made);
        self.streams_made += 1;
        self.streams.insert(stream);
        stream
    }

    pub(super) fn stream_destroy(&mut self, stream: StreamId) -> Answer<()> {
        let unknown = || refuse(Status::INVALID_HANDLE, format!("stream {stream} was not made here, or was destroyed"));
        self.streams.remove(&stream).then_some(()).ok_or_else(unknown)
    }
}

fn unknown(address: u64) -> Refusal {
    refuse(Status::INVALID_VALUE, format!("no pool has allocated anything at {address:#x}"))
}

//! Stream-ordered memory, which a host device does not support. The driver alone decides the reuse in a pool, and the
//! host has no driver to compare with.
//!
//! Owns: the refusals.

use super::device::HostDriver;
use crate::bookkeeping::refuse;
use seamalloc_driver::{Call, DriverResult, MemoryPool, MemoryPools, PoolAttribute, Status, StreamId};

impl HostDriver {
    fn has_no_pools<T>(&self, call: Call) -> DriverResult<T> {
        let detail = "the machine's own memory has no pools of stream-ordered memory";
        self.locked(call, |_| Err(refuse(Status::NOT_SUPPORTED, detail.to_owned())))
    }
}

impl MemoryPools for HostDriver {
    fn pool_create(&self, _: u64) -> DriverResult<MemoryPool> {
        self.has_no_pools(Call::PoolCreate)
    }

    fn pool_destroy(&self, _: MemoryPool) -> DriverResult<()> {
        self.has_no_pools(Call::PoolDestroy)
    }

    fn pool_malloc(&self, _: MemoryPool, _: u64, _: StreamId) -> DriverResult<u64> {
        self.has_no_pools(Call::PoolMalloc)
    }

    fn pool_free(&self, _: u64, _: StreamId) -> DriverResult<()> {
        self.has_no_pools(Call::PoolFree)
    }

    fn pool_trim(&self, _: MemoryPool, _: u64) -> DriverResult<()> {
        self.has_no_pools(Call::PoolTrim)
    }

    fn pool_attribute(&self, _: MemoryPool, _: PoolAttribute) -> DriverResult<u64> {
        self.has_no_pools(Call::PoolAttribute)
    }

    fn stream_create(&self) -> DriverResult<StreamId> {
        self.has_no_pools(Call::StreamCreate)
    }

    fn stream_destroy(&self, _: StreamId) -> DriverResult<()> {
        self.has_no_pools(Call::StreamDestroy)
    }
}

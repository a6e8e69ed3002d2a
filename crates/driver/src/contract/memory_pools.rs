//! Stream-ordered memory, as `cudaMallocAsync` returns it.
//!
//! Owns: the contract of [`MemoryPools`], and the figures of a pool.

use crate::error::DriverResult;
use crate::ids::{MemoryPool, StreamId};

/// A figure that the driver keeps of a pool, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolAttribute {
    /// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`: physical memory that the pool holds.
    Reserved,
    /// `CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH`: the highest value of `Reserved`.
    ReservedHigh,
    /// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`: bytes of the pool that are allocated.
    Used,
    /// `CU_MEMPOOL_ATTR_USED_MEM_HIGH`: the highest value of `Used`.
    UsedHigh,
}

impl PoolAttribute {
    /// Every figure.
    pub const ALL: [Self; 4] = [Self::Reserved, Self::ReservedHigh, Self::Used, Self::UsedHigh];
}

/// Pools from which memory is allocated and freed in the order of streams (CUDA 11.2 and newer), and streams of the
/// allocator's own, on which frees of several streams are joined.
///
/// The three policies of reuse (`CU_MEMPOOL_ATTR_REUSE_…`) keep the driver's defaults: all on. So the stream of the
/// free may get freed memory again immediately. Another stream may get the memory once that stream waits for an event
/// that was recorded after the free, or once the free is complete. If the device has no more memory, any stream may get
/// the memory, and the driver then makes that stream wait for the free.
///
/// A device whose [`memory_pools`](crate::DeviceProperties::memory_pools) is `false` answers every call with
/// [`Status::NOT_SUPPORTED`](crate::Status::NOT_SUPPORTED), or, if the driver is too old to have pools, with
/// [`Status::NOT_FOUND`](crate::Status::NOT_FOUND).
pub trait MemoryPools {
    /// `cuMemPoolCreate`: returns a pool of memory of this device, which no other process can import. Whenever the CPU
    /// waits for the device, the pool gives free memory back until it holds no more than `release_threshold` bytes
    /// (`CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`).
    fn pool_create(&self, release_threshold: u64) -> DriverResult<MemoryPool>;

    /// `cuMemPoolDestroy`: ends a pool. Its memory goes back to the device, once no memory of the pool is allocated.
    ///
    /// pre: `pool` came from `pool_create`, and was not destroyed. This condition holds for the calls below too.
    fn pool_destroy(&self, pool: MemoryPool) -> DriverResult<()>;

    /// `cuMemAllocFromPoolAsync`: returns the address of `size` bytes for work given to `stream` from now on.
    ///
    /// pre: `size` is not 0.
    /// pre: `stream` is not being captured (unchecked on a real GPU). In a capture, the graph would own the memory, and
    /// a lack of memory might show only at the graph's launch.
    fn pool_malloc(&self, pool: MemoryPool, size: u64, stream: StreamId) -> DriverResult<u64>;

    /// `cuMemFreeAsync`: gives memory back to its pool after all work given to `stream` so far. The CPU does not wait.
    ///
    /// pre: `address` came from `pool_malloc`, and was not freed.
    /// pre: `stream` is not being captured, and all work that uses the memory comes before the free in the order of
    /// `stream` (both unchecked on a real GPU).
    fn pool_free(&self, address: u64, stream: StreamId) -> DriverResult<()>;

    /// `cuMemPoolTrimTo`: gives free memory back to the device, until the pool holds `keep` bytes or has no more to
    /// give. Memory that work of the GPU may still use stays in the pool.
    fn pool_trim(&self, pool: MemoryPool, keep: u64) -> DriverResult<()>;

    /// `cuMemPoolGetAttribute`: returns a figure of a pool, in bytes.
    fn pool_attribute(&self, pool: MemoryPool, attribute: PoolAttribute) -> DriverResult<u64>;

    /// `cuStreamCreate`: returns a new stream of the caller's own, which does not wait for the default stream.
    fn stream_create(&self) -> DriverResult<StreamId>;

    /// `cuStreamDestroy`: destroys a stream of [`Self::stream_create`]. The work of the stream goes on.
    fn stream_destroy(&self, stream: StreamId) -> DriverResult<()>;
}

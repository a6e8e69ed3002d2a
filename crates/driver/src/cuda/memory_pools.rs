//! Stream-ordered memory, by the calls that `cudaMallocAsync` makes.
//!
//! Owns: which entry point serves which call. A pool that this driver did not make never reaches libcuda, nor does an
//! unknown stream (streams.rs).

use std::ptr;

use super::api::CudaApi;
use super::device::{CudaDriver, host_size, stream_text};
use super::ffi::{self, CUmemoryPool, MemPoolProps};
use crate::{Call, DriverError, DriverResult, MemoryPool, MemoryPools, PoolAttribute, Status, StreamId};

impl MemoryPools for CudaDriver {
    fn pool_create(&self, release_threshold: u64) -> DriverResult<MemoryPool> {
        self.needs_pools(Call::PoolCreate)?;
        let props = MemPoolProps::on_device(self.device);
        let mut raw = ptr::null_mut();
        let create = |api: &CudaApi| {
            // SAFETY: both pointers are to live values.
            let created = unsafe { api.mem_pool_create(&mut raw, &props) }?;
            if created != Status::SUCCESS {
                return Ok(created);
            }
            let mut threshold = release_threshold;
            // SAFETY: the pool is alive, and the attribute is a 64-bit integer.
            let set = unsafe {
                api.mem_pool_set_attribute(raw, ffi::POOL_RELEASE_THRESHOLD, ptr::from_mut(&mut threshold).cast())
            };
            if set != Ok(Status::SUCCESS) {
                // SAFETY: the pool was just made, and has no allocations. A failure of this call would add nothing to
                // the first error.
                let _ = unsafe { api.mem_pool_destroy(raw) };
            }
            set
        };
        self.demand(Call::PoolCreate, || format!("release threshold {release_threshold}"), create)?;
        let pool = MemoryPool(raw.expose_provenance() as u64);
        self.pools.lock().insert(pool);
        Ok(pool)
    }

    fn pool_destroy(&self, pool: MemoryPool) -> DriverResult<()> {
        // The pool leaves the table before the call, so that no other call can use the pool any more.
        if !self.pools.lock().remove(&pool) {
            return Err(unknown_pool(Call::PoolDestroy, pool));
        }
        // SAFETY: the pool came from cuMemPoolCreate and is destroyed for the first time.
        let destroyed =
            self.demand(Call::PoolDestroy, || pool_text(pool), |api| unsafe { api.mem_pool_destroy(raw(pool)) });
        if destroyed.is_err() {
            self.pools.lock().insert(pool);
        }
        destroyed
    }

    fn pool_malloc(&self, pool: MemoryPool, size: u64, stream: StreamId) -> DriverResult<u64> {
        let pool = self.known_pool(Call::PoolMalloc, pool)?;
        let (bytes, on) = (host_size(Call::PoolMalloc, size)?, self.raw_stream(Call::PoolMalloc, stream)?);
        let mut address = 0;
        let arguments = || format!("{size} bytes on {}", stream_text(stream));
        // SAFETY: the pointer is to a live integer; the pool and the stream are alive.
        self.demand(Call::PoolMalloc, arguments, |api| unsafe {
            api.mem_alloc_from_pool_async(&mut address, bytes, pool, on)
        })?;
        Ok(address)
    }

    fn pool_free(&self, address: u64, stream: StreamId) -> DriverResult<()> {
        let on = self.raw_stream(Call::PoolFree, stream)?;
        let arguments = || format!("{address:#x} on {}", stream_text(stream));
        // SAFETY: an address is an integer to the driver, which checks it against its allocations; the stream is alive.
        self.demand(Call::PoolFree, arguments, |api| unsafe { api.mem_free_async(address, on) })
    }

    fn pool_trim(&self, pool: MemoryPool, keep: u64) -> DriverResult<()> {
        let (from, bytes) = (self.known_pool(Call::PoolTrim, pool)?, host_size(Call::PoolTrim, keep)?);
        // SAFETY: the pool is alive.
        self.demand(Call::PoolTrim, || pool_text(pool), |api| unsafe { api.mem_pool_trim_to(from, bytes) })
    }

    fn pool_attribute(&self, pool: MemoryPool, attribute: PoolAttribute) -> DriverResult<u64> {
        let of = self.known_pool(Call::PoolAttribute, pool)?;
        let mut value = 0_u64;
        let arguments = || format!("{attribute:?} of {}", pool_text(pool));
        // SAFETY: the pool is alive, and these attributes are 64-bit integers.
        self.demand(Call::PoolAttribute, arguments, |api| unsafe {
            api.mem_pool_get_attribute(of, ffi::pool_attribute(attribute), ptr::from_mut(&mut value).cast())
        })?;
        Ok(value)
    }

    fn stream_create(&self) -> DriverResult<StreamId> {
        let mut stream = ptr::null_mut();
        // SAFETY: the pointer is to a live pointer.
        self.demand(Call::StreamCreate, String::new, |api| unsafe {
            api.stream_create(&mut stream, ffi::STREAM_NON_BLOCKING)
        })?;
        let stream = StreamId(stream.expose_provenance() as u64);
        self.streams.lock().insert(stream);
        Ok(stream)
    }

    fn stream_destroy(&self, stream: StreamId) -> DriverResult<()> {
        if !self.streams.lock().remove(&stream) {
            let detail = format!("{} was not made here, or was destroyed", stream_text(stream));
            return Err(DriverError::new(Call::StreamDestroy, Status::INVALID_HANDLE, detail));
        }
        let raw = ptr::with_exposed_provenance_mut(stream.0 as usize);
        // SAFETY: the stream came from cuStreamCreate and is destroyed for the first time.
        self.demand(Call::StreamDestroy, || stream_text(stream), |api| unsafe { api.stream_destroy(raw) })
    }
}

impl CudaDriver {
    /// Returns an error if the device or its driver has no pools.
    fn needs_pools(&self, call: Call) -> DriverResult<()> {
        if let Err(missing) = self.api.need(call.api()) {
            return Err(DriverError::new(call, Status::NOT_FOUND, missing.to_string()));
        }
        if !self.properties.memory_pools {
            let detail = format!("{} has no pools of stream-ordered memory", self.properties.name);
            return Err(DriverError::new(call, Status::NOT_SUPPORTED, detail));
        }
        Ok(())
    }

    /// Returns libcuda's handle of a live pool that this driver made.
    fn known_pool(&self, call: Call, pool: MemoryPool) -> DriverResult<CUmemoryPool> {
        if self.pools.lock().contains(&pool) { Ok(raw(pool)) } else { Err(unknown_pool(call, pool)) }
    }
}

fn raw(pool: MemoryPool) -> CUmemoryPool {
    ptr::with_exposed_provenance_mut(pool.0 as usize)
}

fn pool_text(pool: MemoryPool) -> String {
    format!("pool {:#x}", pool.0)
}

fn unknown_pool(call: Call, pool: MemoryPool) -> DriverError {
    let detail = format!("{} is not one of this device, or was destroyed", pool_text(pool));
    DriverError::new(call, Status::INVALID_VALUE, detail)
}

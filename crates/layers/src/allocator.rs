//! The allocator as a resource, below all layers.
//!
//! Owns: which operation of the allocator implements each operation of the contract.

use crate::contract::{MemoryResource, PrivatePools};
use crate::error::Result;
use seamalloc::Allocator;
use seamalloc::Error;
use seamalloc::RawBlock;
use seamalloc::Route;
use seamalloc::driver::MemoryInfo;
use seamalloc::{PoolId, StreamId};
use std::fmt;

impl MemoryResource for Allocator {
    fn allocate(&self, size: u64, stream: StreamId) -> Result<RawBlock> {
        Ok(RawBlock { address: Self::allocate(self, size, stream)?, size, stream })
    }

    /// Frees as [`Allocator::free_on`] does.
    fn deallocate(&self, block: RawBlock, stream: StreamId) -> Result<()> {
        Ok(self.free_on(block.address, stream)?)
    }

    fn record_stream(&self, block: RawBlock, stream: StreamId) -> Result<()> {
        Ok(Self::record_stream(self, block.address, stream)?)
    }

    fn erase_stream(&self, block: RawBlock, stream: StreamId) -> Result<()> {
        Ok(self.streams().unrecord(block.address, stream)?)
    }

    /// Releases as [`Allocator::empty_cache`] does.
    fn release(&self) -> Result<u64> {
        Ok(self.empty_cache()?)
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        Ok(self.driver().memory_info()?)
    }

    fn is_capturing(&self, stream: StreamId) -> Result<bool> {
        let stream = self.driver().canonical_stream(stream)?;
        Ok(self.driver().is_capturing(stream)?)
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.config().strategy.name())
    }
}

impl PrivatePools for Allocator {
    fn create_pool(&self) -> Result<PoolId> {
        match self.pools().create() {
            PoolId::NONE => Err(Error::HostMemory.into()),
            pool => Ok(pool),
        }
    }

    fn release_pool(&self, pool: PoolId) -> Result<()> {
        Ok(self.pools().release(pool)?)
    }

    fn begin_capture(&self, pool: PoolId, stream: StreamId) -> Result<()> {
        Ok(self.pools().begin(pool, Route::stream(stream).capturing())?)
    }

    fn end_capture(&self, pool: PoolId) -> Result<()> {
        Ok(self.pools().end(pool)?)
    }
}

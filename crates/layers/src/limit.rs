//! A layer that limits the live bytes that are allocated through it.
//!
//! Owns: the count. The rule is that of RMM's `limiting_resource_adaptor` (`limiting_resource_adaptor_impl.cpp` lines
//! 40 to 69: the size is rounded up to the alignment; a request that would exceed the limit is refused before the
//! resource below is asked). RMM raises the count first, and lowers it again if the request is refused. Meanwhile
//! another thread's request may fail that would fit; this layer raises the count only if the request fits.
//!
//! The option `memory_limit` differs: it bounds the memory that an allocator holds of the device. This layer bounds the
//! live requests of one part of a program, whichever resource serves them.

use crate::contract::{Layer, MemoryResource};
use crate::error::{ResourceError, Result};
use seamalloc::RawBlock;
use seamalloc::StreamId;
use std::sync::atomic::{AtomicU64, Ordering};

/// The default multiple to which sizes are rounded up, in bytes: the size of the allocator's smallest blocks.
pub const LIMIT_ALIGNMENT: u64 = 512;

/// Refuses requests beyond a limit of live bytes.
#[derive(Debug)]
pub struct Limit<R> {
    upstream: R,
    limit: u64,
    alignment: u64,
    allocated: AtomicU64,
}

impl<R: MemoryResource> Limit<R> {
    /// Makes a layer through which at most `limit` bytes are live, with sizes rounded up to multiples of
    /// [`LIMIT_ALIGNMENT`].
    pub fn new(upstream: R, limit: u64) -> Self {
        Self::with_alignment(upstream, limit, LIMIT_ALIGNMENT)
    }

    /// Makes a layer as [`Self::new`] does, with sizes rounded up to multiples of `alignment` bytes; 0 and 1 mean no
    /// rounding.
    pub fn with_alignment(upstream: R, limit: u64, alignment: u64) -> Self {
        Self { upstream, limit, alignment: alignment.max(1), allocated: AtomicU64::new(0) }
    }

    /// Returns the live bytes, with each size rounded up.
    pub fn allocated(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    /// Returns the most bytes that may be live.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    fn rounded(&self, size: u64) -> u64 {
        size.checked_next_multiple_of(self.alignment).unwrap_or(u64::MAX)
    }

    fn lower(&self, by: u64) {
        let lower = |allocated: u64| Some(allocated.saturating_sub(by));
        let _ = self.allocated.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lower);
    }
}

impl<R: MemoryResource> Layer for Limit<R> {
    type Upstream = R;

    fn upstream(&self) -> &R {
        &self.upstream
    }

    fn name(&self) -> &str {
        "limit"
    }

    fn allocate(&self, size: u64, stream: StreamId) -> Result<RawBlock> {
        let requested = self.rounded(size);
        let raise = |allocated: u64| allocated.checked_add(requested).filter(|raised| *raised <= self.limit);
        self.allocated
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise)
            .map_err(|allocated| ResourceError::LimitExceeded { requested, allocated, limit: self.limit })?;
        self.upstream.allocate(size, stream).inspect_err(|_| self.lower(requested))
    }

    fn deallocate(&self, block: RawBlock, stream: StreamId) -> Result<()> {
        self.upstream.deallocate(block, stream)?;
        self.lower(self.rounded(block.size));
        Ok(())
    }
}

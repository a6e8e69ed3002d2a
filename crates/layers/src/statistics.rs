//! A layer that counts live blocks and bytes.
//!
//! Owns: the counters, which are the counters of RMM's `statistics_resource_adaptor`
//! (`statistics_resource_adaptor_impl.hpp` lines 34 to 59: value, peak and total; a stack of counters, of which the
//! innermost counts, so that a part of a program has peaks of its own). Paddle's `StatAllocator` (`stat_allocator.h`)
//! counts the same figures without such a stack. The figures of a whole allocator are
//! [`Allocator::stats`](seamalloc::Allocator::stats); this layer counts only the blocks that are allocated through it.

use crate::contract::{Layer, MemoryResource};
use crate::error::{ResourceError, Result};
use parking_lot::Mutex;
use seamalloc::RawBlock;
use seamalloc::StreamId;
use seamalloc_driver::fallible::TryPush;

/// One figure. In counters that were pushed, the value is below 0 if more was freed than allocated since the push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// The amount that is live.
    pub value: i64,
    /// The highest value.
    pub peak: i64,
    /// The sum of all allocations.
    pub total: i64,
}

impl Counter {
    fn add(&mut self, more: i64) {
        self.value = self.value.saturating_add(more);
        self.total = self.total.saturating_add(more);
        self.peak = self.peak.max(self.value);
    }

    fn lower(&mut self, less: i64) {
        self.value = self.value.saturating_sub(less);
    }

    /// Adds the figures of a counter that was pushed over this one, and has ended.
    fn add_inner(&mut self, inner: &Self) {
        self.peak = self.peak.max(self.value.saturating_add(inner.peak));
        self.value = self.value.saturating_add(inner.value);
        self.total = self.total.saturating_add(inner.total);
    }
}

/// The figures of a [`Statistics`] layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes, as they were asked for.
    pub bytes: Counter,
    /// Blocks, including blocks of 0 bytes.
    pub blocks: Counter,
}

#[derive(Debug, Default)]
struct Levels {
    outer: Vec<Counters>,
    innermost: Counters,
}

/// Counts the blocks and bytes that are allocated through the layer.
#[derive(Debug)]
pub struct Statistics<R> {
    upstream: R,
    levels: Mutex<Levels>,
}

impl<R: MemoryResource> Statistics<R> {
    /// Makes a layer whose counters are 0.
    pub fn new(upstream: R) -> Self {
        Self { upstream, levels: Mutex::default() }
    }

    /// Returns the innermost counters.
    pub fn counters(&self) -> Counters {
        self.levels.lock().innermost
    }

    /// Begins new counters, which count from 0. Returns the present counters, which count again once the new counters
    /// are popped.
    ///
    /// # Errors
    /// [`Error::HostMemory`](seamalloc::Error::HostMemory).
    pub fn push(&self) -> Result<Counters> {
        let levels = &mut *self.levels.lock();
        levels.outer.try_push(levels.innermost)?;
        Ok(std::mem::take(&mut levels.innermost))
    }

    /// Ends the innermost counters, and adds them to the counters that they had replaced. Returns the ended counters.
    ///
    /// # Errors
    /// [`ResourceError::NothingPushed`].
    pub fn pop(&self) -> Result<Counters> {
        let levels = &mut *self.levels.lock();
        let mut outer = levels.outer.pop().ok_or(ResourceError::NothingPushed)?;
        outer.bytes.add_inner(&levels.innermost.bytes);
        outer.blocks.add_inner(&levels.innermost.blocks);
        Ok(std::mem::replace(&mut levels.innermost, outer))
    }
}

impl<R> Statistics<R> {
    fn change(&self, change: impl FnOnce(&mut Counters)) {
        change(&mut self.levels.lock().innermost);
    }
}

fn signed(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

impl<R: MemoryResource> Layer for Statistics<R> {
    type Upstream = R;

    fn upstream(&self) -> &R {
        &self.upstream
    }

    fn name(&self) -> &str {
        "statistics"
    }

    fn allocate(&self, size: u64, stream: StreamId) -> Result<RawBlock> {
        let block = self.upstream.allocate(size, stream)?;
        self.change(|counters| {
            counters.bytes.add(signed(block.size));
            counters.blocks.add(1);
        });
        Ok(block)
    }

    fn deallocate(&self, block: RawBlock, stream: StreamId) -> Result<()> {
        // The free is counted before the memory can be another thread's, so that no peak counts the memory twice.
        self.change(|counters| {
            counters.bytes.lower(signed(block.size));
            counters.blocks.lower(1);
        });
        self.upstream.deallocate(block, stream).inspect_err(|_| {
            self.change(|counters| {
                counters.bytes.lower(-signed(block.size));
                counters.blocks.lower(-1);
            });
        })
    }
}

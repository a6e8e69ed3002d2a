//! Memory goes back to the driver.
//!
//! Owns: `empty_cache`, `trim`, the limits, and the end of an allocator. All of them reclaim memory in the same order:
//! wait until frees are complete, take back the memory of ended private pools, and let the strategy release free
//! memory.

use super::core::{Allocator, Core};
use super::operations::{MemoryLimits, Pools};
use crate::backing::{self, AllocatorContext, reclaim_private_pools, release_own_segments};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::features::guard::Guard;
use crate::ids::PoolId;
use crate::strategy::{AnyStrategy, Goal};

impl Allocator {
    /// Waits for freed blocks that other streams still use, and gives back all free memory that the driver can take.
    /// Returns the bytes of device memory given back. Host memory that is kept for the next spill goes back too. Memory
    /// of private pools that were not released stays. During a stream capture, when the CPU cannot wait, the call does
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Driver`]; memory given back before the failed call stays given back, and is accounted.
    /// [`Error::Source`] if a segment source failed to free its memory. Other free memory of the device was given back;
    /// freed memory of guard mode, and host memory that is kept for the next spill, goes back in the next call.
    pub fn empty_cache(&self) -> Result<u64> {
        let core = &mut *self.core.lock();
        if core.capturing() {
            return Ok(0);
        }
        let before = core.heap.reserved();
        core.timed(|strategy, context| reclaim(strategy, context, Goal::Everything))?;
        core.drain_guard();
        core.close_shared()?;
        core.timed(|_, context| backing::release_host_stock(context))?;
        core.checked()?;
        Ok(before.saturating_sub(core.heap.reserved()))
    }

    /// Gives free memory back to the driver until `bytes` were given back, and hardly more. Returns the bytes given
    /// back: fewer than `bytes` only if less is free.
    ///
    /// Only physical bytes count, and memory goes back in whole pieces: with `caching` segments that are wholly free,
    /// with `expandable` the units of its segments (2 or 20 MiB), with `gmlake` primitive blocks that are not split,
    /// with `stitch` chunks (2 MiB or a multiple). Only as many pieces go as are needed. The pieces that fit best are
    /// chosen, and among equal pieces those that were unused longest.
    ///
    /// If the memory that the GPU has passed is enough, the CPU does not wait (except with `caching`, whose `cudaFree`
    /// waits by itself); otherwise it waits for the streams. Memory of private pools that were not released stays.
    /// During a stream capture, when the CPU cannot wait, nothing is given back. Taking the memory from the driver
    /// again costs time.
    ///
    /// # Errors
    /// [`Error::Driver`]; memory given back before the failed call stays given back, and is accounted.
    /// [`Error::Source`] if the source of an ended private pool failed to free its memory; all other memory was given
    /// back.
    ///
    /// ```
    /// # use seamalloc::{Allocator, Config, driver::{StreamId, sim::{SimConfig, SimGpu}}};
    /// # use std::sync::Arc;
    /// # let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200")?)?);
    /// let allocator = Allocator::new(gpu, Config::parse("strategy:stitch")?)?;
    /// let address = allocator.allocate(96 << 20, StreamId::DEFAULT)?;
    /// allocator.free(address)?;
    /// let given = allocator.trim(30 << 20)?;
    /// assert!(given >= 30 << 20 && given < 96 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trim(&self, bytes: u64) -> Result<u64> {
        let core = &mut *self.core.lock();
        let down_to = core.heap.reserved().saturating_sub(bytes);
        core.trim(down_to)
    }
}

impl Pools<'_> {
    /// Waits for the device, and gives the memory of a private pool without uses back to the driver, or to its source.
    /// Returns the bytes given back. Returns 0 during a stream capture, and if the pool has a use or is gone. A pool
    /// that no capture has used, and that has no segments of its own, is gone from its release on.
    ///
    /// # Errors
    /// [`Error::Driver`], [`Error::Source`]; memory given back before the failed call stays given back, and is
    /// accounted.
    pub fn empty(self, pool: PoolId) -> Result<u64> {
        let core = &mut *self.0.core.lock();
        if core.capturing() || !core.heap.private().is_released(pool) {
            return Ok(0);
        }
        let before = core.heap.reserved();
        core.timed(|strategy, context| empty_pool(strategy, context, pool))?;
        core.drain_guard();
        core.checked()?;
        Ok(before.saturating_sub(core.heap.reserved()))
    }
}

impl MemoryLimits<'_> {
    /// Limits the memory of the allocator to a part (0 to 1) of the device's memory; 1 lifts the limit. Memory that is
    /// held already is not given back.
    ///
    /// # Errors
    /// [`Error::Config`] outside of 0 to 1.
    pub fn set_fraction(self, fraction: f64) -> Result<()> {
        let core = &mut *self.0.core.lock();
        let config = Config { memory_fraction: Some(fraction), ..core.config.clone() };
        core.set_config(config.validated()?);
        Ok(())
    }

    /// Limits the physical bytes that the allocator may hold at any moment; `None` lifts the limit. If
    /// [`Self::set_fraction`] allows less, the lower limit counts. Free memory beyond the new limit is given back, as
    /// by [`Allocator::trim`](crate::Allocator::trim). Memory in use beyond the limit stays, and no memory is taken
    /// until enough was freed.
    ///
    /// # Errors
    /// [`Error::Driver`], [`Error::Source`] if memory could not be given back; the limit is in force nevertheless.
    pub fn set_bytes(self, bytes: Option<u64>) -> Result<()> {
        let core = &mut *self.0.core.lock();
        core.set_config(Config { memory_limit: bytes, ..core.config.clone() });
        let limit = bytes.unwrap_or(u64::MAX);
        if core.heap.reserved() > limit {
            core.trim(limit)?;
        }
        Ok(())
    }
}

impl Core {
    /// Gives free memory back until at most `down_to` bytes are held, or none is free. Returns the bytes given back; 0
    /// during a capture.
    pub(super) fn trim(&mut self, down_to: u64) -> Result<u64> {
        if self.capturing() {
            return Ok(0);
        }
        let before = self.heap.reserved();
        if before > down_to {
            self.drain_guard();
        }
        self.timed(|strategy, context| {
            context.poll_recorded()?;
            if strategy.release(context, Goal::DownTo { down_to, may_wait: false })? {
                return Ok(());
            }
            reclaim(strategy, context, Goal::DownTo { down_to, may_wait: true })
        })?;
        self.drop_spilled()?;
        self.checked()?;
        Ok(before.saturating_sub(self.heap.reserved()))
    }

    /// Gives back all memory that can go back, at the end of the allocator.
    fn close(&mut self) -> Result<()> {
        let closed = self.timed(|strategy, context| {
            // If the wait fails, the blocks that wait stay, and all other memory can be given back.
            let reclaimed = wait_and_reclaim(context).and_then(|failed| failed.map_or(Ok(()), Err));
            let released = strategy.release(context, Goal::Everything);
            let closed = strategy.stream_ordered().map_or(Ok(()), |strategy| strategy.close(context));
            released?;
            closed?;
            reclaimed
        });
        self.on_guard(Guard::close);
        closed
    }
}

/// Waits until frees are complete, takes back the memory of ended private pools, and lets the strategy release free
/// memory. An error of a private pool's source is returned last, after all other steps.
pub(super) fn reclaim(strategy: &mut AnyStrategy, context: &mut AllocatorContext<'_>, goal: Goal) -> Result<()> {
    // Memory that a failed call has left mapped goes first. Strategies that map no memory do not ask for this rollback
    // themselves, but guard mode maps memory for them too.
    context.retry_rollback()?;
    context.heap_mut().journal_mut().synchronized();
    let failed = wait_and_reclaim(context)?;
    strategy.release(context, goal)?;
    failed.map_or(Ok(()), Err)
}

fn wait_and_reclaim(context: &mut AllocatorContext<'_>) -> Result<Option<Error>> {
    let (streams, on) = context.on_streams();
    streams.recorded.synchronize(on.heap, on.driver)?;
    reclaim_private_pools(context)
}

/// Gives the memory of a private pool without uses back.
fn empty_pool(strategy: &mut AnyStrategy, context: &mut AllocatorContext<'_>, pool: PoolId) -> Result<()> {
    let before = context.heap().reserved();
    context.wait_for_recorded_streams()?;
    let held = context.heap().private_stats(pool)?;
    context.driver().synchronize()?;
    if context.heap().private().segments(pool).is_some() {
        return release_own_segments(context, pool)?.map_or(Ok(()), Err);
    }
    context.heap_mut().merge_private_pool(pool, true)?;
    let down_to = before.saturating_sub(held.reserved_bytes.saturating_sub(held.active_bytes));
    strategy.release(context, Goal::DownTo { down_to, may_wait: true })?;
    Ok(())
}

/// Gives every event and every free segment back. Blocks that are still live are not given back: freeing memory that a
/// program may still use is worse than a leak.
impl Drop for Allocator {
    fn drop(&mut self) {
        let core = self.core.get_mut();
        let live = core.heap.counters().allocation.current();
        if live > 0 {
            let bytes = core.heap.counters().allocated_bytes.current();
            tracing::warn!(live, bytes, "an allocator is dropped while allocations of it are live; their memory leaks");
        }
        core.close_shared_at_end();
        core.close_growing();
        if core.capturing() {
            tracing::warn!("an allocator is dropped while a stream is being captured; all its memory leaks");
        } else {
            core.close_private();
            if let Err(error) = core.close() {
                tracing::warn!(%error, "memory could not be given back");
            }
            core.heap.private_mut().end_backups();
            let released = core.timed(|_, context| {
                let released = backing::release_host_stock(context);
                backing::release_backups(context).and(released)
            });
            if let Err(error) = released {
                tracing::warn!(%error, "page-locked host memory could not be given back");
            }
        }
        core.heap.private_mut().leak_sources();
        core.streams.destroy_events(&*core.driver);
        if let Some(guard) = &mut core.features.guard {
            guard.destroy_events(&*core.driver);
        }
    }
}

//! The allocator's private pools: who uses them, what is routed to them, and the order of things while a stream is being
//! captured.
//!
//! Owns: the public operations on private pools. Who uses a pool is kept in `heap/private_pools.rs`, its memory in
//! `heap/private.rs`, and a request of one is served in `allocate.rs` as any other.

use super::core::{Allocator, Core};
use crate::error::{Error, Result};
use crate::heap::{PrivatePool, Route};
use crate::ids::{PoolId, StreamId};
use crate::report::pool::PoolStats;

/// # Private pools and CUDA graphs
///
/// A private pool's memory serves only requests made for the pool. Addresses that it ever handed out stay mapped to the
/// same memory until nobody uses the pool any more, so that a graph which was captured with them can be replayed.
///
/// | PyTorch | here |
/// |---|---|
/// | `createOrIncrefPool` | [`open_pool`](Self::open_pool); with an allocator [`open_pool_with`](Self::open_pool_with) |
/// | `setNoSplit` | [`set_pool_unsplit`](Self::set_pool_unsplit) |
/// | `beginAllocateToPool` | `open_pool`, then [`begin_allocate_to_pool`](Self::begin_allocate_to_pool) |
/// | `endAllocateToPool` | [`end_allocate_to_pool`](Self::end_allocate_to_pool) |
/// | `releasePool`, `emptyCache` of a pool | [`release_pool`](Self::release_pool), [`empty_pool`](Self::empty_pool) |
/// | `getCheckpointState`, `setCheckpointPoolState` | [`pool_blocks`](Self::pool_blocks), [`restore_pool`](Self::restore_pool) |
///
/// ```
/// use seamalloc::{Allocator, Config, Route, driver::{StreamId, sim::{CaptureMode, SimConfig, SimGpu}}};
/// use std::sync::Arc;
///
/// let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200")?)?);
/// let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::default())?;
/// let stream = StreamId(7);
/// let pool = allocator.create_pool();
/// allocator.begin_allocate_to_pool(pool, Route::stream(stream).capturing())?;
/// gpu.begin_capture(stream, CaptureMode::Global)?;
/// let address = allocator.allocate(10 << 20, stream)?;
/// allocator.free(address)?;
/// gpu.end_capture(stream)?;
/// allocator.end_allocate_to_pool(pool)?;
/// // The graph can be launched from here on.
/// assert_eq!(allocator.pool_stats(pool)?.reserved_bytes, 10 << 20);
/// // It cannot any more.
/// allocator.release_pool(pool)?;
/// assert_eq!(allocator.empty_cache()?, 10 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Allocator {
    /// A new private pool, used once: [`Self::release_pool`] ends that use. It holds nothing yet.
    #[must_use]
    pub fn create_pool(&self) -> PoolId {
        self.core.lock().heap.private_mut().create()
    }

    /// Uses the private pool of that name once more, or makes it: what PyTorch does where it names pools itself. A pool
    /// that was released and whose memory waits for the device comes back with that memory.
    ///
    /// # Errors
    /// [`Error::UnknownPool`] for [`PoolId::NONE`].
    pub fn open_pool(&self, pool: PoolId) -> Result<()> {
        self.core.lock().heap.private_mut().open(pool)
    }

    /// Uses a private pool once more: it takes one more [`Self::release_pool`] to end it.
    ///
    /// # Errors
    /// [`Error::UnknownPool`] where nobody uses it.
    pub fn retain_pool(&self, pool: PoolId) -> Result<()> {
        self.core.lock().heap.private_mut().retain(pool)
    }

    /// Ends one use of a private pool. With the last one its memory goes back to all: what no capture has used, at once
    /// and in the order of its streams; what a graph may still use, or a stream under which some of it was freed
    /// ([`Self::free_under`]), when the device has passed everything, which is waited for by [`Self::empty_cache`] or
    /// before a request would fail. Segments of its own go back where they came from ([`Self::open_pool_with`]). Live
    /// allocations stay valid, and are freed as any other. While requests are routed to the pool, it lives on until
    /// [`Self::end_allocate_to_pool`].
    ///
    /// No graph that was captured with the pool may be launched afterwards.
    ///
    /// # Errors
    /// [`Error::UnknownPool`] where nobody uses it: released too often, or never created.
    pub fn release_pool(&self, pool: PoolId) -> Result<()> {
        let core = &mut *self.core.lock();
        core.heap.private_mut().release(pool)?;
        core.merge_released_pools();
        core.checked()
    }

    /// Routes requests to a private pool from now on, those that `route` covers. Of several routes that cover a request,
    /// the one begun last takes it. For a stream capture, with [`Route::capturing`]: begin before the capture does, and
    /// end after its end.
    ///
    /// A capture takes no memory of the pool that the GPU may still be using: where some was freed on a stream outside of
    /// a capture, the CPU waits for that stream here. Not for a stream that was only the current one at the free
    /// ([`Self::free_under`]): the capture may take such memory, as in PyTorch.
    ///
    /// # Errors
    /// [`Error::UnknownPool`]; [`Error::PoolRouted`]; [`Error::Driver`] where a wait failed, and nothing is routed.
    pub fn begin_allocate_to_pool(&self, pool: PoolId, route: Route) -> Result<()> {
        let core = &mut *self.core.lock();
        core.heap.private_mut().may_begin(pool)?;
        if route.is_capturing() {
            // Until the end nobody can be asked.
            core.poll()?;
            core.let_pass(pool)?;
        }
        core.heap.private_mut().begin(pool, route)?;
        core.has_pre_work = true;
        core.checked()
    }

    /// Ends what [`Self::begin_allocate_to_pool`] began.
    ///
    /// # Errors
    /// [`Error::PoolNotRouted`] where no requests are routed to the pool, [`Error::UnknownPool`] where there is none.
    pub fn end_allocate_to_pool(&self, pool: PoolId) -> Result<()> {
        let core = &mut *self.core.lock();
        core.heap.private_mut().end(pool)?;
        core.merge_released_pools();
        core.checked()
    }

    /// What a private pool holds. Walks all blocks.
    ///
    /// # Errors
    /// [`Error::UnknownPool`] where there is none. One whose memory waits for the device is there still.
    pub fn pool_stats(&self, pool: PoolId) -> Result<PoolStats> {
        self.core.lock().heap.private_stats(pool)
    }

    /// Every private pool that is used or holds memory, in the order of their ids.
    #[must_use]
    pub fn private_pools(&self) -> Vec<PoolId> {
        self.core.lock().heap.private().ids()
    }
}

impl Core {
    /// Waits until the GPU has passed all uses of a private pool's free memory, but on streams that are being captured:
    /// those cannot be waited for, and their captures get other memory.
    pub(super) fn let_pass(&mut self, owner: PoolId) -> Result<()> {
        let capturing = self.capturing();
        for stream in self.heap.streams_to_pass(owner) {
            // Waiting for the default stream may be waiting for a captured one.
            if capturing && (stream == StreamId::DEFAULT || self.driver.is_capturing(stream)?) {
                continue;
            }
            self.timed(|_, context| {
                context.heap.counters_mut().num_sync_all_streams += 1;
                context.allowed_in_captures(|| context.driver.stream_synchronize(stream))?;
                context.heap.join_pairs(owner, stream);
                Ok::<_, Error>(())
            })?;
        }
        Ok(())
    }

    /// The memory of pools that nobody uses any more becomes everyone's, but for those whose memory a graph or an unnamed
    /// stream may use, and those with segments of their own, which go back to nobody else.
    fn merge_released_pools(&mut self) {
        for pool in self.heap.private().released() {
            if self.heap.private().segments(pool).is_some() {
                self.heap.forget_empty(pool);
            } else if self.heap.private().get(pool).is_some_and(PrivatePool::is_in_order) {
                self.heap.merge_private_pool(pool, false);
            }
        }
    }

    /// The allocator is at its end. What a graph may use stays with the driver: freeing it is worse than a leak.
    pub(super) fn close_private(&mut self) {
        self.heap.private_mut().close();
        self.merge_released_pools();
        let used = self.heap.private().ids().len() - self.heap.private().released().len();
        if used > 0 {
            tracing::warn!(used, "an allocator is dropped while graphs may use private pools; their memory leaks");
        }
    }
}

//! Private pools: the public operations on them, and the order of things while a stream is being captured.
//!
//! Owns: those operations. Who uses a pool and what is routed to it is kept in the heap, and so is its memory.
//!
//! # Note: capture
//!
//! **Rationale.** A CUDA graph uses the addresses that its capture was given, each time that it is launched, on any stream.
//! So these must lead to the same memory, and nobody else may have that memory, until the graph is gone. And while a stream
//! is being captured, many calls are refused and make the capture invalid, in other threads too.
//!
//! **Approach.** Requests of a capture go to a private pool, by name or by a [`Route`] that is begun before the capture and
//! ended after it. The pool takes idle memory before it grows. What it once had is pinned: its chunks are not released, the
//! views that it handed out blocks through are not dropped, and free ranges do not merge with what lies beside them.
//!
//! | from begin to end of a capture | |
//! |---|---|
//! | events | none is recorded or asked for; short of memory, those from before the capture are asked for in relaxed mode |
//! | frees with `record_stream` | are held, without events, until the end |
//! | `empty_cache`, `trim` | do nothing |
//! | `cudaMalloc` | in relaxed mode; calls for virtual memory are legal |
//!
//! A graph may be launched on another stream than the one of its capture, so a capture takes nothing that is free only in
//! the order of some stream. At the begin the CPU waits for the streams on which the pool's memory was used outside of
//! captures. What is freed so later is put aside, in a pair of pools that no captured request looks into, until the next
//! begin.
//!
//! The last use released, a pool that no capture used becomes its streams' memory in stream order. What a graph may use
//! serves others only after a wait for the device, since graphs run on streams that nobody names.
//!
//! **Limitations.**
//! - Graphs that share a pool must be launched in the order of their captures, and their results be read before the next
//!   one: a later capture may take what an earlier one freed. PyTorch has the same rule.
//! - Short of memory in a capture, nothing may be waited for, so a request can fail that would be met otherwise.
//! - A pool's free memory serves nobody else, however long the pool lives.
//! - Which requests a route covers is asked of a filter under the allocator's lock. It must be quick, and may not call
//!   back.

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

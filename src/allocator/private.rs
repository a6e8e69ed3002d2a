//! The allocator's private pools: requests that go to one, and the order of things while a stream is being captured.
//!
//! Owns: the public operations on private pools. Who uses a pool and what is routed to it is kept in pools.rs, its memory
//! in heap/private.rs.

use super::{Allocator, Core};
use crate::blocks::BlockId;
use crate::error::{Error, Result};
use crate::heap::{FitRules, Request};
use crate::ids::PoolId;
use crate::ids::StreamId;
use crate::pools::{PoolStats, PrivatePool, Route};
use crate::rounding::{MAX_REQUEST, round_size};
use crate::strategy::segmented;
use parking_lot::MutexGuard;

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
        self.core.lock().heap.private.create()
    }

    /// Uses the private pool of that name once more, or makes it: what PyTorch does where it names pools itself. A pool
    /// that was released and whose memory waits for the device comes back with that memory.
    ///
    /// # Errors
    /// [`Error::UnknownPool`] for [`PoolId::NONE`].
    pub fn open_pool(&self, pool: PoolId) -> Result<()> {
        self.core.lock().heap.private.open(pool)
    }

    /// Uses a private pool once more: it takes one more [`Self::release_pool`] to end it.
    ///
    /// # Errors
    /// [`Error::UnknownPool`] where nobody uses it.
    pub fn retain_pool(&self, pool: PoolId) -> Result<()> {
        self.core.lock().heap.private.retain(pool)
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
        core.heap.private.release(pool)?;
        core.dissolve_uncaptured();
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
        core.heap.private.may_begin(pool)?;
        if route.is_capturing() {
            // Until the end nobody can be asked.
            core.poll()?;
            core.let_pass(pool)?;
        }
        core.heap.private.begin(pool, route)?;
        core.attends = true;
        core.checked()
    }

    /// Ends what [`Self::begin_allocate_to_pool`] began.
    ///
    /// # Errors
    /// [`Error::PoolNotRouted`] where no requests are routed to the pool, [`Error::UnknownPool`] where there is none.
    pub fn end_allocate_to_pool(&self, pool: PoolId) -> Result<()> {
        let core = &mut *self.core.lock();
        core.heap.private.end(pool)?;
        core.dissolve_uncaptured();
        core.checked()
    }

    /// As [`Self::allocate`], from a private pool, whatever is routed where.
    ///
    /// # Errors
    /// Those of [`Self::allocate`]; [`Error::UnknownPool`] where nobody uses the pool; [`Error::Source`] where its own source
    /// failed.
    pub fn allocate_in(&self, pool: PoolId, size: u64, stream: StreamId) -> Result<u64> {
        let guard = &mut self.core.lock();
        let core = &mut **guard;
        core.heap.private.used(pool)?;
        if size == 0 {
            return Ok(0);
        }
        if size > MAX_REQUEST {
            return Err(Error::RequestTooLarge { size });
        }
        core.poll()?;
        self.allocate_privately(guard, pool, size, stream)
    }

    /// A request that goes to a private pool: by the strategy, then by callbacks, then by the last resort.
    pub(super) fn allocate_privately(
        &self,
        core: &mut MutexGuard<'_, Core>,
        pool: PoolId,
        size: u64,
        stream: StreamId,
    ) -> Result<u64> {
        let stream = core.driver.canonical_stream(stream)?;
        let calls = self.callbacks.begin();
        let mut tried = core.try_privately(pool, size, stream, calls.is_none())?;
        if let (Some(mut calls), Err(request)) = (calls, &tried) {
            let pressure = core.pressure(request);
            while let Some(freed) = MutexGuard::unlocked(core, || calls.next(&pressure)) {
                if freed {
                    core.poll()?;
                    // Anything may have become of the pool meanwhile.
                    core.heap.private.exists(pool)?;
                    tried = core.try_privately(pool, size, stream, false)?;
                    if tried.is_ok() {
                        break;
                    }
                }
            }
            if tried.is_err() {
                core.poll()?;
                core.heap.private.exists(pool)?;
                tried = core.try_privately(pool, size, stream, true)?;
            }
        }
        tried.map_err(|request| core.out_of_memory(&request))
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
        self.core.lock().heap.private.ids()
    }
}

impl Core {
    /// What comes before a request while frees wait or requests are routed: frees what can be freed, and answers the
    /// private pool that the request goes to.
    #[cold]
    pub(super) fn attend(&mut self, stream: StreamId) -> Result<Option<PoolId>> {
        let route = self.heap.private.route_of(stream);
        if route.is_some() || self.must_ask() {
            self.poll()?;
        }
        self.attends = self.must_ask() || self.heap.private.routes() > 0;
        Ok(route)
    }

    /// Whether the next request is to ask what other streams have passed, whether it needs memory or not.
    fn must_ask(&self) -> bool {
        self.deferred.is_due() || (self.rules.asks_first && self.deferred.waiting() > 0)
    }

    /// Frees what other streams have passed, unless a capture forbids to ask.
    pub(super) fn poll(&mut self) -> Result<()> {
        if self.deferred.waiting() == 0 || self.heap.private.capturing() {
            return Ok(());
        }
        Ok(self.timed(|_, ground| ground.deferred.poll(ground.heap, ground.driver))?)
    }

    /// A request that goes to a private pool, by all means or only by those that cost other requests nothing. `None` is
    /// too little memory, for this request.
    fn try_privately(
        &mut self,
        owner: PoolId,
        size: u64,
        stream: StreamId,
        by_all_means: bool,
    ) -> Result<std::result::Result<u64, Request>> {
        let (request, captured) = self.private_request(owner, size, stream)?;
        let rules = self.rules_of(owner);
        let mut id = self.heap.fit(&request, &rules);
        if id.is_none() {
            match self.miss(&request, by_all_means)? {
                Some(found) => id = found,
                None => return Ok(Err(request)),
            }
        }
        self.hand_out_privately(id, &request, owner, captured).map(Ok)
    }

    /// A request for `size` bytes of a private pool, and whether it is being captured.
    pub(super) fn private_request(&mut self, owner: PoolId, size: u64, stream: StreamId) -> Result<(Request, bool)> {
        let rounded = round_size(size, &self.config.roundup_power2_divisions);
        let captured = self.is_captured(stream)?;
        let (pool, class) = self.heap.private_pool(owner, stream, rounded, captured);
        Ok((Request { size: rounded, requested: size, pool, class }, captured))
    }

    /// Whether requests on a stream are being captured.
    fn is_captured(&self, stream: StreamId) -> Result<bool> {
        // The default stream cannot be captured, and asking about it may be refused while another is.
        Ok(self.heap.private.capturing() && stream != StreamId::DEFAULT && self.driver.is_capturing(stream)?)
    }

    /// How requests of a private pool find their blocks.
    pub(super) fn rules_of(&self, owner: PoolId) -> FitRules {
        let own = self.heap.private.segments(owner);
        own.map_or(self.rules, |own| segmented::rules(&self.config, own.are_unsplit()))
    }

    /// Hands out a block that was found for a private pool.
    pub(super) fn hand_out_privately(
        &mut self,
        id: BlockId,
        request: &Request,
        owner: PoolId,
        captured: bool,
    ) -> Result<u64> {
        if self.heap.is_bare(id, request.size) {
            self.map_home(id, request)?;
        }
        let rules = self.rules_of(owner);
        let address = self.heap.hand_out(id, request, &rules)?;
        self.heap.handed_out_privately(id, owner, captured);
        self.checked()?;
        Ok(address)
    }

    /// Frees a block that other streams use, or that is of a private pool.
    pub(super) fn free_used(&mut self, id: BlockId) -> Result<()> {
        let in_use = self.deferred.has_uses(id);
        if in_use && !self.heap.private.capturing() {
            let before = self.driver.busy_ns();
            let pending = self.deferred.record_events(&*self.driver, id).inspect_err(|_| self.heap.keep_live(id))?;
            self.heap.freed_privately(id);
            self.heap.free_requested(id);
            self.deferred.defer(&mut self.heap, pending);
            self.attends |= self.must_ask();
            self.heap.counters.stalls.add(self.driver.busy_ns().saturating_sub(before));
            return Ok(());
        }
        self.heap.freed_privately(id);
        self.heap.free_requested(id);
        if in_use {
            self.deferred.hold(&mut self.heap, id);
            self.attends = true;
        } else {
            self.heap.blocks[id].has_uses = false;
            self.heap.free_completed(id);
        }
        Ok(())
    }

    /// Waits until the GPU has passed all uses of a private pool's free memory, but on streams that are being captured:
    /// those cannot be waited for, and their captures get other memory.
    pub(super) fn let_pass(&mut self, owner: PoolId) -> Result<()> {
        let capturing = self.heap.private.capturing();
        for stream in self.heap.streams_to_pass(owner) {
            // Waiting for the default stream may be waiting for a captured one.
            if capturing && (stream == StreamId::DEFAULT || self.driver.is_capturing(stream)?) {
                continue;
            }
            self.timed(|_, ground| {
                ground.heap.counters.num_sync_all_streams += 1;
                ground.in_relaxed_capture_mode(|| ground.driver.stream_synchronize(stream))?;
                ground.heap.join_pairs(owner, stream);
                Ok::<_, Error>(())
            })?;
        }
        Ok(())
    }

    /// Pools that nobody uses any more are dissolved, but for those whose memory a graph or an unnamed stream may use, and
    /// those with segments of their own, which go back to nobody else.
    fn dissolve_uncaptured(&mut self) {
        for pool in self.heap.private.released() {
            if self.heap.private.segments(pool).is_some() {
                self.heap.forget_empty(pool);
            } else if self.heap.private.get(pool).is_some_and(PrivatePool::is_in_order) {
                self.heap.dissolve_private(pool, false);
            }
        }
    }

    /// The allocator is at its end. What a graph may use stays with the driver: freeing it is worse than a leak.
    pub(super) fn close_private(&mut self) {
        self.heap.private.close();
        self.dissolve_uncaptured();
        let used = self.heap.private.ids().len() - self.heap.private.released().len();
        if used > 0 {
            tracing::warn!(used, "an allocator is dropped while graphs may use private pools; their memory leaks");
        }
    }
}

//! Private pools: the public operations on them, and the rules during a stream capture.
//!
//! Owns: those operations. The heap keeps the uses, routes and memory of each pool.
//!
//! # Note: capture
//!
//! **Rationale.** A CUDA graph uses the addresses of its capture each time it is launched, on any stream. So they must
//! lead to the same memory, which no one else may have, until the graph is gone. And while a stream is being captured,
//! many calls are refused and invalidate the capture, in other threads too.
//!
//! **Approach.** Requests of a capture go to a private pool, by name or by a [`Route`] that is begun before the capture
//! and ended after it. The pool takes idle memory before it grows. All memory that it has handed out is pinned: its
//! chunks are not released, the views of its blocks are not dropped, and its free ranges do not merge with ranges of
//! other pools.
//!
//! | from begin to end of a capture | |
//! |---|---|
//! | events | none is recorded or queried; when memory is short, earlier ones are queried in relaxed mode |
//! | frees with `record_stream` | are held, without events, until the end; an external stream has its event at the free |
//! | `empty_cache`, `trim` | do nothing |
//! | `cudaMalloc` | in relaxed mode; calls for virtual memory are legal |
//!
//! A graph may be launched on another stream than the one of its capture, so a capture takes no memory that is free
//! only in the order of some stream. When the route begins, the CPU waits for the streams on which the pool's memory
//! was used outside of captures. Memory freed so later is set aside, in a pair of pools that captured requests do not
//! use, until the next begin.
//!
//! When the last use is released, a pool that no capture used becomes its streams' memory in stream order. Memory that
//! a graph may use becomes public only after a wait for the device, since graphs run on unnamed streams.
//!
//! **Limitations.**
//! - Graphs that share a pool must be launched in the order of their captures, and their results read before the next
//!   launch: a later capture may take memory that an earlier one freed. PyTorch has the same rule.
//! - During a capture, the CPU cannot wait for memory, so a request can fail that would be served otherwise.
//! - A pool's free memory serves no one else while the pool lives.
//! - A filter decides which requests a route covers, under the allocator's lock. It must be quick, and may not call
//!   the allocator.

use super::operations::Pools;
use crate::error::Result;
use crate::heap::Route;
use crate::ids::PoolId;
use crate::report::pool::PoolStats;

impl Pools<'_> {
    /// Makes a new private pool with one use, which [`Self::release`] ends. It holds no memory yet. Returns
    /// [`PoolId::NONE`], which every operation refuses, if the host has no memory for it.
    #[must_use]
    pub fn create(self) -> PoolId {
        self.0.core.lock().heap.private_mut().create().unwrap_or(PoolId::NONE)
    }

    /// Adds one use to the private pool of this id, which is made if it does not exist; PyTorch chooses the ids itself.
    /// A released pool whose memory waits for the device comes back with that memory.
    ///
    /// # Errors
    /// [`Error::UnknownPool`](crate::Error::UnknownPool) for [`PoolId::NONE`].
    pub fn open(self, pool: PoolId) -> Result<()> {
        self.0.core.lock().heap.private_mut().open(pool)
    }

    /// Adds one use to a private pool: it takes one more [`Self::release`] to end it.
    ///
    /// # Errors
    /// [`Error::UnknownPool`](crate::Error::UnknownPool) if the pool has no use.
    pub fn retain(self, pool: PoolId) -> Result<()> {
        self.0.core.lock().heap.private_mut().retain(pool)
    }

    /// Ends one use of a private pool. After the last one, its memory becomes public: at once, in the order of its
    /// streams, if no capture has used it. Memory that a graph may still use, or another stream under which some of it
    /// was freed ([`Allocator::free_with_current_stream`](crate::Allocator::free_with_current_stream)), becomes public
    /// when the device has passed everything; [`Allocator::empty_cache`](crate::Allocator::empty_cache) waits for that,
    /// and so does a request before it would fail. Segments of its own go back to where they came from
    /// ([`Self::open_with`]). Live allocations stay valid, and are freed like any other. While requests are routed to
    /// the pool, it lives on until [`Self::end`].
    ///
    /// No graph that was captured with the pool may be launched afterwards.
    ///
    /// # Errors
    /// [`Error::UnknownPool`](crate::Error::UnknownPool) if the pool has no use: released too often, or never created.
    pub fn release(self, pool: PoolId) -> Result<()> {
        let core = &mut *self.0.core.lock();
        core.heap.private_mut().release(pool)?;
        core.merge_released_pools();
        core.end_guarded_pools();
        core.checked()
    }

    /// Routes the requests that `route` covers to a private pool from now on. If several routes cover a request, the
    /// one begun last takes it. A pool has one route at a time, or several of threads ([`Route::this_thread`],
    /// [`Route::other_threads`]). For a stream capture, use [`Route::capturing`]: begin the route before the capture, and
    /// end it after the capture.
    ///
    /// A capture takes no memory of the pool that the GPU may still be using: if some was freed on a stream outside of
    /// a capture, the CPU waits for that stream here. It does not wait for a stream that was only the current one at
    /// the free ([`Allocator::free_with_current_stream`](crate::Allocator::free_with_current_stream)): the capture may
    /// take such memory, as in PyTorch.
    ///
    /// # Errors
    /// [`Error::UnknownPool`](crate::Error::UnknownPool); [`Error::PoolRouted`](crate::Error::PoolRouted);
    /// [`Error::Driver`](crate::Error::Driver) if a wait failed, and nothing is routed.
    pub fn begin(self, pool: PoolId, route: Route) -> Result<()> {
        self.begin_route(pool, route).map(|_| ())
    }

    /// Begins a route as [`Self::begin`] does. Returns the number of the route.
    pub(crate) fn begin_route(self, pool: PoolId, route: Route) -> Result<u64> {
        let core = &mut *self.0.core.lock();
        core.heap.private_mut().may_begin(pool, &route)?;
        if route.is_capturing() {
            // No event can be queried until the end of the route.
            core.poll()?;
            core.wait_for_pool(pool)?;
            core.gather_for_capture()?;
        }
        let number = core.heap.private_mut().begin(pool, route)?;
        core.has_pre_work = true;
        core.checked()?;
        Ok(number)
    }

    /// Ends the route that [`Self::begin`] began. If the pool has several routes, the last one of the calling thread
    /// ends, or else the last one of [`Route::other_threads`].
    ///
    /// # Errors
    /// [`Error::PoolNotRouted`](crate::Error::PoolNotRouted) if no requests are routed to the pool;
    /// [`Error::UnknownPool`](crate::Error::UnknownPool) if the pool does not exist.
    pub fn end(self, pool: PoolId) -> Result<()> {
        self.end_route(pool, None)
    }

    /// Ends the route of this number.
    pub(crate) fn end_route(self, pool: PoolId, number: Option<u64>) -> Result<()> {
        let core = &mut *self.0.core.lock();
        core.heap.private_mut().end(pool, number)?;
        core.merge_released_pools();
        if core.rules.frees_to_driver {
            // Memory that was freed in the capture, and waits for no stream, goes back.
            core.release_unkept();
        }
        core.checked()
    }

    /// Returns the state of a private pool. Walks all blocks.
    ///
    /// # Errors
    /// [`Error::UnknownPool`](crate::Error::UnknownPool) if the pool does not exist. A pool whose memory waits for the
    /// device still exists.
    pub fn stats(self, pool: PoolId) -> Result<PoolStats> {
        self.0.core.lock().heap.private_stats(pool)
    }

    /// Returns every private pool that is used or holds memory, in the order of their ids. The list is empty if the
    /// host has no memory for it.
    #[must_use]
    pub fn ids(self) -> Vec<PoolId> {
        self.0.core.lock().heap.private().ids().unwrap_or_default()
    }
}

//! Private pools: the public operations on them, and the rules during a stream capture.
//!
//! Owns: the operations and these rules. The heap keeps the uses, routes and memory of each pool.
//!
//! # Note: capture
//!
//! **Rationale.** A CUDA graph uses the addresses of its capture each time it is launched, on any stream. So these
//! addresses must keep the same memory, which no one else may have, until the graph is gone. And while a stream is
//! being captured, many calls are refused and invalidate the capture, in other threads too.
//!
//! **Approach.** Requests of a capture go to a private pool, by name or by a [`Route`] that is begun before the capture
//! and ended after it. The pool takes idle memory before it grows. All memory that it has handed out is pinned: its
//! chunks are not released, the views of its blocks are not dropped, and its free ranges do not merge with ranges of
//! other pools.
//!
//! | from begin to end of a capture | |
//! |---|---|
//! | events | none is recorded or queried; when memory is short, earlier events are queried in relaxed mode |
//! | frees with `record_stream` | wait for the end, without events; an external stream gets an event at the free |
//! | `empty_cache`, `trim` | do nothing |
//! | `cudaMalloc` | in relaxed mode; calls for virtual memory are legal |
//!
//! A graph may be launched on another stream than the captured stream, so a capture takes no memory that is free for
//! one stream only. When the route begins, the CPU waits for the streams on which the pool's memory was used outside of
//! captures. Memory that is freed outside of captures later is set aside until a route begins again, in a pair of pools
//! that captured requests do not use.
//!
//! When the last use is released, the memory of a pool that no capture used becomes public: each stream gets the memory
//! that the pool held for it. Memory that a graph may use becomes public only after a wait for the device, since graphs
//! run on unnamed streams.
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
    /// Creates a private pool with one use, which [`Self::release`] ends. The pool holds no memory yet. Returns
    /// [`PoolId::NONE`], which every operation refuses, if the host has no memory for the pool's entry.
    #[must_use]
    pub fn create(self) -> PoolId {
        self.0.core.lock().heap.private_mut().create().unwrap_or(PoolId::NONE)
    }

    /// Adds one use to the private pool of this id, which is made if it does not exist; PyTorch chooses the ids itself.
    /// A released pool whose memory still waits for the device is opened again with that memory.
    ///
    /// # Errors
    /// [`Error::UnknownPool`](crate::Error::UnknownPool) for [`PoolId::NONE`].
    pub fn open(self, pool: PoolId) -> Result<()> {
        self.0.core.lock().heap.private_mut().open(pool)
    }

    /// Adds one use to a private pool, which one more [`Self::release`] must end.
    ///
    /// # Errors
    /// [`Error::UnknownPool`](crate::Error::UnknownPool) if the pool has no use.
    pub fn retain(self, pool: PoolId) -> Result<()> {
        self.0.core.lock().heap.private_mut().retain(pool)
    }

    /// Ends one use of a private pool. After the last release, the pool's memory becomes public. If no capture has used
    /// the pool, this happens at once: each stream gets the memory that the pool held for it. Memory that a graph may
    /// still use, or that was freed under another stream
    /// ([`Allocator::free_with_current_stream`](crate::Allocator::free_with_current_stream)), becomes public when the
    /// device has passed all its work; [`Allocator::empty_cache`](crate::Allocator::empty_cache) waits for the device,
    /// and so does a request before it would fail. Segments of the pool's own go back to their source
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
    /// route begun last takes the request. A pool has one route at a time, or several routes of threads
    /// ([`Route::this_thread`], [`Route::other_threads`]). For a stream capture, use [`Route::capturing`]: begin the
    /// route before the capture, and end it after the capture.
    ///
    /// A capture takes no memory of the pool that the GPU may still be using: if memory was freed on a stream outside
    /// of a capture, the CPU waits for that stream here. The CPU does not wait for a stream that was only the current
    /// stream at the free ([`Allocator::free_with_current_stream`](crate::Allocator::free_with_current_stream)): the
    /// capture may take such memory, as in PyTorch.
    ///
    /// # Errors
    /// [`Error::UnknownPool`](crate::Error::UnknownPool); [`Error::PoolRouted`](crate::Error::PoolRouted);
    /// [`Error::Driver`](crate::Error::Driver) if a wait failed; the route has then not begun.
    pub fn begin(self, pool: PoolId, route: Route) -> Result<()> {
        self.begin_route(pool, route).map(|_| ())
    }

    /// Begins a route as [`Self::begin`] does. Returns the number of the route.
    pub(crate) fn begin_route(self, pool: PoolId, route: Route) -> Result<u64> {
        let core = &mut *self.0.core.lock();
        core.heap.private_mut().may_begin(pool, &route)?;
        if route.is_capturing() {
            // Events are queried before the route begins: the capture lasts until the route ends, and no event can be
            // queried in it.
            core.poll()?;
            core.wait_for_pool(pool)?;
            core.gather_for_capture()?;
        }
        let number = core.heap.private_mut().begin(pool, route)?;
        core.has_pre_work = true;
        core.checked()?;
        Ok(number)
    }

    /// Ends the route (of requests to the pool) that [`Self::begin`] began. If the pool has several routes, the last
    /// route of the calling thread ends, or else the last of [`Route::other_threads`].
    ///
    /// # Errors
    /// [`Error::PoolNotRouted`](crate::Error::PoolNotRouted) if no requests are routed to the pool;
    /// [`Error::UnknownPool`](crate::Error::UnknownPool) if the pool does not exist.
    pub fn end(self, pool: PoolId) -> Result<()> {
        self.end_route(pool, None)
    }

    /// Ends the route with this number; for `None`, the route that [`Self::end`] ends.
    pub(crate) fn end_route(self, pool: PoolId, number: Option<u64>) -> Result<()> {
        let core = &mut *self.0.core.lock();
        core.heap.private_mut().end(pool, number)?;
        core.merge_released_pools();
        if core.rules.frees_to_driver {
            // Memory that was freed in the capture, and waits for no stream, goes back to the driver.
            core.release_unkept();
        }
        core.checked()
    }

    /// Returns the state of a private pool. The call walks all blocks.
    ///
    /// # Errors
    /// [`Error::UnknownPool`](crate::Error::UnknownPool) if the pool does not exist. A pool whose memory waits for the
    /// device still exists.
    pub fn stats(self, pool: PoolId) -> Result<PoolStats> {
        self.0.core.lock().heap.private_stats(pool)
    }

    /// Returns every private pool that is used or holds memory, in the order of their ids. The list is empty if the
    /// host has no memory for the list.
    #[must_use]
    pub fn ids(self) -> Vec<PoolId> {
        self.0.core.lock().heap.private().ids().unwrap_or_default()
    }
}

//! [`Pool`], the use of a private pool, and [`PoolRoute`], a route to one. Both end when they are dropped.

use super::block::Block;
use super::growing::Growing;
use crate::allocator::Allocator;
use crate::error::{Error, Result};
use crate::heap::{Backup, Route, Segments};
use crate::ids::{PoolId, StreamId};
use crate::report::pool::PoolStats;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// One use of a private pool, which ends when the value is dropped
/// ([`Pools::release`](crate::operations::Pools::release)).
///
/// [`Pool::create`] makes a new pool; [`Pool::of_id`] uses the pool of an id that another part of the program chose.
/// Unlike [`Pools::create`](crate::operations::Pools::create), `create` fails with an error if the host has no memory.
///
/// ```
/// use seamalloc::{Allocator, Pool, StreamId};
///
/// let allocator = Allocator::open("sim:h200", "")?;
/// let stream = StreamId(7);
/// let pool = Pool::create(&allocator)?;
/// let capture = pool.capture(stream)?;
/// // The stream is captured here; its allocations come from the pool.
/// let temporary = allocator.block(10 << 20, stream)?;
/// drop(temporary);
/// capture.end()?;
/// // The graph can be launched here any number of times: its addresses stay.
/// assert_eq!(pool.stats()?.reserved_bytes, 10 << 20);
/// // The graph is not launched any more.
/// drop(pool);
/// # Ok::<(), seamalloc::Error>(())
/// ```
///
/// **What drop does.** The drop ends the use. No graph that was captured with the pool may be launched after the last
/// use. If the drop fails, the pool keeps its memory to the end of the allocator, and an error of `tracing` says so;
/// [`Self::release`] returns the error.
#[must_use = "the use of a pool that is not kept ends at once"]
pub struct Pool<A: Deref<Target = Allocator> = Arc<Allocator>> {
    allocator: A,
    /// The id; [`PoolId::NONE`] if there is no use to end.
    id: PoolId,
}

impl<A: Deref<Target = Allocator>> Pool<A> {
    /// Makes a new private pool, which holds no memory yet.
    ///
    /// # Errors
    /// [`Error::HostMemory`].
    pub fn create(allocator: A) -> Result<Self> {
        match allocator.pools().create() {
            PoolId::NONE => Err(Error::HostMemory),
            id => Ok(Self { allocator, id }),
        }
    }

    /// Makes a new tag: a private pool with chunks of its own, which can sleep
    /// ([`Tags::create`](crate::operations::Tags::create)).
    ///
    /// # Errors
    /// The errors of [`Tags::create`](crate::operations::Tags::create).
    pub fn create_tag(allocator: A) -> Result<Self> {
        let id = allocator.tags().create()?;
        Ok(Self { allocator, id })
    }

    /// Adds one use to the tag of this id, which is created if it does not exist
    /// ([`Tags::open`](crate::operations::Tags::open)).
    ///
    /// # Errors
    /// The errors of [`Tags::open`](crate::operations::Tags::open).
    pub fn of_tag_id(allocator: A, id: PoolId) -> Result<Self> {
        allocator.tags().open(id)?;
        Ok(Self { allocator, id })
    }

    /// Adds one use to the private pool of this id, which is created if it does not exist. The method is for programs
    /// that choose the ids themselves, as PyTorch does ([`Pools::open`](crate::operations::Pools::open)).
    ///
    /// # Errors
    /// The errors of [`Pools::open`](crate::operations::Pools::open).
    pub fn of_id(allocator: A, id: PoolId) -> Result<Self> {
        allocator.pools().open(id)?;
        Ok(Self { allocator, id })
    }

    /// Adds one use to the private pool of this id, with segments of its own
    /// ([`Pools::open_with`](crate::operations::Pools::open_with)).
    ///
    /// # Errors
    /// The errors of [`Pools::open_with`](crate::operations::Pools::open_with).
    pub fn of_id_with(allocator: A, id: PoolId, segments: Segments) -> Result<Self> {
        allocator.pools().open_with(id, segments)?;
        Ok(Self { allocator, id })
    }

    /// Takes ownership of one use of a pool that no other owner ends, such as a use from [`Self::into_id`],
    /// [`Pools::create`](crate::operations::Pools::create) or the C library.
    pub fn from_id(allocator: A, id: PoolId) -> Self {
        Self { allocator, id }
    }

    /// Returns the id of the pool, whose use no longer ends by itself.
    #[must_use = "the use of the pool does not end unless somebody ends it"]
    pub fn into_id(mut self) -> PoolId {
        std::mem::replace(&mut self.id, PoolId::NONE)
    }

    /// Returns the id of the pool.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// Returns the allocator of the pool.
    #[must_use]
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    /// Adds one use of the pool.
    ///
    /// # Errors
    /// [`Error::UnknownPool`] after [`Self::release`].
    pub fn try_clone(&self) -> Result<Self>
    where
        A: Clone,
    {
        self.allocator.pools().retain(self.id)?;
        Ok(Self { allocator: self.allocator.clone(), id: self.id })
    }

    /// Reserves `capacity` bytes of addresses for an allocation of the pool that grows in place, for work on `stream`.
    /// The allocation may outlive the pool, and then grows by public memory.
    ///
    /// # Errors
    /// The errors of [`GrowingAllocations::reserve_in`](crate::operations::GrowingAllocations::reserve_in).
    pub fn growing(&self, capacity: u64, stream: impl Into<StreamId>) -> Result<Growing<A>>
    where
        A: Clone,
    {
        Growing::new_in(self.allocator.clone(), self.id, capacity, stream)
    }

    /// Allocates `size` bytes from the pool for work on `stream`, regardless of routes. The block may outlive the pool.
    ///
    /// # Errors
    /// The errors of [`Pools::allocate`](crate::operations::Pools::allocate).
    pub fn block(&self, size: u64, stream: impl Into<StreamId>) -> Result<Block<A>>
    where
        A: Clone,
    {
        Block::new_in(self.allocator.clone(), self.id, size, stream.into())
    }

    /// Routes the requests that `route` covers to the pool, until the returned route ends. A pool has one route at a
    /// time, or several routes that cover threads ([`Route::this_thread`], [`Route::other_threads`]).
    ///
    /// # Errors
    /// The errors of [`Pools::begin`](crate::operations::Pools::begin).
    pub fn route(&self, route: Route) -> Result<PoolRoute<A>>
    where
        A: Clone,
    {
        let number = self.allocator.pools().begin_route(self.id, route)?;
        Ok(PoolRoute { allocator: self.allocator.clone(), pool: self.id, number })
    }

    /// Routes the requests for a stream to the pool while the stream is captured. Call this method before the capture
    /// begins, and end the route after the capture has ended.
    ///
    /// # Errors
    /// The errors of [`Pools::begin`](crate::operations::Pools::begin).
    pub fn capture(&self, stream: impl Into<StreamId>) -> Result<PoolRoute<A>>
    where
        A: Clone,
    {
        self.route(Route::stream(stream.into()).capturing())
    }

    /// Returns the state of the pool. The call walks all blocks.
    ///
    /// # Errors
    /// [`Error::UnknownPool`] after [`Self::release`].
    pub fn stats(&self) -> Result<PoolStats> {
        self.allocator.pools().stats(self.id)
    }

    /// Gives back all physical memory of a tag until [`Self::wake`], and keeps the contents of its blocks as `backup`
    /// says. Returns the bytes given back. No work may use the tag's memory until the tag is awake again
    /// ([`Tags::sleep`](crate::operations::Tags::sleep)).
    ///
    /// # Errors
    /// The errors of [`Tags::sleep`](crate::operations::Tags::sleep).
    pub fn sleep(&self, backup: &Backup) -> Result<u64> {
        self.allocator.tags().sleep(self.id, backup)
    }

    /// Gives a sleeping tag its memory again, at the same addresses. Returns the bytes taken.
    ///
    /// # Errors
    /// The errors of [`Tags::wake`](crate::operations::Tags::wake).
    pub fn wake(&self) -> Result<u64> {
        self.allocator.tags().wake(self.id)
    }

    /// Returns whether the tag sleeps.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        self.allocator.tags().is_asleep(self.id)
    }

    /// Ends the use now. Afterwards, dropping the pool does nothing.
    ///
    /// # Errors
    /// The errors of [`Pools::release`](crate::operations::Pools::release).
    pub fn release(&mut self) -> Result<()> {
        self.allocator.pools().release(self.id)?;
        self.id = PoolId::NONE;
        Ok(())
    }
}

impl<A: Deref<Target = Allocator>> Drop for Pool<A> {
    fn drop(&mut self) {
        if self.id != PoolId::NONE
            && let Err(error) = self.allocator.pools().release(self.id)
        {
            tracing::error!(%error, pool = %self.id, "the use of a private pool that is dropped could not be ended");
        }
    }
}

impl<A: Deref<Target = Allocator>> fmt::Debug for Pool<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A route of requests to a private pool ([`Pool::route`]), which ends when the value is dropped
/// ([`Pools::end`](crate::operations::Pools::end)). The pool lives as long as the route, even if the pool's last use
/// ends.
///
/// If the end fails in a drop, an error of `tracing` says so; [`Self::end`] returns the error.
#[must_use = "a route that is not kept ends at once"]
pub struct PoolRoute<A: Deref<Target = Allocator> = Arc<Allocator>> {
    allocator: A,
    /// The pool; [`PoolId::NONE`] if there is no route to end.
    pool: PoolId,
    number: u64,
}

impl<A: Deref<Target = Allocator>> PoolRoute<A> {
    /// Returns the id of the route's pool.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// Ends the route now.
    ///
    /// # Errors
    /// The errors of [`Pools::end`](crate::operations::Pools::end); the call is not repeated when the value is dropped.
    pub fn end(mut self) -> Result<()> {
        let pool = std::mem::replace(&mut self.pool, PoolId::NONE);
        self.allocator.pools().end_route(pool, Some(self.number))
    }
}

impl<A: Deref<Target = Allocator>> Drop for PoolRoute<A> {
    fn drop(&mut self) {
        if self.pool != PoolId::NONE
            && let Err(error) = self.allocator.pools().end_route(self.pool, Some(self.number))
        {
            tracing::error!(%error, pool = %self.pool, "a route to a private pool that is dropped could not be ended");
        }
    }
}

impl<A: Deref<Target = Allocator>> fmt::Debug for PoolRoute<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolRoute").field("pool", &self.pool).finish_non_exhaustive()
    }
}

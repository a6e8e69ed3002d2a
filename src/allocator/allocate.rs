//! Allocation: the one path of every request, to a public pool or a private one.
//!
//! Owns: the order of steps in an allocation. A hit is `Heap::fit` and `Heap::hand_out`. A miss tries, until it finds a
//! block: memory that other streams have passed, the strategy by cheap means, the program's callbacks, and the strategy
//! by all means.

use super::callbacks::Calls;
use super::core::{Allocator, Core};
use super::operations::Pools;
use super::prepared::{Order, Prepared, fit_rules};
use crate::backing::{AllocatorContext, Miss, Served, reclaim_private_pools};
use crate::config::rounding::MAX_REQUEST;
use crate::error::{Error, Result};
use crate::heap::{FitRules, Request, ViewUsage};
use crate::ids::{BlockId, PoolId, StreamId};
use crate::strategy::{AnyStrategy, Means, serve_own_segments};
use parking_lot::MutexGuard;

/// The result of a miss: a block, or how much views would have taken with one that the bounds forbade.
pub(super) type Found = std::result::Result<BlockId, Option<ViewUsage>>;

impl Allocator {
    /// Allocates `size` bytes for work on `stream`. Returns an address that is a multiple of 512. For 0 bytes it is
    /// address 0, which [`Self::free`] ignores.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with a report, after everything that could be was given back; [`Error::RequestTooLarge`];
    /// [`Error::Driver`] if a driver call failed for another reason; [`Error::Source`] if the request was routed to a
    /// private pool whose source failed; [`Error::HostMemory`]. Nothing has changed for live allocations.
    pub fn allocate(&self, size: u64, stream: StreamId) -> Result<u64> {
        if size == 0 {
            return Ok(0);
        }
        let size = bounded(size)?;
        let guard = &mut self.core.lock();
        let core = &mut **guard;
        if core.has_pre_work {
            let owner = core.poll_before_request(stream)?;
            if core.guard.is_some() {
                return self.allocate_watched(guard, &Order::new(size, stream, owner));
            }
            if let Some(owner) = owner {
                return self.serve_private(guard, &Order::new(size, stream, Some(owner)), owner);
            }
        }
        let request = core.public_request(size, stream)?;
        let id = core.heap.fit(&request, &core.rules.fit);
        if id.is_none() {
            return self.miss(guard, &Order::new(size, stream, None), Prepared { request, private: None });
        }
        if core.heap.is_bare(id, request.size) {
            core.map_bare(id, &request)?;
        }
        let address = core.heap.hand_out(id, &request, &core.rules.fit)?;
        core.checked()?;
        Ok(address)
    }

    /// Serves a request of no private pool, as [`Self::allocate`] does without guard mode.
    pub(super) fn serve_public(&self, guard: &mut MutexGuard<'_, Core>, order: &Order) -> Result<u64> {
        let prepared = guard.prepare(order)?;
        self.serve_prepared(guard, order, prepared)
    }

    /// Serves a request of a private pool. It differs from any other in what it may take, and in what is noted of it.
    pub(super) fn serve_private(&self, guard: &mut MutexGuard<'_, Core>, order: &Order, owner: PoolId) -> Result<u64> {
        let prepared = guard.private_request(order, owner)?;
        self.serve_prepared(guard, order, prepared)
    }

    #[inline]
    pub(super) fn serve_prepared(
        &self,
        guard: &mut MutexGuard<'_, Core>,
        order: &Order,
        prepared: Prepared,
    ) -> Result<u64> {
        let Some(id) = guard.fit(&prepared).some() else { return self.miss(guard, order, prepared) };
        guard.make_usable(id, &prepared.request)?;
        guard.hand_out(id, &prepared)
    }

    /// Serves a request that no free block fits: by the strategy, then by callbacks, then by the last resort.
    #[cold]
    fn miss(&self, core: &mut MutexGuard<'_, Core>, order: &Order, prepared: Prepared) -> Result<u64> {
        let served = self.serve_miss(core, order, prepared);
        if core.config.headroom > 0 {
            core.yield_at_miss();
        }
        served
    }

    fn serve_miss(&self, core: &mut MutexGuard<'_, Core>, order: &Order, prepared: Prepared) -> Result<u64> {
        core.no_addresses = false;
        core.heap.note_miss(prepared.request.pool);
        let (prepared, found) = self.search(core, order, prepared)?;
        match found {
            Ok(id) => core.hand_out(id, &prepared),
            Err(refused) => Err(core.out_of_memory(&prepared.request, refused)),
        }
    }

    /// Finds a block for a request that no free block fits.
    fn search(
        &self,
        core: &mut MutexGuard<'_, Core>,
        order: &Order,
        mut prepared: Prepared,
    ) -> Result<(Prepared, Found)> {
        if let Some(id) = core.fit_after_poll(&prepared)? {
            return Ok((prepared, Ok(id)));
        }
        let (found, room) = match self.callbacks.begin()? {
            None => core.ask_first(&prepared)?,
            Some(calls) => {
                let found = core.ask_strategy(&prepared, Means::Cheap)?;
                if found.is_ok() { (found, None) } else { Self::call_back(core, order, &mut prepared, calls)? }
            }
        };
        let (prepared, found) = match room {
            Some(room) => self.wait_and_ask(core, order, prepared, room)?,
            None => (prepared, found),
        };
        match found {
            Err(refused) if core.lender.is_some() => self.borrow_memory(core, order, prepared, refused),
            found => Ok((prepared, found)),
        }
    }

    /// Asks the program for memory, and tries again after each callback that freed something; at last as without callbacks.
    fn call_back(
        core: &mut MutexGuard<'_, Core>,
        order: &Order,
        prepared: &mut Prepared,
        mut calls: Calls<'_>,
    ) -> Result<(Found, Option<u64>)> {
        let pressure = core.pressure(&prepared.request);
        while let Some(freed) = MutexGuard::unlocked(core, || calls.next(&pressure)) {
            if freed && let Ok(id) = core.retry(order, prepared, Means::Cheap)? {
                return Ok((Ok(id), None));
            }
        }
        // Other threads may have taken the lock meanwhile.
        *prepared = core.prepare_again(order)?;
        core.poll()?;
        match core.fit_usable(prepared)? {
            Some(id) => Ok((Ok(id), None)),
            None => core.ask_first(prepared),
        }
    }
}

impl Pools<'_> {
    /// Does the same as [`Allocator::allocate`](crate::Allocator::allocate), from a private pool, whatever is routed where.
    ///
    /// # Errors
    /// Those of [`Allocator::allocate`](crate::Allocator::allocate); [`Error::UnknownPool`] if the pool has no use; [`Error::Source`] if its own source
    /// failed.
    pub fn allocate(self, pool: PoolId, size: u64, stream: StreamId) -> Result<u64> {
        let guard = &mut self.0.core.lock();
        let core = &mut **guard;
        core.heap.private_mut().used(pool)?;
        if size == 0 {
            return Ok(0);
        }
        let size = bounded(size)?;
        core.make_whole()?;
        core.poll()?;
        let order = Order::new(size, stream, Some(pool));
        if core.guard.is_some() {
            return self.0.allocate_watched(guard, &order);
        }
        self.0.serve_private(guard, &order, pool)
    }

    /// Does the same as [`Self::allocate`], from free memory that the pool holds in one range. Returns `None` if
    /// there is no such range. No new memory is taken, and nothing is waited for.
    ///
    /// # Errors
    /// Those of [`Self::allocate`], except [`Error::OutOfMemory`].
    pub fn allocate_held(self, pool: PoolId, size: u64, stream: StreamId) -> Result<Option<u64>> {
        let core = &mut *self.0.core.lock();
        core.heap.private_mut().used(pool)?;
        if size == 0 {
            return Ok(Some(0));
        }
        let size = bounded(size)?;
        core.make_whole()?;
        core.poll()?;
        let prepared = core.private_request(&Order::new(size, stream, Some(pool)), pool)?;
        let rules = FitRules { takes_idle: false, ..*fit_rules(&core.rules, &core.own_rules, &prepared) };
        let Some(id) = core.heap.fit(&prepared.request, &rules).some() else { return Ok(None) };
        core.make_usable(id, &prepared.request)?;
        let address = core.hand_out(id, &prepared)?;
        core.watch(address)?;
        Ok(Some(address))
    }
}

impl Core {
    /// Frees blocks that other streams have passed, before a request, while frees wait or requests are routed. Returns
    /// the private pool to which the request is routed, if any. Memory that is missing at its addresses comes first.
    #[cold]
    fn poll_before_request(&mut self, stream: StreamId) -> Result<Option<PoolId>> {
        self.make_whole()?;
        let route = self.heap.private().route_of(stream);
        if route.is_some() || self.poll_due() {
            self.poll()?;
        }
        self.has_pre_work =
            self.poll_due() || self.heap.private().routes() > 0 || self.guard.is_some() || !self.rollback.is_whole();
        Ok(route)
    }

    /// Brings memory back that is missing at its addresses.
    fn make_whole(&mut self) -> Result<()> {
        Ok(if self.rollback.is_whole() { Ok(()) } else { self.timed(|_, context| context.retry_rollback()) }?)
    }

    /// Frees blocks that other streams have passed, if this was not done before the request. Returns the block that
    /// fits then.
    fn fit_after_poll(&mut self, prepared: &Prepared) -> Result<Option<BlockId>> {
        // For a private pool, this was done before the request.
        if prepared.private.is_some() || self.rules.polls_first || self.streams.recorded.waiting() == 0 {
            return Ok(None);
        }
        self.poll()?;
        self.fit_usable(prepared)
    }

    /// Tries a request again.
    pub(super) fn retry(&mut self, order: &Order, prepared: &mut Prepared, means: Means) -> Result<Found> {
        *prepared = self.prepare_again(order)?;
        self.poll()?;
        match self.fit_usable(prepared)? {
            None => self.ask_strategy(prepared, means),
            Some(id) => Ok(Ok(id)),
        }
    }

    /// Returns the block that the strategy finds, or the reason why there is too little memory.
    pub(super) fn ask_strategy(&mut self, prepared: &Prepared, means: Means) -> Result<Found> {
        if means == Means::All {
            self.drain_guard();
        }
        let request = &prepared.request;
        self.ask(|strategy, context| {
            if context.heap().is_segmented(request.pool) {
                return serve_own_segments(&mut **strategy, context, request, means);
            }
            let first = if means == Means::All { Means::Cheap } else { means };
            match strategy.serve(context, request, first) {
                Err(Miss::OutOfMemory { .. }) if means == Means::All => serve_by_all(strategy, context, request),
                found => found,
            }
        })
    }

    /// Returns the block that a step of the strategy finds.
    pub(super) fn ask(
        &mut self,
        mut step: impl FnMut(&mut AnyStrategy, &mut AllocatorContext<'_>) -> Served,
    ) -> Result<Found> {
        // What is found can be handed out then.
        self.heap.reserve_live()?;
        let mut served = self.timed(&mut step);
        if matches!(served, Err(Miss::OutOfMemory { .. })) && self.takes_plain_memory() {
            served = self.timed(step);
        }
        match served {
            Ok(id) => Ok(Ok(id)),
            Err(Miss::OutOfMemory { refused }) => Ok(Err(refused)),
            Err(Miss::Failed(error)) => Err(error),
        }
    }
}

/// Serves a request for which cheap means found too little.
pub(super) fn serve_by_all(
    strategy: &mut AnyStrategy,
    context: &mut AllocatorContext<'_>,
    request: &Request,
) -> Served {
    reclaim_private_pools(context).map_err(Miss::Failed)?;
    strategy.serve(context, request, Means::All)
}

/// Refuses a size that no device has.
fn bounded(size: u64) -> Result<u64> {
    if size > MAX_REQUEST { Err(Error::RequestTooLarge { size }) } else { Ok(size) }
}

//! Allocations: the one path of every request, to a public pool or a private one.
//!
//! Owns: the order of things in an allocation. A hit is `Heap::fit` and `Heap::hand_out`. A miss goes on until it finds a
//! block: what other streams have passed, the strategy by cheap means, the program's callbacks, the strategy by all means.

use super::core::{Allocator, Core};
use crate::backing::{Miss, map_home, reclaim_private_pools};
use crate::config::rounding::{MAX_REQUEST, round_size};
use crate::error::{Error, Result};
use crate::heap::{FitRules, Request, ViewUsage};
use crate::ids::{BlockId, Class, PoolId, PoolIndex, StreamId};
use crate::span::Span;
use crate::strategy::{Means, Rules, serve_own_segments};
use parking_lot::MutexGuard;

/// What a program asks for.
#[derive(Clone, Copy)]
struct Order {
    /// In bytes, not 0.
    size: u64,
    stream: StreamId,
    /// The private pool that it is for.
    owner: Option<PoolId>,
}

/// A request, and what is special about it if it is of a private pool.
#[derive(Clone, Copy)]
pub(super) struct Prepared {
    pub(super) request: Request,
    private: Option<Private>,
}

#[derive(Clone, Copy)]
struct Private {
    owner: PoolId,
    /// Whether a stream capture takes the block.
    captured: bool,
    /// Whether the pool has segments of its own, and if so whether they stay whole.
    unsplit: Option<bool>,
}

/// What a miss came to: a block, or what views would have taken with one that the bounds forbade.
type Found = std::result::Result<BlockId, Option<ViewUsage>>;

impl Allocator {
    /// `size` bytes for work on `stream`, at an address that is a multiple of 512. 0 bytes get address 0, which
    /// [`Allocator::free`] takes back without doing anything.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with a report after everything that could be given back was; [`Error::RequestTooLarge`];
    /// [`Error::Driver`] where a driver call failed otherwise; [`Error::Source`] where the source of a private pool did, to
    /// which the request was routed. Nothing has changed for live allocations.
    pub fn allocate(&self, size: u64, stream: StreamId) -> Result<u64> {
        if size == 0 {
            return Ok(0);
        }
        let size = bounded(size)?;
        let guard = &mut self.core.lock();
        let core = &mut **guard;
        let owner = if core.has_pre_work { core.poll_before_request(stream)? } else { None };
        self.serve(guard, Order { size, stream, owner })
    }

    /// As [`Self::allocate`], from a private pool, whatever is routed where.
    ///
    /// # Errors
    /// Those of [`Self::allocate`]; [`Error::UnknownPool`] where nobody uses the pool; [`Error::Source`] where its own source
    /// failed.
    pub fn allocate_in(&self, pool: PoolId, size: u64, stream: StreamId) -> Result<u64> {
        let guard = &mut self.core.lock();
        let core = &mut **guard;
        core.heap.private_mut().used(pool)?;
        if size == 0 {
            return Ok(0);
        }
        let size = bounded(size)?;
        core.poll()?;
        self.serve(guard, Order { size, stream, owner: Some(pool) })
    }

    /// As [`Self::allocate_in`], of what the pool holds free in one range: `None` where there is no such range. No new
    /// memory is taken, and nothing waited for.
    ///
    /// # Errors
    /// Those of [`Self::allocate_in`], but for [`Error::OutOfMemory`].
    pub fn allocate_held_in(&self, pool: PoolId, size: u64, stream: StreamId) -> Result<Option<u64>> {
        let core = &mut *self.core.lock();
        core.heap.private_mut().used(pool)?;
        if size == 0 {
            return Ok(Some(0));
        }
        let size = bounded(size)?;
        core.poll()?;
        let prepared = core.prepare(&Order { size, stream, owner: Some(pool) })?;
        let rules = FitRules { takes_idle: false, ..*fit_rules(&core.rules, &core.own_rules, &prepared) };
        let Some(id) = core.heap.fit(&prepared.request, &rules).some() else { return Ok(None) };
        core.make_usable(id, &prepared.request)?;
        core.hand_out(id, &prepared).map(Some)
    }

    fn serve(&self, guard: &mut MutexGuard<'_, Core>, order: Order) -> Result<u64> {
        let core = &mut **guard;
        let mut prepared = core.prepare(&order)?;
        let mut id = core.fit(&prepared);
        if id.is_none() {
            (prepared, id) = self.miss(guard, &order, prepared)?;
        } else {
            core.make_usable(id, &prepared.request)?;
        }
        guard.hand_out(id, &prepared)
    }

    /// Finds a block for a request that no free block fits: by the strategy, then by callbacks, then by the last resort.
    #[cold]
    fn miss(&self, core: &mut MutexGuard<'_, Core>, order: &Order, prepared: Prepared) -> Result<(Prepared, BlockId)> {
        if let Some(id) = core.fit_after_poll(&prepared)? {
            return Ok((prepared, id));
        }
        let Some(mut calls) = self.callbacks.begin() else {
            let found = core.ask_strategy(&prepared, Means::All)?;
            return core.found(prepared, found);
        };
        if let Ok(id) = core.ask_strategy(&prepared, Means::Cheap)? {
            return Ok((prepared, id));
        }
        let pressure = core.pressure(&prepared.request);
        while let Some(freed) = MutexGuard::unlocked(core, || calls.next(&pressure)) {
            if freed && let (prepared, Ok(id)) = core.retry(order, Means::Cheap)? {
                return Ok((prepared, id));
            }
        }
        // Other threads have had the lock meanwhile.
        let (prepared, found) = core.retry(order, Means::All)?;
        core.found(prepared, found)
    }
}

impl Core {
    /// What comes before a request while frees wait or requests are routed: frees what can be freed. Returns the private
    /// pool that the request goes to.
    #[cold]
    fn poll_before_request(&mut self, stream: StreamId) -> Result<Option<PoolId>> {
        let route = self.heap.private().route_of(stream);
        if route.is_some() || self.poll_due() {
            self.poll()?;
        }
        self.has_pre_work = self.poll_due() || self.heap.private().routes() > 0;
        Ok(route)
    }

    /// Makes a request of an order: rounded, and of a pool.
    #[inline]
    fn prepare(&mut self, order: &Order) -> Result<Prepared> {
        let size = round_size(order.size, &self.config.roundup_power2_divisions);
        if let Some(owner) = order.owner {
            return self.prepare_private(order, owner, size);
        }
        let (pool, class) = match self.heap.pool_for(order.stream, size) {
            Some(known) => known,
            None => self.register_stream(order.stream, size)?,
        };
        Ok(Prepared { request: request(order, size, pool, class), private: None })
    }

    #[cold]
    fn prepare_private(&mut self, order: &Order, owner: PoolId, size: u64) -> Result<Prepared> {
        let stream = self.driver.canonical_stream(order.stream)?;
        // The default stream cannot be captured, and asking about it may be refused while another is.
        let may_be = self.capturing() && stream != StreamId::DEFAULT;
        let captured = may_be && self.driver.is_capturing(stream)?;
        let (pool, class) = self.heap.private_pool(owner, stream, size, captured);
        let unsplit = self.heap.private().segments(owner).map(|own| own.are_unsplit());
        Ok(Prepared { request: request(order, size, pool, class), private: Some(Private { owner, captured, unsplit }) })
    }

    /// Takes the free block that serves a request best, or none.
    #[inline]
    fn fit(&mut self, prepared: &Prepared) -> BlockId {
        let rules = fit_rules(&self.rules, &self.own_rules, prepared);
        self.heap.fit(&prepared.request, rules)
    }

    /// Hands out a block that is in no index. Returns its address.
    #[inline]
    fn hand_out(&mut self, id: BlockId, prepared: &Prepared) -> Result<u64> {
        let rules = fit_rules(&self.rules, &self.own_rules, prepared);
        let address = self.heap.hand_out(id, &prepared.request, rules)?;
        if let Some(Private { owner, captured, .. }) = prepared.private {
            self.heap.handed_out_privately(id, owner, captured);
        }
        self.checked()?;
        Ok(address)
    }

    /// Sees to it that a free block which was found has memory at its addresses.
    #[inline]
    fn make_usable(&mut self, id: BlockId, request: &Request) -> Result<()> {
        if self.heap.is_bare(id, request.size) { self.map_bare(id, request) } else { Ok(()) }
    }

    /// A hit found memory at home that is not mapped there yet.
    #[cold]
    fn map_bare(&mut self, id: BlockId, request: &Request) -> Result<()> {
        let span = Span::new(self.heap.block(id).address, request.size);
        let mapped = self.timed(|_, context| map_home(context, span));
        mapped.map_err(|error| {
            self.heap.insert_free(id);
            if error.is_out_of_memory() { self.out_of_memory(request, None) } else { error.into() }
        })
    }

    /// Frees what other streams have passed, where that was not asked before the request. Returns the block that fits now.
    fn fit_after_poll(&mut self, prepared: &Prepared) -> Result<Option<BlockId>> {
        // Of a private pool it was asked.
        if prepared.private.is_some() || self.rules.polls_first || self.streams.recorded.waiting() == 0 {
            return Ok(None);
        }
        self.poll()?;
        let Some(id) = self.fit(prepared).some() else { return Ok(None) };
        self.make_usable(id, &prepared.request)?;
        Ok(Some(id))
    }

    /// The request again, from the start: anything may have become of its pool meanwhile.
    fn retry(&mut self, order: &Order, means: Means) -> Result<(Prepared, Found)> {
        self.poll()?;
        if let Some(pool) = order.owner {
            self.heap.private().exists(pool)?;
        }
        let prepared = self.prepare(order)?;
        let found = match self.fit(&prepared).some() {
            None => self.ask_strategy(&prepared, means)?,
            Some(id) => {
                self.make_usable(id, &prepared.request)?;
                Ok(id)
            }
        };
        Ok((prepared, found))
    }

    /// Returns what the strategy finds, or why too little memory could be had.
    fn ask_strategy(&mut self, prepared: &Prepared, means: Means) -> Result<Found> {
        let request = &prepared.request;
        let found = self.timed(|strategy, context| {
            if context.heap.is_segmented(request.pool) {
                return serve_own_segments(strategy, context, request, means);
            }
            match strategy.serve(context, request, Means::Cheap) {
                Err(Miss::OutOfMemory { .. }) if means == Means::All => {
                    reclaim_private_pools(context).map_err(Miss::Failed)?;
                    strategy.serve(context, request, Means::All)
                }
                found => found,
            }
        });
        match found {
            Ok(id) => Ok(Ok(id)),
            Err(Miss::OutOfMemory { refused }) => Ok(Err(refused)),
            Err(Miss::Failed(error)) => Err(error),
        }
    }

    /// Makes an error of too little memory.
    fn found(&mut self, prepared: Prepared, found: Found) -> Result<(Prepared, BlockId)> {
        match found {
            Ok(id) => Ok((prepared, id)),
            Err(refused) => Err(self.out_of_memory(&prepared.request, refused)),
        }
    }
}

/// Returns how a request finds its block.
#[inline]
fn fit_rules<'a>(rules: &'a Rules, own: &'a [FitRules; 2], prepared: &Prepared) -> &'a FitRules {
    match prepared.private.and_then(|private| private.unsplit) {
        None => &rules.fit,
        Some(unsplit) => &own[usize::from(unsplit)],
    }
}

fn request(order: &Order, size: u64, pool: PoolIndex, class: Class) -> Request {
    Request { size, requested: order.size, pool, class }
}

/// Refuses what no device has.
fn bounded(size: u64) -> Result<u64> {
    if size > MAX_REQUEST { Err(Error::RequestTooLarge { size }) } else { Ok(size) }
}

//! Private pools: memory that serves only requests made for the pool. CUDA graphs need such memory.
//!
//! Owns: which private pools exist, their uses, and which requests are routed to a pool. `private.rs` has the memory of
//! private pools. The semantics are PyTorch's (`torch.cuda.MemPool`, `beginAllocateToPool` of
//! c10/cuda/CUDACachingAllocator.cpp, 2.11).

use super::route::Route;
use super::segment_source::Segments;
use crate::error::{Error, Result};
use crate::fallible::TryCollect;
use crate::heap::home::saved::{Saved, Stock};
use crate::ids::PoolId;
use crate::ids::StreamId;
use crate::report::pool::PoolStats;
use rustc_hash::FxHashMap;
use std::thread;

/// A private pool that is in use, or whose memory waits for the device.
#[derive(Debug, Default)]
pub(crate) struct PrivatePool {
    uses: u64,
    /// Whether a graph may use the pool's memory.
    pub(crate) captured: bool,
    /// Whether a block of the pool was freed while another stream was current. The other stream may still use the
    /// block.
    used_by_others: bool,
    /// The number of the capture that is under way for the pool; 0 without a capture.
    pub(crate) capture: u32,
    /// The pool's own segments; `None` if the pool's memory comes from the strategy.
    segments: Option<Segments>,
    /// Whether the pool's memory comes in chunks of its own, which can sleep.
    apart: bool,
    /// The contents of the pool's live blocks while the pool sleeps; `None` while the pool is awake.
    asleep: Option<Saved>,
    /// Whether a call that puts the pool to sleep or wakes the pool is under way.
    pub(crate) turning: bool,
}

impl PrivatePool {
    /// Returns whether the memory of a released pool can serve other requests in the order of the pool's own streams.
    /// Otherwise the CPU must first wait for the device.
    pub(crate) fn is_in_order(&self) -> bool {
        !self.captured && !self.used_by_others
    }

    /// Returns whether a capture has taken memory of the pool.
    pub(crate) fn is_captured(&self) -> bool {
        self.captured
    }
}

/// Every private pool, and the routes to them.
#[derive(Debug, Default)]
pub(crate) struct PrivatePools {
    pools: FxHashMap<PoolId, PrivatePool>,
    /// The routes, in the order in which they were begun, each with its number.
    routes: Vec<(PoolId, Route, u64)>,
    /// How many routes were begun.
    begun: u64,
    /// How many of the routes have a capture.
    capturing: usize,
    /// How many captures were begun.
    captures: u32,
    /// How many pools got their number from [`Self::create`].
    numbered: u64,
    /// The page-locked memory of backups, in use or kept.
    stock: Stock,
}

impl PrivatePools {
    /// Returns the number of routes.
    pub(crate) fn routes(&self) -> usize {
        self.routes.len()
    }

    /// Returns whether a stream capture may be under way.
    pub(crate) fn capturing(&self) -> bool {
        self.capturing > 0
    }

    /// Returns the ids of all pools, in order.
    pub(crate) fn ids(&self) -> Result<Vec<PoolId>> {
        let mut ids = self.pools.keys().copied().try_to_vec()?;
        ids.sort_unstable();
        Ok(ids)
    }

    /// Returns how many pools have a use or a route.
    pub(crate) fn in_use(&self) -> usize {
        self.pools.iter().filter(|(id, pool)| pool.uses > 0 || self.is_routed(**id)).count()
    }

    pub(crate) fn get(&self, id: PoolId) -> Option<&PrivatePool> {
        self.pools.get(&id)
    }

    /// Creates a pool with one use. Returns its id.
    pub(crate) fn create(&mut self) -> Result<PoolId> {
        self.pools.try_reserve(1)?;
        let id = loop {
            self.numbered += 1;
            let id = PoolId(0, self.numbered);
            if !self.pools.contains_key(&id) {
                break id;
            }
        };
        self.pools.insert(id, PrivatePool { uses: 1, ..PrivatePool::default() });
        Ok(id)
    }

    /// Adds one use to the pool with this id. Creates the pool if no pool has this id.
    pub(crate) fn open(&mut self, id: PoolId) -> Result<()> {
        if id == PoolId::NONE {
            return Err(Error::UnknownPool { pool: id });
        }
        self.pools.try_reserve(1)?;
        self.pools.entry(id).or_default().uses += 1;
        Ok(())
    }

    /// Gives a pool segments of its own. The pool holds no memory yet.
    pub(crate) fn set_segments(&mut self, id: PoolId, segments: Segments) {
        if let Some(pool) = self.pools.get_mut(&id) {
            pool.segments = Some(segments);
        }
    }

    /// Gives a pool chunks of its own. The pool holds no memory yet.
    pub(crate) fn set_apart(&mut self, id: PoolId) {
        if let Some(pool) = self.pools.get_mut(&id) {
            pool.apart = true;
        }
    }

    /// Returns whether any pool has chunks of its own.
    pub(crate) fn has_apart(&self) -> bool {
        self.pools.values().any(|pool| pool.apart)
    }

    pub(crate) fn is_apart(&self, id: PoolId) -> bool {
        self.get(id).is_some_and(|pool| pool.apart)
    }

    /// Returns which memory of its own a pool has. The first value is `Some` for segments of its own, and says whether
    /// they stay unsplit. The second value says whether the pool has chunks of its own.
    ///
    /// # Errors
    /// [`Error::PoolAsleep`] if the pool sleeps.
    pub(crate) fn own_memory(&self, id: PoolId) -> Result<(Option<bool>, bool)> {
        match self.get(id) {
            Some(PrivatePool { asleep: Some(_), .. }) => Err(Error::PoolAsleep { pool: id }),
            Some(pool) => Ok((pool.segments.as_ref().map(Segments::are_unsplit), pool.apart)),
            None => Ok((None, false)),
        }
    }

    /// Notes that a pool sleeps, with the saved contents of its live blocks, or that the pool is awake (`None`).
    pub(crate) fn set_asleep(&mut self, id: PoolId, saved: Option<Saved>) {
        let Some(pool) = self.pools.get_mut(&id) else { return };
        if let Some(before) = std::mem::replace(&mut pool.asleep, saved) {
            self.stock.take_from(before);
        }
    }

    /// Puts the page-locked memory of all sleeping pools back into the stock, at the end of the allocator.
    pub(crate) fn end_backups(&mut self) {
        self.pools.values_mut().filter_map(|pool| pool.asleep.take()).for_each(|saved| self.stock.take_from(saved));
    }

    /// Returns the page-locked memory of backups.
    pub(crate) fn stock(&self) -> &Stock {
        &self.stock
    }

    pub(crate) fn stock_mut(&mut self) -> &mut Stock {
        &mut self.stock
    }

    /// Notes whether a call that puts a pool to sleep or wakes the pool is under way.
    pub(crate) fn set_turning(&mut self, id: PoolId, turning: bool) {
        if let Some(pool) = self.pools.get_mut(&id) {
            pool.turning = turning;
        }
    }

    /// Returns the saved contents of a pool's live blocks while the pool sleeps, or `None`.
    pub(crate) fn asleep(&self, id: PoolId) -> Option<&Saved> {
        self.get(id)?.asleep.as_ref()
    }

    /// Returns whether any sleeping pool has no uses and no routes.
    pub(crate) fn sleeps_released(&self) -> bool {
        self.pools.iter().any(|(id, pool)| pool.asleep.is_some() && pool.uses == 0 && !self.is_routed(*id))
    }

    /// Returns [`Error::PoolAsleep`] if the pool sleeps.
    pub(crate) fn must_be_awake(&self, id: PoolId) -> Result<()> {
        if self.asleep(id).is_some() { Err(Error::PoolAsleep { pool: id }) } else { Ok(()) }
    }

    /// Returns whether any pool has segments of its own.
    pub(crate) fn has_segmented(&self) -> bool {
        self.pools.values().any(|pool| pool.segments.is_some())
    }

    /// Returns the pool's own segments, or `None`.
    pub(crate) fn segments(&self, id: PoolId) -> Option<&Segments> {
        self.pools.get(&id)?.segments.as_ref()
    }

    pub(crate) fn segments_mut(&mut self, id: PoolId) -> Option<&mut Segments> {
        self.pools.get_mut(&id)?.segments.as_mut()
    }

    /// Leaks the sources at the end of the allocator. A source whose memory may be in use is never dropped.
    pub(crate) fn leak_sources(&mut self) {
        self.pools.values_mut().filter_map(|pool| pool.segments.as_mut()).for_each(Segments::leak);
    }

    /// Returns a pool that has a use, or [`Error::UnknownPool`].
    pub(crate) fn used(&mut self, id: PoolId) -> Result<&mut PrivatePool> {
        self.pools.get_mut(&id).filter(|pool| pool.uses > 0).ok_or(Error::UnknownPool { pool: id })
    }

    /// Returns an error if the pool has neither a use nor a route.
    pub(crate) fn exists(&self, id: PoolId) -> Result<()> {
        let exists = self.pools.get(&id).is_some_and(|pool| pool.uses > 0 || self.is_routed(id));
        if exists { Ok(()) } else { Err(Error::UnknownPool { pool: id }) }
    }

    /// Adds one use to the pool. The pool already has a use.
    pub(crate) fn retain(&mut self, id: PoolId) -> Result<()> {
        self.used(id)?.uses += 1;
        Ok(())
    }

    /// Ends one use of the pool.
    pub(crate) fn release(&mut self, id: PoolId) -> Result<()> {
        self.used(id)?.uses -= 1;
        Ok(())
    }

    /// Returns an error for a route that [`Self::begin`] would refuse. A pool may have several routes that cover
    /// threads, and each of these routes is ended on its own.
    pub(crate) fn may_begin(&mut self, id: PoolId, route: &Route) -> Result<()> {
        self.used(id)?;
        let mut others = self.routes.iter().filter(|(of, ..)| *of == id);
        let free = if route.is_of_threads() {
            others.all(|(_, other, _)| other.is_of_threads())
        } else {
            others.next().is_none()
        };
        if free { Ok(()) } else { Err(Error::PoolRouted { pool: id }) }
    }

    /// Routes requests to a pool. The new route precedes all earlier routes. Returns the number of the new route.
    pub(crate) fn begin(&mut self, id: PoolId, route: Route) -> Result<u64> {
        self.may_begin(id, &route)?;
        if route.lacks_filter() {
            return Err(Error::HostMemory);
        }
        self.routes.try_reserve(1)?;
        if route.is_capturing() {
            self.capturing += 1;
            // The number 0 means no capture.
            self.captures = self.captures.checked_add(1).unwrap_or(1);
            let capture = self.captures;
            self.used(id)?.capture = capture;
        }
        self.begun += 1;
        self.routes.push((id, route, self.begun));
        Ok(self.begun)
    }

    /// Ends a route to a pool, even if the pool was released meanwhile. With a number, the route with this number ends.
    /// Without a number, the pool's newest route that covers only the calling thread ends. If there is no such route,
    /// the pool's newest route that covers all threads without a route of their own ends. Otherwise, if the pool has
    /// exactly one route, this route ends.
    pub(crate) fn end(&mut self, id: PoolId, number: Option<u64>) -> Result<()> {
        let not_routed = if self.pools.contains_key(&id) {
            Error::PoolNotRouted { pool: id }
        } else {
            Error::UnknownPool { pool: id }
        };
        let last = |fits: &dyn Fn(&Route, u64) -> bool| {
            self.routes.iter().rposition(|(of, route, number)| *of == id && fits(route, *number))
        };
        let caller = thread::current().id();
        let at = match number {
            Some(number) => last(&|_, of| of == number),
            None => last(&|route, _| route.is_of(caller))
                .or_else(|| last(&|route, _| route.is_of_others()))
                .or_else(|| last(&|_, _| self.routes.iter().filter(|(of, ..)| *of == id).count() == 1)),
        };
        let (_, route, _) = self.routes.remove(at.ok_or(not_routed)?);
        if route.is_capturing() {
            self.capturing -= 1;
        }
        if let Some(pool) = self.pools.get_mut(&id) {
            pool.capture = 0;
        }
        Ok(())
    }

    fn is_routed(&self, id: PoolId) -> bool {
        self.routes.iter().any(|(of, ..)| *of == id)
    }

    /// Returns the pool to which a request of the calling thread on `stream` goes, or `None`. If several routes cover
    /// the request, the newest route counts. A route for other threads counts only if no other route covers the
    /// request.
    pub(crate) fn route_of(&self, stream: StreamId) -> Option<PoolId> {
        let find = |others: bool| {
            self.routes.iter().rev().find(|(_, route, _)| route.is_of_others() == others && route.covers(stream))
        };
        find(false).or_else(|| find(true)).map(|(id, ..)| *id)
    }

    /// Notes that a block of the pool was handed out in a capture.
    pub(crate) fn set_captured(&mut self, id: PoolId) {
        if let Some(pool) = self.pools.get_mut(&id) {
            pool.captured = true;
        }
    }

    /// Notes that a block of the pool is freed while a stream other than the block's own is current.
    pub(crate) fn set_used_by_others(&mut self, id: PoolId) {
        if let Some(pool) = self.pools.get_mut(&id) {
            pool.used_by_others = true;
        }
    }

    /// Returns the pools without uses and routes.
    pub(crate) fn released(&self) -> Result<Vec<PoolId>> {
        Ok(self.pools.keys().copied().filter(|id| self.is_released(*id)).try_to_vec()?)
    }

    /// Returns whether a pool exists and has no uses and no routes.
    pub(crate) fn is_released(&self, id: PoolId) -> bool {
        self.get(id).is_some_and(|pool| pool.uses == 0) && !self.is_routed(id)
    }

    /// Removes a pool from the table.
    pub(crate) fn remove(&mut self, id: PoolId) {
        self.pools.remove(&id);
    }

    /// Returns how many uses a pool has, whether the pool is captured, and whether it has a route.
    pub(crate) fn stats(&self, id: PoolId) -> Result<PoolStats> {
        let pool = self.get(id).ok_or(Error::UnknownPool { pool: id })?;
        let mut stats = PoolStats::default();
        (stats.uses, stats.captured, stats.routed) = (pool.uses, pool.captured, self.is_routed(id));
        Ok(stats)
    }

    /// Releases every pool that no graph can use, at the end of the allocator.
    pub(crate) fn close(&mut self) {
        self.routes.clear();
        for pool in self.pools.values_mut().filter(|pool| !pool.captured) {
            pool.uses = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StreamId = StreamId(1);
    const B: StreamId = StreamId(2);

    #[test]
    fn the_route_begun_last_wins() {
        let mut pools = PrivatePools::default();
        let (all, one) = (pools.create().unwrap(), pools.create().unwrap());
        pools.begin(all, Route::when(|_| true)).unwrap();
        pools.begin(one, Route::stream(A).capturing()).unwrap();
        assert!(pools.capturing());
        assert_eq!((pools.route_of(A), pools.route_of(B)), (Some(one), Some(all)));
        pools.end(one, None).unwrap();
        assert!(!pools.capturing());
        assert_eq!(pools.route_of(A), Some(all));
        pools.end(all, None).unwrap();
        assert_eq!((pools.route_of(A), pools.routes()), (None, 0));
    }

    #[test]
    fn threads_have_routes_of_their_own_to_one_pool() {
        let mut pools = PrivatePools::default();
        let (tag, other) = (pools.create().unwrap(), pools.create().unwrap());
        pools.begin(other, Route::other_threads()).unwrap();
        pools.begin(tag, Route::this_thread()).unwrap();
        let elsewhere = |pools: &mut PrivatePools, run: &(dyn Fn(&mut PrivatePools) + Sync)| {
            thread::scope(|scope| scope.spawn(|| run(pools)).join().unwrap());
        };
        elsewhere(&mut pools, &|pools| {
            assert_eq!(pools.route_of(A), Some(other), "it has none of its own");
            pools.begin(tag, Route::this_thread()).unwrap();
            pools.begin(tag, Route::this_thread()).unwrap();
            assert_eq!(pools.route_of(A), Some(tag));
            pools.end(tag, None).unwrap();
            assert_eq!(pools.route_of(A), Some(tag), "one inside of the other");
        });
        assert_eq!(pools.route_of(A), Some(tag));
        // The newest route, for other threads, takes no request that another route covers.
        pools.begin(other, Route::other_threads()).unwrap();
        assert_eq!(pools.route_of(A), Some(tag));
        assert!(
            pools.begin(tag, Route::stream(A)).is_err() && pools.begin(tag, Route::this_thread().capturing()).is_err()
        );
        pools.end(tag, None).unwrap();
        assert_eq!(pools.route_of(A), Some(other), "the other thread's route is not this one's");
        [(); 2].iter().for_each(|()| pools.end(other, None).unwrap());
        assert_eq!(pools.route_of(A), None);
        pools.end(tag, None).unwrap();
        assert_eq!((pools.routes(), pools.end(tag, None).is_err()), (0, true));
        let numbers = [0, 1].map(|_| pools.begin(tag, Route::this_thread()).unwrap());
        pools.end(tag, Some(numbers[0])).unwrap();
        assert!(pools.end(tag, Some(numbers[0])).is_err() && pools.end(tag, Some(numbers[1])).is_ok());
    }

    #[test]
    fn a_pool_lives_as_long_as_anyone_uses_it_or_is_routed_to_it() {
        let mut pools = PrivatePools::default();
        let id = pools.create().unwrap();
        pools.retain(id).unwrap();
        pools.release(id).unwrap();
        assert!(pools.released().unwrap().is_empty());
        pools.begin(id, Route::this_thread()).unwrap();
        pools.release(id).unwrap();
        assert!(pools.released().unwrap().is_empty() && pools.release(id).is_err() && pools.retain(id).is_err());
        pools.end(id, None).unwrap();
        assert_eq!(pools.released().unwrap(), [id]);
        pools.open(id).unwrap();
        assert!(pools.released().unwrap().is_empty(), "opened again before its memory was given to all");
    }

    #[test]
    fn numbers_given_here_meet_none_that_was_opened() {
        let mut pools = PrivatePools::default();
        pools.open(PoolId(0, 1)).unwrap();
        pools.open(PoolId(3, 0)).unwrap();
        assert_eq!(pools.create(), Ok(PoolId(0, 2)));
        assert_eq!(pools.ids().unwrap(), [PoolId(0, 1), PoolId(0, 2), PoolId(3, 0)]);
        assert!(pools.open(PoolId::NONE).is_err());
    }

    #[test]
    fn a_filter_that_panics_covers_nothing() {
        let mut pools = PrivatePools::default();
        let id = pools.create().unwrap();
        pools.begin(id, Route::when(|_| std::panic::resume_unwind(Box::new(1)))).unwrap();
        assert_eq!(pools.route_of(A), None);
    }

    #[test]
    fn what_a_pool_is_used_for_is_told() {
        let mut pools = PrivatePools::default();
        let id = pools.create().unwrap();
        let told = |pools: &PrivatePools| {
            let stats = pools.stats(id).unwrap();
            (stats.uses, stats.routed, stats.captured, pools.in_use(), pools.exists(id).is_ok())
        };
        assert_eq!(told(&pools), (1, false, false, 1, true));
        pools.begin(id, Route::stream(A)).unwrap();
        pools.set_captured(id);
        pools.retain(id).unwrap();
        assert_eq!(told(&pools), (2, true, true, 1, true));
        [(); 2].iter().for_each(|()| pools.release(id).unwrap());
        assert_eq!(told(&pools), (0, true, true, 1, true), "its route is a use too");
        pools.end(id, None).unwrap();
        assert_eq!(told(&pools), (0, false, true, 0, false), "its memory waits for the device");
        let [first, second] = [0, 1].map(|_| pools.create().unwrap());
        assert_eq!(pools.in_use(), 2);
        assert!(!pools.has_segmented());
        pools.set_segments(first, Segments::by_malloc());
        assert!(pools.has_segmented() && pools.segments(second).is_none());
        assert!(!pools.segments(first).unwrap().have_source());
    }

    #[test]
    fn a_route_captures_only_if_it_says_so() {
        assert!(!Route::stream(A).is_capturing() && Route::stream(A).capturing().is_capturing());
    }
}

//! Allocation: the one path of every hit, to a public or a private pool.
//!
//! Owns: the order of a hit's steps: `Heap::fit`, then `Heap::hand_out`. `miss.rs` has the steps of a miss.

use super::core::{Allocator, Core};
use super::miss;
use super::operations::Pools;
use super::prepared::{AllocRequest, Prepared, fit_rules};
use crate::config::rounding::MAX_REQUEST;
use crate::error::{Error, Result};
use crate::heap::FitRules;
use crate::ids::{PoolId, StreamId};

impl Allocator {
    /// Allocates `size` bytes for work on `stream`. Returns the address, which is a multiple of 512. Returns address 0
    /// for 0 bytes; [`Self::free`] ignores address 0.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with a report, after all memory that could go back to the driver was given back;
    /// [`Error::RequestTooLarge`]; [`Error::Driver`] if a driver call failed for another reason; [`Error::Source`] if
    /// the request was routed to a private pool whose source failed; [`Error::HostMemory`]. Live allocations are
    /// unchanged.
    pub fn allocate(&self, size: u64, stream: StreamId) -> Result<u64> {
        if size == 0 {
            return Ok(0);
        }
        let size = bounded(size)?;
        let guard = &mut self.core.lock();
        let core = &mut **guard;
        if core.has_pre_work {
            let owner = core.poll_before_request(stream)?;
            if core.features.guard.is_some() {
                return self.allocate_watched(guard, &AllocRequest::new(size, stream, owner));
            }
            if let Some(owner) = owner {
                return self.serve_private(guard, &AllocRequest::new(size, stream, Some(owner)), owner);
            }
        }
        let request = core.public_request(size, stream)?;
        let id = core.heap.fit(&request, &core.rules.fit);
        if id.is_none() {
            return miss::serve(
                self,
                guard,
                &AllocRequest::new(size, stream, None),
                Prepared { request, private: None },
            );
        }
        if core.heap.is_bare(id, request.size) {
            core.map_bare(id, &request)?;
        }
        let address = core.heap.hand_out(id, &request, &core.rules.fit)?;
        core.checked()?;
        Ok(address)
    }
}

impl Pools<'_> {
    /// Allocates `size` bytes from a private pool, as [`Allocator::allocate`](crate::Allocator::allocate) does, even
    /// while requests are routed to another pool.
    ///
    /// # Errors
    /// The errors of [`Allocator::allocate`](crate::Allocator::allocate); [`Error::UnknownPool`] if every use of the
    /// pool was released; [`Error::Source`] if the pool's own source failed.
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
        let asked = AllocRequest::new(size, stream, Some(pool));
        if core.features.guard.is_some() {
            return self.0.allocate_watched(guard, &asked);
        }
        self.0.serve_private(guard, &asked, pool)
    }

    /// Allocates as [`Self::allocate`] does, but only from a free range that the pool already holds. Returns `None` if
    /// there is no such range. No new memory is taken, and the CPU does not wait.
    ///
    /// # Errors
    /// The errors of [`Self::allocate`], except [`Error::OutOfMemory`].
    pub fn allocate_held(self, pool: PoolId, size: u64, stream: StreamId) -> Result<Option<u64>> {
        let core = &mut *self.0.core.lock();
        core.heap.private_mut().used(pool)?;
        if size == 0 {
            return Ok(Some(0));
        }
        let size = bounded(size)?;
        core.make_whole()?;
        core.poll()?;
        let prepared = core.private_request(&AllocRequest::new(size, stream, Some(pool)), pool)?;
        let rules = FitRules { takes_idle: false, ..*fit_rules(&core.rules, &core.features.own_memory, &prepared) };
        let Some(id) = core.heap.fit(&prepared.request, &rules).some() else { return Ok(None) };
        core.make_usable(id, &prepared.request)?;
        let address = core.hand_out(id, &prepared)?;
        core.watch(address)?;
        Ok(Some(address))
    }
}

impl Core {
    /// Takes the steps that come before a request if freed blocks wait for streams, requests are routed to private
    /// pools, or memory is missing at its addresses. Missing memory is mapped again, and blocks that other streams have
    /// passed become free. Returns the private pool to which the request is routed, if any.
    #[cold]
    fn poll_before_request(&mut self, stream: StreamId) -> Result<Option<PoolId>> {
        self.make_whole()?;
        let route = self.heap.private().route_of(stream);
        if route.is_some() || self.poll_due() {
            self.poll()?;
        }
        self.has_pre_work = self.poll_due()
            || self.heap.private().routes() > 0
            || self.features.have_work()
            || !self.rollback.is_whole();
        Ok(route)
    }
}

/// Refuses a size larger than the memory of any device.
fn bounded(size: u64) -> Result<u64> {
    if size > MAX_REQUEST { Err(Error::RequestTooLarge { size }) } else { Ok(size) }
}

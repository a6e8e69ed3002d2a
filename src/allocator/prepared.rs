//! A request on its way to a block: its rounding, its pool, and the steps of the block until it is handed out.
//!
//! Owns: these steps, which every request takes. `allocate.rs` has their order.

use super::core::Core;
use crate::backing::map_home;
use crate::error::{Error, Result};
use crate::features::own_memory::OwnMemory;
use crate::heap::{FitRules, Layout, Request};
use crate::ids::{BlockId, Class, PoolId, StreamId, ViewId};
use crate::span::Span;
use crate::strategy::Rules;

/// A request as the program makes it.
#[derive(Clone, Copy)]
pub(super) struct AllocRequest {
    /// Bytes, not 0.
    pub(super) size: u64,
    pub(super) stream: StreamId,
    /// The private pool that the program names.
    pub(super) owner: Option<PoolId>,
    /// The view that the request extends ([`Request::extends`]), or none.
    pub(super) extends: ViewId,
}

impl AllocRequest {
    #[inline(always)]
    pub(super) fn new(size: u64, stream: StreamId, owner: Option<PoolId>) -> Self {
        Self { size, stream, owner, extends: ViewId::NONE }
    }
}

/// A request for a pool, and its details if the pool is private.
#[derive(Clone, Copy)]
pub(super) struct Prepared {
    pub(super) request: Request,
    pub(super) private: Option<Private>,
}

#[derive(Clone, Copy)]
pub(super) struct Private {
    pub(super) owner: PoolId,
    /// Whether a stream capture takes the block.
    pub(super) captured: bool,
    /// Whether the pool's own segments stay unsplit; `None` if the pool has no segments of its own.
    pub(super) unsplit: Option<bool>,
    /// Whether the pool has chunks of its own.
    pub(super) apart: bool,
}

impl Core {
    /// Returns the request with its rounded size, for the pool of its stream.
    #[inline(always)]
    pub(super) fn public_request(&mut self, requested: u64, stream: StreamId) -> Result<Request> {
        let size = self.heap.layout().rounding.round(requested, &self.config.roundup_power2_divisions);
        let (pool, class) = match self.heap.pool_for(stream, size) {
            Some(known) => known,
            None => self.register_stream(stream, size)?,
        };
        Ok(Request { size, requested, pool, class, extends: ViewId::NONE })
    }

    /// Returns the program's request as a request for a pool.
    pub(super) fn prepare(&mut self, asked: &AllocRequest) -> Result<Prepared> {
        let mut prepared = match asked.owner {
            Some(owner) => self.private_request(asked, owner)?,
            None => Prepared { request: self.public_request(asked.size, asked.stream)?, private: None },
        };
        if asked.extends.is_some() {
            // Parts are whole granules, whatever the rounding.
            let AllocRequest { size, extends, .. } = *asked;
            let (pool, requested) = (prepared.request.pool.large(), size);
            prepared.request = Request { size, requested, pool, class: Class::Large, extends };
        }
        Ok(prepared)
    }

    /// Returns the program's request to a private pool as a request for one of its pools: a private pool has pools of
    /// its own for each stream.
    pub(super) fn private_request(&mut self, asked: &AllocRequest, owner: PoolId) -> Result<Prepared> {
        let (unsplit, apart) = self.heap.private().own_memory(owner)?;
        let layout = if unsplit.is_some() { Layout::PYTORCH } else { *self.heap.layout() };
        let size = layout.rounding.round(asked.size, &self.config.roundup_power2_divisions);
        let stream = self.driver.canonical_stream(asked.stream)?;
        // The default stream cannot be captured, and the query may be refused while another stream is captured.
        let may_be = self.capturing() && stream != StreamId::DEFAULT;
        let captured = may_be && self.driver.is_capturing(stream)?;
        // Once the private pool is released, its memory belongs to the stream. Handles are reused, so the driver's
        // number of the stream is noted.
        let last = self.heap.private_pair(owner, stream);
        let is_known = stream == StreamId::DEFAULT || last.is_some_and(|large| !self.heap.pool(large).ended);
        let number = if is_known { None } else { self.number_of(stream)? };
        let (pool, class) = self.heap.private_pool(owner, stream, last, size, captured)?;
        if number.is_some() {
            self.heap.renumber_stream(pool.large(), number);
        }
        let request = Request { size, requested: asked.size, pool, class, extends: ViewId::NONE };
        Ok(Prepared { request, private: Some(Private { owner, captured, unsplit, apart }) })
    }

    /// Takes the free block that serves a request best. Returns [`BlockId::NONE`] if no free block does.
    pub(super) fn fit(&mut self, prepared: &Prepared) -> BlockId {
        if prepared.request.extends.is_some() {
            return BlockId::NONE;
        }
        let rules = fit_rules(&self.rules, &self.features.own_memory, prepared);
        self.heap.fit(&prepared.request, rules)
    }

    /// Hands out a block that is in no index of free blocks. Returns its address.
    pub(super) fn hand_out(&mut self, id: BlockId, prepared: &Prepared) -> Result<u64> {
        if prepared.private.is_some() {
            let reserved = self.heap.reserve_private(id);
            reserved.inspect_err(|_| self.heap.put_back(id))?;
        }
        let rules = fit_rules(&self.rules, &self.features.own_memory, prepared);
        let mut request = prepared.request;
        if request.extends.is_some() {
            // Chunks are mapped whole.
            request.size = self.heap.block(id).size;
            request.requested = request.size;
        }
        let address = self.heap.hand_out(id, &request, rules)?;
        if request.extends.is_some() {
            self.heap.begin_part(id);
        }
        if let Some(Private { owner, captured, .. }) = prepared.private {
            self.heap.handed_out_privately(id, owner, captured);
        }
        self.checked()?;
        Ok(address)
    }

    /// Makes sure that a free block has memory at its addresses.
    pub(super) fn make_usable(&mut self, id: BlockId, request: &Request) -> Result<()> {
        if self.heap.is_bare(id, request.size) { self.map_bare(id, request) } else { Ok(()) }
    }

    /// Maps the memory of a block that a hit has found bare (not mapped at home).
    #[cold]
    pub(super) fn map_bare(&mut self, id: BlockId, request: &Request) -> Result<()> {
        let span = Span::new(self.heap.block(id).address, request.size);
        let mapped = self.timed(|_, context| map_home(context, span));
        mapped.map_err(|error| {
            self.heap.put_back(id);
            match error {
                Error::Driver(error) if error.is_out_of_memory() => self.out_of_memory(request, None),
                error => error,
            }
        })
    }

    /// Takes the free block that serves a request best, with memory at its addresses. Returns `None` if no free block
    /// does.
    pub(super) fn fit_usable(&mut self, prepared: &Prepared) -> Result<Option<BlockId>> {
        let Some(id) = self.fit(prepared).some() else { return Ok(None) };
        self.make_usable(id, &prepared.request)?;
        Ok(Some(id))
    }

    /// Prepares the request again after the lock was released: the private pool may have changed, and a stream that
    /// held no memory may have lost its pool to another stream.
    pub(super) fn prepare_again(&mut self, asked: &AllocRequest) -> Result<Prepared> {
        if let Some(owner) = asked.owner {
            self.heap.private().exists(owner)?;
        }
        self.prepare(asked)
    }
}

/// Returns the rules by which a request finds its block.
#[inline]
pub(super) fn fit_rules<'a>(rules: &'a Rules, own: &'a OwnMemory, prepared: &Prepared) -> &'a FitRules {
    match prepared.private {
        Some(Private { unsplit: Some(unsplit), .. }) => &own.segments[usize::from(unsplit)],
        Some(Private { apart: true, .. }) => &own.apart,
        _ => &rules.fit,
    }
}

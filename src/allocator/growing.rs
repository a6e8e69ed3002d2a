//! Allocations that grow in place: the public operations.
//!
//! Owns: these operations. `features/growing.rs` keeps the table of such allocations, and says how much memory is taken
//! ahead of need. `strategy/stitch/extend.rs` chooses the memory, and `backing/growing.rs` makes the calls.

use super::core::{Allocator, Core};
use super::operations::GrowingAllocations;
use super::prepared::AllocRequest;
use crate::backing::{Miss, release_addresses, reserve_addresses};
use crate::config::Advice;
use crate::config::rounding::MAX_REQUEST;
use crate::error::{Error, Result};
use crate::fallible::TryCollect;
use crate::features::growing::{Extent, Growth, Part};
use crate::heap::{GRANULE, Request};
use crate::ids::{BlockId, ChunkId, Class, PoolId, StreamId, ViewId};
use crate::strategy::Means;
use parking_lot::MutexGuard;

impl Allocator {
    fn reserve_for(&self, owner: Option<PoolId>, capacity: u64, stream: StreamId) -> Result<u64> {
        if capacity > MAX_REQUEST {
            return Err(Error::RequestTooLarge { size: capacity });
        }
        let core = &mut *self.core.lock();
        core.may_grow(owner)?;
        let address = core.reserve(owner, capacity, stream)?;
        core.checked()?;
        Ok(address)
    }

    /// Adds parts to an allocation that is marked as busy, until it has `size` bytes.
    fn add_parts(&self, guard: &mut MutexGuard<'_, Core>, address: u64, size: u64) -> Result<()> {
        guard.make_whole()?;
        guard.poll()?;
        while let Some((asked, ahead)) = guard.next_part(address, size)? {
            let first = match ahead {
                Some(more) => guard.take_ahead(&AllocRequest { size: more, ..asked })?,
                None => None,
            };
            let part = match first {
                Some(part) => part,
                None => {
                    let prepared = guard.prepare(&asked)?;
                    self.serve_prepared(guard, &asked, prepared)?
                }
            };
            guard.add_part(address, part)?;
        }
        Ok(())
    }
}

impl GrowingAllocations<'_> {
    /// Reserves `capacity` bytes of addresses for an allocation that grows in place, for work on `stream`. Returns its
    /// address, a multiple of 2 MiB. The allocation has no memory yet.
    ///
    /// # Errors
    /// [`Error::NotGrowable`] with other strategies than `stitch`, and in guard mode; [`Error::RequestTooLarge`];
    /// [`Error::OutOfMemory`] if the bounds on views (such as `max_views`), or the device, have no room for the
    /// addresses; [`Error::HostMemory`]; [`Error::Driver`].
    pub fn reserve(self, capacity: u64, stream: StreamId) -> Result<u64> {
        self.0.reserve_for(None, capacity, stream)
    }

    /// Reserves addresses as [`Self::reserve`] does, for an allocation of a private pool, such as a tag that sleeps and
    /// wakes.
    ///
    /// # Errors
    /// The errors of [`Self::reserve`]; [`Error::UnknownPool`]; [`Error::NotGrowable`] for a pool with segments of its
    /// own.
    pub fn reserve_in(self, pool: PoolId, capacity: u64, stream: StreamId) -> Result<u64> {
        self.0.reserve_for(Some(pool), capacity, stream)
    }

    /// Grows an allocation of [`Self::reserve`], so that at least its first `size` bytes can be used, in the order of
    /// its stream. The allocation keeps its address and contents. If it has that much memory already, the driver is not
    /// called. This call never shrinks the allocation.
    ///
    /// # Errors
    /// The errors of [`Allocator::allocate`](crate::Allocator::allocate), [`Error::OutOfMemory`] with a report for the
    /// missing bytes; [`Error::InvalidAddress`] if no addresses were reserved there; [`Error::BeyondCapacity`];
    /// [`Error::NotGrowable`] during a capture, or if a graph may use memory that the allocation gave back and other
    /// requests have taken since, or once its stream was [forgotten](crate::operations::Streams::forget);
    /// [`Error::PoolAsleep`]. After an error, the allocation has as much memory as before.
    pub fn grow(self, address: u64, size: u64) -> Result<()> {
        if self.0.core.lock().features.growing.grow_within(address, size)? {
            return Ok(());
        }
        let guard = &mut self.0.core.lock();
        guard.features.growing.begin(address)?;
        let grown = self.0.add_parts(guard, address, size);
        guard.features.growing.end(address, size, grown.is_ok());
        grown?;
        guard.checked()
    }

    /// Gives back whole chunks after the first `size` bytes of an allocation of [`Self::reserve`], in the order of its
    /// streams, as [`Allocator::free`](crate::Allocator::free) does. The memory before these chunks keeps its address
    /// and contents.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`] if no addresses were reserved there; [`Error::NotGrowable`] while another thread grows
    /// the allocation; [`Error::HostMemory`]; [`Error::Driver`] if an event could not be recorded. Chunks given back
    /// before the error stay given back; [`Self::extent`] tells how much memory is left.
    pub fn shrink(self, address: u64, size: u64) -> Result<()> {
        let core = &mut *self.0.core.lock();
        core.features.growing.idle(address)?;
        core.shrink(address, size)?;
        core.checked()
    }

    /// Grows or shrinks an allocation of [`Self::reserve`] to `size` bytes, as TensorRT's `IGpuAllocator::reallocate`
    /// does for memory that is `kRESIZABLE`.
    ///
    /// # Errors
    /// The errors of [`Self::grow`] and [`Self::shrink`].
    pub fn resize(self, address: u64, size: u64) -> Result<()> {
        if self.extent(address)?.len <= size { self.grow(address, size) } else { self.shrink(address, size) }
    }

    /// Returns how many bytes of an allocation of [`Self::reserve`] are in use, have memory, and have reserved
    /// addresses.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`] if no addresses were reserved there.
    pub fn extent(self, address: u64) -> Result<Extent> {
        self.0.core.lock().features.growing.extent(address)
    }
}

impl Core {
    /// Refuses an allocation that cannot grow in place, whatever its size.
    fn may_grow(&mut self, owner: Option<PoolId>) -> Result<()> {
        let refuse = |why| Err(Error::NotGrowable { address: 0, why });
        if self.features.guard.is_some() {
            return refuse("guard mode is on, in which each allocation has memory of its own");
        }
        if !self.rules.abilities.grows {
            return refuse("only the strategy `stitch` maps memory behind other memory");
        }
        let Some(owner) = owner else { return Ok(()) };
        self.heap.private_mut().used(owner)?;
        if self.heap.private().segments(owner).is_some() {
            return refuse("its private pool has segments of its own");
        }
        Ok(())
    }

    fn reserve(&mut self, owner: Option<PoolId>, capacity: u64, stream: StreamId) -> Result<u64> {
        let addresses = capacity.max(1).next_multiple_of(GRANULE);
        let stream = self.driver.canonical_stream(stream)?;
        self.features.growing.reserve()?;
        let pool = owner.unwrap_or(PoolId::NONE);
        let view = match self.timed(|_, context| reserve_addresses(context, addresses, pool)) {
            Ok(view) => view,
            Err(Miss::Failed(error)) => return Err(error),
            Err(Miss::OutOfMemory { refused }) => {
                let pool = self.public_request(addresses, stream)?.pool;
                let (class, extends) = (Class::Large, ViewId::NONE);
                let request = Request { size: addresses, requested: capacity, pool, class, extends };
                return Err(self.out_of_memory(&request, refused));
            }
        };
        let address = self.heap.views().get(view).map_or(0, |view| view.address);
        self.features.growing.add(address, Growth::new(view, stream, owner, capacity))?;
        Ok(address)
    }

    /// Returns the request for the next part of an allocation, and the size of a larger part that also takes memory
    /// ahead, if there is one. Returns `None` if the allocation has `size` bytes.
    fn next_part(&mut self, address: u64, size: u64) -> Result<Option<(AllocRequest, Option<u64>)>> {
        let Some(next) = self.features.growing.next_bytes(address, size)? else { return Ok(None) };
        let growth = self.features.growing.get(address)?;
        let owner = self.owner_of_next(growth)?;
        let asked = AllocRequest { size: next.exact, stream: growth.stream, owner, extends: growth.view };
        Ok(Some((asked, next.ahead)))
    }

    /// Returns the private pool of the next part, which is the pool of the earlier parts. Returns `None` once that pool
    /// has ended, since all parts are then public, even if another pool has the same number by then.
    ///
    /// # Errors
    /// [`Error::PoolAsleep`], also for a pool that was released while it slept: the chunks of the view that lie after
    /// the last part sleep too, so they cannot serve the next part.
    fn owner_of_next(&self, growth: &Growth) -> Result<Option<PoolId>> {
        let Some(owner) = growth.owner else { return Ok(None) };
        if let Some(last) = growth.parts.last()
            && self.heap.owner_of(self.heap.block(self.heap.live(last.address)?).pool) != owner
        {
            return Ok(None);
        }
        self.heap.private().must_be_awake(owner)?;
        Ok(Some(owner).filter(|owner| self.heap.private().exists(*owner).is_ok()))
    }

    /// Takes a part by cheap means, which neither wait for the GPU nor give memory back. Returns its address, or `None`
    /// if there is too little memory.
    fn take_ahead(&mut self, asked: &AllocRequest) -> Result<Option<u64>> {
        let prepared = self.prepare(asked)?;
        match self.ask_strategy(&prepared, Means::Cheap)? {
            Ok(id) => self.hand_out(id, &prepared).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Adds to the table a part that was handed out.
    fn add_part(&mut self, address: u64, part: u64) -> Result<()> {
        let id = self.heap.live(part)?;
        let size = self.heap.block(id).size;
        match self.features.growing.push_part(address, Part { address: part, size }) {
            Ok(advice) => self.heap.advise(id, advice),
            Err(refused) => {
                if let Err(error) = self.heap.take_live(part).and_then(|id| self.free_part(id)) {
                    tracing::error!(%error, address = part, "a part that could not be noted leaks");
                }
                return Err(refused);
            }
        }
        Ok(())
    }

    /// Gives back the chunks after the first `size` bytes.
    fn shrink(&mut self, address: u64, size: u64) -> Result<()> {
        loop {
            let Some((view, last)) = self.features.growing.shorten(address, size) else { return Ok(()) };
            let begins = last.address - address;
            let id = self.heap.live(last.address)?;
            if begins >= size {
                self.name_streams(address, id)?;
                let id = self.heap.take_live(last.address)?;
                self.free_part(id)?;
                self.features.growing.pop_part(address);
                continue;
            }
            let end = self.heap.chunk_end(view, size).unwrap_or(u64::MAX);
            if end >= begins + last.size {
                return Ok(());
            }
            self.features.growing.reserve_part(address)?;
            self.heap.split_part(id, end - begins)?;
            self.features.growing.split_last(address, end - begins);
        }
    }

    /// Returns whether an allocation that grows begins at an address.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`] if a part of such an allocation begins there: a part is no allocation by itself.
    pub(super) fn grows_at(&self, address: u64) -> Result<bool> {
        if self.features.growing.is_empty() || self.features.growing.contains(address) {
            return Ok(!self.features.growing.is_empty());
        }
        match self.heap.live(address) {
            Ok(id) if self.heap.grown_in(id).is_some() => Err(Error::InvalidAddress { address }),
            _ => Ok(false),
        }
    }

    /// Refuses an allocation that grows, for an operation that needs all of its memory to stay.
    pub(super) fn must_not_grow(&self, address: u64) -> Result<()> {
        let why = "it is registered by its memory, which comes and goes";
        if self.grows_at(address)? { Err(Error::NotGrowable { address, why }) } else { Ok(()) }
    }

    /// Frees an allocation that grows, the last part first.
    #[cold]
    pub(super) fn free_growing(&mut self, address: u64) -> Result<()> {
        self.features.growing.idle(address)?;
        self.shrink(address, 0)?;
        if let Some(growth) = self.features.growing.remove(address)
            && let Err(error) = self.timed(|_, context| release_addresses(context, growth.view))
        {
            tracing::warn!(%error, address, "reserved addresses could not be given back yet");
        }
        self.checked()
    }

    /// Frees an allocation that has no memory. Returns `error`, which says that there is no live block, for any other
    /// address.
    #[cold]
    pub(super) fn free_empty_growing(&mut self, address: u64, error: Error) -> Result<()> {
        if self.features.growing.contains(address) { self.free_growing(address) } else { Err(error) }
    }

    /// Frees an allocation that grows, whose last use is on another stream.
    pub(super) fn free_growing_on(&mut self, address: u64, stream: StreamId) -> Result<()> {
        self.features.growing.idle(address)?;
        self.name_growing(address, stream)?;
        self.free_growing(address)
    }

    /// Notes that a stream uses an allocation that grows, later parts included.
    pub(super) fn name_growing(&mut self, address: u64, stream: StreamId) -> Result<()> {
        self.streams.known.add(stream)?;
        self.features.growing.name(address, stream)?;
        if self.config.spill.is_none() {
            // Only spilling asks when an allocation was last used.
            return Ok(());
        }
        let parts = self.features.growing.get(address)?.parts.iter();
        for part in parts {
            if let Ok(id) = self.heap.live(part.address) {
                self.heap.used_now(id);
            }
        }
        Ok(())
    }

    /// Notes the access advice for an allocation that grows, later parts included. Returns the chunks of its parts that
    /// are spilled.
    pub(super) fn advise_growing(&mut self, address: u64, advice: Advice) -> Result<Vec<ChunkId>> {
        self.features.growing.advise(address, advice);
        let mut spilled = Vec::new();
        let parts =
            self.features.growing.get(address)?.parts.iter().filter_map(|part| self.heap.live(part.address).ok());
        for part in parts.try_to_vec()? {
            self.heap.advise(part, advice);
            let chunks = self.heap.spilled_under(part)?;
            spilled.try_reserve(chunks.len())?;
            spilled.extend(chunks);
        }
        Ok(spilled)
    }

    /// Names the streams that use an allocation as users of one of its parts, which is about to be freed.
    fn name_streams(&mut self, address: u64, part: BlockId) -> Result<()> {
        for at in 0.. {
            let Some(stream) = self.features.growing.get(address)?.named.get(at).copied() else { break };
            self.name_stream(part, stream)?;
        }
        Ok(())
    }

    /// Ends allocations that have no memory, at the end of the allocator, so that their addresses go back.
    pub(super) fn close_growing(&mut self) {
        for view in self.features.growing.empty_views() {
            self.heap.set_growing(view, false);
        }
    }
}

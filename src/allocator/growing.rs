//! Allocations that grow in place: the public operations.
//!
//! Owns: these, and how much they take ahead. `growths.rs` keeps which there are. `strategy/stitch/extend.rs` chooses the memory, and
//! `backing/growing.rs` makes the calls.

use super::core::{Allocator, Core};
use super::growths::{Extent, Growth, Part};
use super::operations::GrowingAllocations;
use super::prepared::Order;
use crate::backing::{Miss, release_addresses, reserve_addresses};
use crate::config::Advice;
use crate::config::rounding::MAX_REQUEST;
use crate::error::{Error, Result};
use crate::fallible::{TryCollect, TryPush, try_insert};
use crate::heap::{GRANULE, Request};
use crate::ids::{BlockId, ChunkId, Class, PoolId, StreamId, ViewId};
use crate::strategy::Means;
use parking_lot::MutexGuard;

/// An allocation takes up to this part (1/n) of what it has ahead of what is asked for, so that one that grows by small steps calls
/// the driver seldom, and 99% of its memory is in use.
const AHEAD: u64 = 128;
/// The most bytes that it takes ahead.
const MOST_AHEAD: u64 = 64 << 20;

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
        guard.before_growth()?;
        while let Some((order, ahead)) = guard.next_part(address, size)? {
            let first = match ahead {
                Some(more) => guard.take_ahead(&Order { size: more, ..order })?,
                None => None,
            };
            let part = match first {
                Some(part) => part,
                None => {
                    let prepared = guard.prepare(&order)?;
                    self.serve_prepared(guard, &order, prepared)?
                }
            };
            guard.add_part(address, part)?;
        }
        Ok(())
    }
}

impl GrowingAllocations<'_> {
    /// Reserves `capacity` bytes of addresses for an allocation that grows in place, for work on `stream`. Returns its address, a
    /// multiple of 2 MiB. It has no memory yet.
    ///
    /// # Errors
    /// [`Error::NotGrowable`] with other strategies than `stitch`, and in guard mode; [`Error::RequestTooLarge`];
    /// [`Error::OutOfMemory`] if the bounds on views, or the device, have no room for the addresses; [`Error::HostMemory`];
    /// [`Error::Driver`].
    pub fn reserve(self, capacity: u64, stream: StreamId) -> Result<u64> {
        self.0.reserve_for(None, capacity, stream)
    }

    /// Does the same for an allocation of a private pool, such as a tag that sleeps and wakes.
    ///
    /// # Errors
    /// Those of [`Self::reserve`]; [`Error::UnknownPool`]; [`Error::NotGrowable`] for a pool with segments of its own.
    pub fn reserve_in(self, pool: PoolId, capacity: u64, stream: StreamId) -> Result<u64> {
        self.0.reserve_for(Some(pool), capacity, stream)
    }

    /// Grows an allocation of [`Self::reserve`], so that at least its first `size` bytes can be used, in the order of its stream.
    /// Its address and contents stay. Where it has that much memory already, no driver is called. It never becomes smaller.
    ///
    /// # Errors
    /// Those of [`Allocator::allocate`](crate::Allocator::allocate), [`Error::OutOfMemory`] with a report for the missing bytes; [`Error::InvalidAddress`] if
    /// nothing was reserved there; [`Error::BeyondCapacity`]; [`Error::NotGrowable`] during a capture, or if a graph may use what
    /// it gave back before and others have taken since, or once its stream was [forgotten](crate::operations::Streams::forget);
    /// [`Error::PoolAsleep`]. It has as much as before.
    pub fn grow(self, address: u64, size: u64) -> Result<()> {
        if self.0.core.lock().grow_within(address, size)? {
            return Ok(());
        }
        let guard = &mut self.0.core.lock();
        let growth = guard.growths.idle(address)?;
        growth.busy = true;
        let grown = self.0.add_parts(guard, address, size);
        if let Some(growth) = guard.growths.0.get_mut(&address) {
            growth.busy = false;
            if grown.is_ok() {
                growth.len = growth.len.max(size);
            }
        }
        grown?;
        guard.checked()
    }

    /// Gives back whole chunks behind the first `size` bytes of an allocation of [`Self::reserve`], in the order of its streams,
    /// as [`Allocator::free`](crate::Allocator::free) does. The rest keeps its address and contents.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`] if nothing was reserved there; [`Error::NotGrowable`] while another thread has it grow;
    /// [`Error::HostMemory`]; [`Error::Driver`] if an event could not be recorded. What was given back before stays so
    /// ([`Self::extent`]).
    pub fn shrink(self, address: u64, size: u64) -> Result<()> {
        let core = &mut *self.0.core.lock();
        core.growths.idle(address)?;
        core.shrink(address, size)?;
        core.checked()
    }

    /// Grows or shrinks an allocation of [`Self::reserve`] to `size` bytes: the rule of TensorRT's `IGpuAllocator::reallocate`
    /// for memory that is `kRESIZABLE`.
    ///
    /// # Errors
    /// Those of [`Self::grow`] and [`Self::shrink`].
    pub fn resize(self, address: u64, size: u64) -> Result<()> {
        if self.extent(address)?.len <= size { self.grow(address, size) } else { self.shrink(address, size) }
    }

    /// Returns how much of an allocation of [`Self::reserve`] is in use, has memory, and is reserved.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`] if nothing was reserved there.
    pub fn extent(self, address: u64) -> Result<Extent> {
        self.0.core.lock().growths.extent(address)
    }
}

impl Core {
    /// Refuses what cannot grow in place, whatever its size.
    fn may_grow(&mut self, owner: Option<PoolId>) -> Result<()> {
        let refuse = |why| Err(Error::NotGrowable { address: 0, why });
        if self.guard.is_some() {
            return refuse("guard mode is on, in which each allocation has memory of its own");
        }
        if !self.config.strategy.joins_free_memory() {
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
        self.growths.0.try_reserve(1)?;
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
        let growth = Growth {
            view,
            stream,
            ended: false,
            owner,
            len: 0,
            capacity,
            parts: Vec::new(),
            mapped: 0,
            named: Vec::new(),
            advice: Advice::Normal,
            busy: false,
        };
        try_insert(&mut self.growths.0, address, growth)?;
        Ok(address)
    }

    /// Notes that more bytes are in use of an allocation, if it has memory for them. Returns whether it has.
    fn grow_within(&mut self, address: u64, size: u64) -> Result<bool> {
        let growth = self.growths.idle(address)?;
        if size > growth.capacity {
            return Err(Error::BeyondCapacity { address, size, capacity: growth.capacity });
        }
        let fits = size <= growth.mapped;
        if fits {
            growth.len = growth.len.max(size);
        }
        Ok(fits)
    }

    /// Does what comes before any request: frees that have passed complete, and memory that is missing comes back.
    fn before_growth(&mut self) -> Result<()> {
        if !self.rollback.is_whole() {
            self.timed(|_, context| context.retry_rollback())?;
        }
        self.poll()
    }

    /// Returns the order for the next part of an allocation, and the bytes that would also have it grow ahead, if those are more.
    /// `None` if it has `size` bytes.
    fn next_part(&mut self, address: u64, size: u64) -> Result<Option<(Order, Option<u64>)>> {
        let Growth { view, stream, ended, mapped, capacity, .. } = *self.growths.get(address)?;
        if size > capacity {
            return Err(Error::BeyondCapacity { address, size, capacity });
        }
        if size <= mapped {
            return Ok(None);
        }
        if ended {
            return Err(Error::NotGrowable { address, why: "its stream was forgotten" });
        }
        let all = capacity.next_multiple_of(GRANULE) - mapped;
        let exact = (size - mapped).next_multiple_of(GRANULE).min(all);
        let ahead = (mapped / AHEAD).min(MOST_AHEAD).min(all) / GRANULE * GRANULE;
        let owner = self.owner_of_next(self.growths.get(address)?)?;
        let order = Order { size: exact, stream, owner, extends: view };
        Ok(Some((order, (ahead > exact).then_some(ahead))))
    }

    /// Returns the private pool of the next part: that of the parts before it. Once that pool has ended, all are public, though another
    /// pool has its number by then.
    ///
    /// # Errors
    /// [`Error::PoolAsleep`], also of a pool that was released asleep: what is mapped behind the parts sleeps too.
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

    /// Takes a part by what takes nothing from others. Returns its address, or `None` if there is too little memory.
    fn take_ahead(&mut self, order: &Order) -> Result<Option<u64>> {
        let prepared = self.prepare(order)?;
        match self.ask_strategy(&prepared, Means::Cheap)? {
            Ok(id) => self.hand_out(id, &prepared).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Notes a part that was handed out.
    fn add_part(&mut self, address: u64, part: u64) -> Result<()> {
        let id = self.heap.live(part)?;
        let size = self.heap.block(id).size;
        let growth = self.growths.0.get_mut(&address).ok_or(Error::Internal("an allocation that grows is gone"))?;
        if let Err(error) = growth.parts.try_push(Part { address: part, size }) {
            if let Err(error) = self.heap.take_live(part).and_then(|id| self.free_part(id)) {
                tracing::error!(%error, address = part, "a part that could not be noted leaks");
            }
            return Err(error.into());
        }
        growth.mapped += size;
        let advice = growth.advice;
        self.heap.advise(id, advice);
        Ok(())
    }

    /// Gives back the chunks behind the first `size` bytes.
    fn shrink(&mut self, address: u64, size: u64) -> Result<()> {
        loop {
            let Some(growth) = self.growths.0.get_mut(&address) else { return Ok(()) };
            growth.len = growth.len.min(size);
            let Some(last) = growth.parts.last().copied() else { return Ok(()) };
            let (begins, view) = (last.address - address, growth.view);
            let id = self.heap.live(last.address)?;
            if begins >= size {
                self.name_streams(address, id)?;
                let id = self.heap.take_live(last.address)?;
                self.free_part(id)?;
                self.forget_part(address);
                continue;
            }
            let end = self.heap.chunk_end(view, size).unwrap_or(u64::MAX);
            if end >= begins + last.size {
                return Ok(());
            }
            self.split_part(address, id, end - begins)?;
        }
    }

    /// Makes two parts of the last one.
    fn split_part(&mut self, address: u64, id: BlockId, at: u64) -> Result<()> {
        if let Some(growth) = self.growths.0.get_mut(&address) {
            growth.parts.try_reserve(1)?;
        }
        self.heap.split_part(id, at)?;
        if let Some(growth) = self.growths.0.get_mut(&address)
            && let Some(last) = growth.parts.last_mut()
        {
            let rest = Part { address: last.address + at, size: last.size - at };
            last.size = at;
            growth.parts.push(rest);
        }
        Ok(())
    }

    /// Forgets the last part, which was freed.
    fn forget_part(&mut self, address: u64) {
        if let Some(growth) = self.growths.0.get_mut(&address)
            && let Some(part) = growth.parts.pop()
        {
            growth.mapped -= part.size;
        }
    }

    /// Returns whether an allocation that grows begins at an address.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`] if a part of one begins there, which is none of its own.
    pub(super) fn grows_at(&self, address: u64) -> Result<bool> {
        if self.growths.is_empty() || self.growths.0.contains_key(&address) {
            return Ok(!self.growths.is_empty());
        }
        match self.heap.live(address) {
            Ok(id) if self.heap.grown_in(id).is_some() => Err(Error::InvalidAddress { address }),
            _ => Ok(false),
        }
    }

    /// Refuses an allocation that grows for what needs all of its memory to stay.
    pub(super) fn must_not_grow(&self, address: u64) -> Result<()> {
        let why = "it is registered by its memory, which comes and goes";
        if self.grows_at(address)? { Err(Error::NotGrowable { address, why }) } else { Ok(()) }
    }

    /// Frees an allocation that grows, the last part first.
    #[cold]
    pub(super) fn free_growing(&mut self, address: u64) -> Result<()> {
        self.growths.idle(address)?;
        self.shrink(address, 0)?;
        if let Some(growth) = self.growths.0.remove(&address)
            && let Err(error) = self.timed(|_, context| release_addresses(context, growth.view))
        {
            tracing::warn!(%error, address, "reserved addresses could not be given back yet");
        }
        self.checked()
    }

    /// Frees an allocation that has no memory; `error` says that there is no live block.
    #[cold]
    pub(super) fn free_empty_growing(&mut self, address: u64, error: Error) -> Result<()> {
        if self.growths.0.contains_key(&address) { self.free_growing(address) } else { Err(error) }
    }

    /// Frees an allocation that grows, whose last use is on another stream.
    pub(super) fn free_growing_on(&mut self, address: u64, stream: StreamId) -> Result<()> {
        self.growths.idle(address)?;
        self.name_growing(address, stream)?;
        self.free_growing(address)
    }

    /// Notes that a stream uses an allocation that grows, and will use what it gets.
    pub(super) fn name_growing(&mut self, address: u64, stream: StreamId) -> Result<()> {
        let growth = self.growths.0.get_mut(&address).ok_or(Error::InvalidAddress { address })?;
        // The handle of an ended stream belongs to another stream.
        if (growth.ended || growth.stream != stream) && !growth.named.contains(&stream) {
            growth.named.try_push(stream)?;
        }
        if self.config.spill.is_none() {
            // Nobody asks when they were used.
            return Ok(());
        }
        let parts = self.growths.get(address)?.parts.iter();
        for part in parts {
            if let Ok(id) = self.heap.live(part.address) {
                self.heap.used_now(id);
            }
        }
        Ok(())
    }

    /// Notes what the program says of its use of an allocation that grows, what it will get included. Returns its parts that are
    /// spilled, as chunks.
    pub(super) fn advise_growing(&mut self, address: u64, advice: Advice) -> Result<Vec<ChunkId>> {
        if let Some(growth) = self.growths.0.get_mut(&address) {
            growth.advice = advice;
        }
        let mut spilled = Vec::new();
        let parts = self.growths.get(address)?.parts.iter().filter_map(|part| self.heap.live(part.address).ok());
        for part in parts.try_to_vec()? {
            self.heap.advise(part, advice);
            let chunks = self.heap.spilled_under(part)?;
            spilled.try_reserve(chunks.len())?;
            spilled.extend(chunks);
        }
        Ok(spilled)
    }

    /// Takes back what [`Self::name_growing`] noted.
    pub(super) fn erase_growing(&mut self, address: u64, stream: StreamId) {
        if let Some(growth) = self.growths.0.get_mut(&address) {
            growth.named.retain(|of| *of != stream);
        }
    }

    /// Names the streams that use an allocation as those of one of its parts, which is about to be freed.
    fn name_streams(&mut self, address: u64, part: BlockId) -> Result<()> {
        for at in 0.. {
            let Some(stream) = self.growths.get(address)?.named.get(at).copied() else { break };
            self.name_stream(part, stream)?;
        }
        Ok(())
    }

    /// Ends allocations that have no memory, at the end of the allocator, so that their addresses go back.
    pub(super) fn close_growing(&mut self) {
        for growth in self.growths.0.values().filter(|growth| growth.parts.is_empty()) {
            self.heap.set_growing(growth.view, false);
        }
    }
}
